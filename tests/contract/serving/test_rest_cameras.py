"""Cameras over HTTP: states, lists of pictures, pictures; by scope and by model. And the page for people."""

import time
from pathlib import Path

import pytest

from gateway.common.domain.access import Security, read_tokens
from gateway.serving.frontends.cameras.cameras import Cameras
from gateway.serving.frontends.cameras.settings import CameraSettings, SnapshotSettings
from gateway.serving.frontends.cameras.snapshots import Snapshots
from tests.simulators import rest_gateway
from tests.simulators.inference import SimulatedInference

pytestmark = pytest.mark.asyncio
CAMERAS = [
    CameraSettings("door", "rtsp://10.0.0.7/h264", "street", snapshot=SnapshotSettings()),
    CameraSettings("yard", "rtsp://10.0.0.8/h264", "plates"),
]
SCOPES = ("infer", "models", "memory", "metrics", "cameras", "admin")
LINES = [*(f"{scope} {scope}-token scopes={scope}" for scope in SCOPES), "narrow narrow-token models=str*"]
GUARDED = Security(tokens=read_tokens("\n".join(LINES), "tokens"))
PATHS = ("/v2/cameras", "/v2/cameras/door", "/v2/cameras/door/snapshots")


class SimulatedCameras(Snapshots):
    """Two cameras, of which one streams, with pictures on the disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, self._documents)

    @staticmethod
    def _documents():
        fixed = {"url": "rtsp://10.0.0.7/h264", "since": 1.0, "codec": "h264", "width": 64, "height": 32}
        rates = {"source_per_s": 25.0, "asked_per_s": 5.0, "answered_per_s": 4.96}
        return [
            {"name": "door", "model": "street", "state": "streaming", "reason": "", **fixed, **rates},
            {"name": "yard", "model": "plates", "state": "lost", "reason": "<401> Unauthorized", **fixed, **rates},
        ]


@pytest.fixture
def cameras(tmp_path: Path) -> SimulatedCameras:
    found = SimulatedCameras(tmp_path)
    found.follow(CAMERAS)
    return found


def bearer(holder: str) -> dict[str, str]:
    return {"authorization": f"Bearer {holder}-token"}


async def test_only_the_scope_of_cameras_sees_cameras_and_pictures(cameras: SimulatedCameras) -> None:
    cameras.keep("door", time.time_ns(), ("person",), b"\xff\xd8picture")
    picture = f"/v2/cameras/door/snapshots/{cameras.listed('door')[0].file}"
    async with rest_gateway.serving(security=GUARDED, cameras=cameras) as gateway:
        for scope in SCOPES:
            for path in (*PATHS, picture):
                answer = await gateway.client.get(path, headers=bearer(scope))
                allowed = scope in {"cameras", "admin"}
                assert answer.status_code == (200 if allowed else 403), (scope, path)
                assert allowed or "lacks the scope cameras" in answer.json()["error"]
        for path in (*PATHS, picture):
            assert (await gateway.client.get(path)).status_code == 401


async def test_a_caller_sees_the_cameras_of_its_models(cameras: SimulatedCameras) -> None:
    async with rest_gateway.serving(security=GUARDED, cameras=cameras) as gateway:
        listed = (await gateway.client.get("/v2/cameras", headers=bearer("narrow"))).json()["cameras"]
        assert [each["name"] for each in listed] == ["door"]
        for path, status in (("door", 200), ("yard", 404), ("nosuch", 404), ("yard/snapshots", 404)):
            answer = await gateway.client.get(f"/v2/cameras/{path}", headers=bearer("narrow"))
            assert answer.status_code == status, path
            assert status == 200 or "GET /v2/cameras lists them" in answer.json()["error"]


async def test_pictures_are_listed_newest_first_and_read_back(cameras: SimulatedCameras) -> None:
    now_ns = time.time_ns()
    for number, labels in enumerate((("person",), ("traffic light", "a+b~%/ü"), ())):
        assert cameras.keep("door", now_ns + number * 10**9, labels, b"\xff\xd8" + bytes([number]) * 50)
    async with rest_gateway.serving(cameras=cameras) as gateway:
        found = (await gateway.client.get("/v2/cameras/door/snapshots")).json()
        assert (found["camera"], found["count"], found["bytes"]) == ("door", 3, 156)
        assert [each["labels"] for each in found["snapshots"]] == [[], ["traffic light", "a+b~%/ü"], ["person"]]
        for number, each in zip((2, 1, 0), found["snapshots"], strict=True):
            picture = await gateway.client.get(each["url"])
            assert (picture.content, picture.headers["content-type"]) == (
                b"\xff\xd8" + bytes([number]) * 50,
                "image/jpeg",
            )
            assert picture.headers["cache-control"] == "no-store"
            assert each["time"].endswith("+00:00")
        older = await gateway.client.get(f"/v2/cameras/door/snapshots?before={found['snapshots'][1]['file']}")
        assert older.json()["snapshots"] == found["snapshots"][2:]
        for file in ("nosuch.jpg", "..%2f..%2fetc%2fpasswd", "%2e%2e", "x" * 300):
            assert (await gateway.client.get(f"/v2/cameras/door/snapshots/{file}")).status_code == 404


async def test_the_end_of_all_cameras_leaves_the_bounds_of_their_pictures(tmp_path: Path) -> None:
    month_s, place = 30 * 86_400.0, Snapshots(tmp_path)
    kept = CameraSettings("door", "/no.mp4", "street", snapshot=SnapshotSettings(max_age_s=month_s))
    cameras = Cameras(SimulatedInference(), snapshots=place)
    cameras.follow([kept])
    place.keep("door", time.time_ns() - int(8 * 86_400e9), ("person",), b"old")
    await cameras.stop()
    hour_s = 3_600.0
    place._looks.clear()
    place._looks.append((time.monotonic() - hour_s, time.time() - hour_s))  # a look an hour ago
    place.tidy(first=False)
    assert len(place.listed("door")) == 1


async def test_a_picture_counts_as_memory_of_an_answer(cameras: SimulatedCameras) -> None:
    settings = rest_gateway.RestSettings(max_body_bytes=1000, max_buffered_bytes=2000)
    cameras.keep("door", time.time_ns(), (), bytes(5000))
    async with rest_gateway.serving(settings=settings, cameras=cameras) as gateway:
        (each,) = (await gateway.client.get("/v2/cameras/door/snapshots")).json()["snapshots"]
        assert (await gateway.client.get(each["url"])).status_code == 413


async def test_without_cameras_there_is_an_empty_list() -> None:
    async with rest_gateway.serving() as gateway:
        assert (await gateway.client.get("/v2/cameras")).json() == {"cameras": []}
        assert (await gateway.client.get("/v2/cameras/door")).status_code == 404
        document = (await gateway.client.get("/schema/openapi.json")).json()
        (content,) = document["paths"]["/v2/cameras/{camera}/snapshots/{file}"]["get"]["responses"]["200"]["content"]
        assert content == "image/jpeg"
        queries = document["paths"]["/v2/cameras/{camera}/snapshots"]["get"]["parameters"]
        assert {each["name"]: each["in"] for each in queries} == {"camera": "path", "before": "query"}


async def test_the_page_shows_cameras_to_those_who_may_see_them(cameras: SimulatedCameras) -> None:
    async with rest_gateway.serving(security=GUARDED, cameras=cameras) as gateway:
        pages = {}
        for holder in ("admin", "infer", "narrow"):
            answer = await gateway.client.get("/", headers={**bearer(holder), "accept": "text/html"})
            assert answer.status_code == 200
            pages[holder] = answer.text
    assert '<td class="state streaming">streaming</td>' in pages["admin"]
    assert "64 × 32, 5.0 of 25.0 frames/s" in pages["admin"]
    assert "&lt;401&gt; Unauthorized" in pages["admin"]
    assert "yard" not in pages["narrow"]
    assert "door" in pages["narrow"]
    assert "door" not in pages["infer"]
    assert "/v2/cameras" not in pages["infer"]
