"""Files as devices fetch them: from the publisher's folder and from stores, by curl and by the agent's own source."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from pathlib import Path

import httpx
import pytest

from fleet.controller.blobs.disk import DiskBlobs
from fleet.controller.blobs.files import files
from fleet.controller.blobs.places import BlobPlace, PublicFolder
from fleet.controller.blobs.s3 import S3Blobs
from fleet.controller.blobs.settings import S3Settings
from fleet.controller.serving.asgi import peer_of
from fleet.controller.serving.server import mounted
from fleet.controller.serving.settings import RateSettings, ServingSettings
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.transfer.web import WebSource
from tests.simulators.fleet_http import controlling, device, echo, hang_up
from tests.simulators.s3_server import BUCKET, S3Server, keys, s3

__all__ = ["keys", "s3"]
pytestmark = pytest.mark.asyncio
MIB = 1_048_576
PIECE_BYTES = 131_072
CONTENT = hashlib.shake_256(b"blob").digest(20 * MIB + 7)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
BLOB = f"repository/blobs/sha256/{DIGEST}"
UNLIMITED = ServingSettings(rates=RateSettings(address_per_s=0.0))
TLS = pytest.mark.parametrize("tls", [False, True], ids=["sendfile", "tls"])


def named(scope) -> None:
    if scope["path"].startswith("/metadata/secret") and not peer_of(scope).device:
        raise RequestError(Fault.UNAUTHENTICATED, "files are for devices; show a client certificate")


def repository(folder: Path, blobs=None):
    """Return an application: `folder` below /repository/, its blobs in `blobs`."""
    blobs = blobs or DiskBlobs(folder / "blobs" / "sha256")
    places = {"blobs/": BlobPlace(blobs), "": PublicFolder(folder)}
    apps = {f"/repository/{prefix}": files(place, PIECE_BYTES, named) for prefix, place in places.items()}
    return mounted(echo, apps)


@pytest.fixture
def public(tmp_path: Path) -> Path:
    folder = tmp_path / "public"
    for name, content in {
        "metadata/timestamp.json": b"{}",
        "metadata/3.root.json": b'{"root": 1}',
        f"targets/models/acme/reader/2/{DIGEST}.release": b"release",
        "assignments/camera-7.json": b"secret",
        "metadata/.timestamp.json.part": b"unfinished",
        "metadata/secret.json": b"for devices",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    DiskBlobs(folder / "blobs" / "sha256").put(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    return folder


class Landing:
    """Destination of a download; it breaks off once, after `until` bytes."""

    def __init__(self, until: int = -1) -> None:
        self.content, self.until, self.broken = bytearray(), until, 0

    @property
    def offset(self) -> int:
        return len(self.content)

    def append(self, piece: bytes) -> None:
        if 0 <= self.until <= self.offset and not self.broken:
            self.broken = self.offset
            raise KeyboardInterrupt
        self.content += piece


@TLS
async def test_the_agents_own_source_fetches_and_resumes(tmp_path, public, tls) -> None:
    camera = device("camera-7").write(tmp_path)
    async with controlling(tmp_path, repository(public), tls=tls, settings=UNLIMITED) as controller:
        shown = {"ca_file": str(controller.ca_file), "certificate_file": str(camera)} if tls else {}
        source = WebSource(f"{controller.url}repository/", FetchSettings(**shown))
        document = await asyncio.to_thread(source.read, "metadata/timestamp.json", 100)
        assert document.content == b"{}"
        again = await asyncio.to_thread(lambda: source.read("metadata/timestamp.json", 100, etag=document.etag))
        assert again.content is None
        landing = Landing(until=MIB)
        blob = BLOB.removeprefix("repository/")
        with pytest.raises(KeyboardInterrupt):
            await asyncio.to_thread(quiet, source, blob, landing)
        assert landing.broken == landing.offset >= MIB
        await asyncio.to_thread(source.copy, blob, landing, len(CONTENT))
        assert bytes(landing.content) == CONTENT
        with pytest.raises(FetchError, match="404"):
            await asyncio.to_thread(source.read, "metadata/4.root.json", 100)
        source.close()


def quiet(source: WebSource, blob: str, landing: Landing) -> None:
    source.copy(blob, landing, len(CONTENT))


@TLS
async def test_curl_fetches_resumes_and_asks_for_parts(tmp_path, public, tls) -> None:
    async with controlling(tmp_path, repository(public), tls=tls, settings=UNLIMITED) as controller:
        curl = ["curl", "-sS", "--cacert", "ca.pem", controller.url + BLOB]
        (tmp_path / "part").write_bytes(CONTENT[: 7 * MIB])
        assert (await controller.run(*curl, "-C", "-", "-o", "part"))[0] == 0
        assert (tmp_path / "part").read_bytes() == CONTENT
        for span, wanted in (("0-0", CONTENT[:1]), ("-5", CONTENT[-5:]), ("100-5000000", CONTENT[100:5000001])):
            assert (await controller.run(*curl, "-r", span, "-o", "span"))[0] == 0
            assert (tmp_path / "span").read_bytes() == wanted
        _, head = await controller.run(*curl, "-I")
        assert head.splitlines()[0].endswith("200 OK")
        assert f"content-length: {len(CONTENT)}" in head
        _, known = await controller.run(*curl, "-D", "-", "-o", "none", "-H", f'If-None-Match: "{DIGEST}"')
        assert " 304 " in known.splitlines()[0]
        _, beyond = await controller.run(*curl, "-D", "-", "-r", f"{len(CONTENT)}-")
        assert " 416 " in beyond.splitlines()[0]
        assert f"content-range: bytes */{len(CONTENT)}" in beyond


@TLS
async def test_many_on_one_connection_one_after_the_other(tmp_path, public, tls) -> None:
    async with controlling(tmp_path, repository(public), tls=tls, settings=UNLIMITED) as controller:
        async with controller.client() as client:
            for start in range(0, 10 * MIB, MIB):
                got = await client.get(BLOB, headers={"Range": f"bytes={start}-{start + MIB - 1}"})
                assert got.status_code == 206
                assert got.content == CONTENT[start : start + MIB]
                assert (await client.get("repository/metadata/timestamp.json")).content == b"{}"
                assert (await client.head(BLOB)).headers["content-length"] == str(len(CONTENT))
        assert controller.server._listeners._state is not None


async def test_how_long_copies_may_be_kept(tmp_path, public) -> None:
    immutable = "public, max-age=31536000, immutable"
    wanted = {
        "metadata/timestamp.json": "no-cache",
        "metadata/3.root.json": immutable,
        f"targets/models/acme/reader/2/{DIGEST}.release": immutable,
        f"blobs/sha256/{DIGEST}": immutable,
    }
    async with controlling(tmp_path, repository(public)) as controller, controller.client() as client:
        for path, caching in wanted.items():
            answer = await client.head(f"repository/{path}")
            assert (answer.status_code, answer.headers["cache-control"]) == (200, caching)
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_document_that_was_replaced_has_another_tag(tmp_path, public) -> None:
    async with controlling(tmp_path, repository(public)) as controller, controller.client() as client:
        first = (await client.get("repository/metadata/timestamp.json")).headers["etag"]
        (public / "metadata/new").write_bytes(b"[]")
        (public / "metadata/new").replace(public / "metadata/timestamp.json")
        second = await client.get("repository/metadata/timestamp.json", headers={"If-None-Match": first})
        assert (second.status_code, second.content) == (200, b"[]")


TRAVERSALS = [
    "..", "../", "%2e%2e/", "metadata/../../secret", "metadata/%2e%2e/%2e%2e/secret", "metadata/..%2f..%2fsecret",
    "metadata/..%5c..%5csecret", "/etc/passwd", "%2fetc/passwd", "metadata//timestamp.json",
    "metadata/./timestamp.json",
    "metadata/.timestamp.json.part", "metadata/%00", "metadata/timestamp.json%00", "metadata/timestamp.json/",
    "metadata", "metadata/", "targets/models", "",
    "assignments/camera-7.json", "blobs/sha256/..", "blobs/sha256/.incoming-x", "blobs/",
    "blobs/sha256/../../metadata/timestamp.json", "metadata/link.json", "linked/secret", "metadata/inside/secret",
    "metadata/pipe", "metadata/" + "a" * 300, "metadata/" + "a/" * 200 + "b", "blobs/sha256/" + "0" * 64,
]  # fmt: skip


@pytest.mark.parametrize("path", TRAVERSALS)
async def test_no_path_leads_out(tmp_path, public, path) -> None:
    """The connection is a bare one: clients tidy paths up."""
    (tmp_path / "secret").write_bytes(b"secret")
    (public / "metadata/link.json").symlink_to(tmp_path / "secret")
    (public / "metadata/inside").symlink_to(tmp_path)
    (public / "linked").symlink_to(tmp_path)
    os.mkfifo(public / "metadata/pipe")
    async with controlling(tmp_path, repository(public)) as controller:
        reader, writer = await controller.connect()
        writer.write(f"GET /repository/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        said = await reader.read()
        assert said.split(b"\r\n")[0].startswith(b"HTTP/1.1 404 ")
        assert b"problem+json" in said
        await hang_up(writer)


async def test_files_are_not_written_to(tmp_path, public) -> None:
    async with controlling(tmp_path, repository(public)) as controller, controller.client() as client:
        for method in ("PUT", "POST", "DELETE", "PATCH"):
            refused = await client.request(method, BLOB)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_who_may_not_see_files_does_not(tmp_path, public) -> None:
    async with controlling(tmp_path, repository(public), tls=True) as controller:
        for shown, status in ((None, 401), (device("camera-7"), 200)):
            async with controller.client(shown) as client:
                assert (await client.get("repository/metadata/secret.json")).status_code == status


async def test_a_peer_that_takes_nothing_is_cut_off(tmp_path, public) -> None:
    """The kernel's sendfile sends the file: asyncio has no part in it, so has none of its limits."""
    settings = ServingSettings(write_timeout_s=0.3)
    async with controlling(tmp_path, repository(public), settings=settings) as controller:
        reader, writer = await controller.connect()
        writer.transport.pause_reading()
        writer.write(f"GET /{BLOB} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        state = controller.server._listeners._state
        while not state.tasks:
            await asyncio.sleep(0.01)
        while state.connections or state.tasks:
            await asyncio.sleep(0.01)
        del reader
        await hang_up(writer)


@TLS
async def test_a_stop_does_not_wait_for_who_takes_nothing(tmp_path, public, tls, caplog) -> None:
    controlled = controlling(tmp_path, repository(public), tls=tls)
    async with controlled as controller, controller.client() as client, client.stream("GET", BLOB) as answer:
        await answer.aiter_raw().__anext__()
        async with asyncio.timeout(20):  # its own bounds are one second each; a hang would have none
            await controller.server.stop(0)
        assert not controller.server._listeners._state.tasks
    assert "request cut off: " in caplog.text


@TLS
async def test_a_peer_that_leaves_disturbs_nobody(tmp_path, public, tls, caplog) -> None:
    async with controlling(tmp_path, repository(public), tls=tls, settings=UNLIMITED) as controller:
        async with controller.client() as client:
            for _ in range(3):
                async with client.stream("GET", BLOB) as answer:
                    await answer.aiter_raw().__anext__()
            assert (await client.get(BLOB)).content == CONTENT
        state = controller.server._listeners._state
        while state.tasks:
            await asyncio.sleep(0.01)
    assert "Traceback" not in caplog.text


@TLS
async def test_a_file_that_shrinks_meanwhile_is_no_whole_answer(tmp_path, public, tls) -> None:
    """Nothing but damage does this: what is published never changes. 20 MiB are more than both sockets hold."""
    async with controlling(tmp_path, repository(public), tls=tls) as controller, controller.client() as client:

        async def fetch() -> None:
            async with client.stream("GET", BLOB) as answer:
                os.truncate(public / "blobs/sha256" / DIGEST, MIB)
                await answer.aread()

        with pytest.raises(httpx.TransportError):
            await fetch()


async def test_from_s3_bytes_do_not_pass_here(tmp_path, public, s3: S3Server) -> None:
    """The S3 is OpenStack Swift's."""
    blobs = S3Blobs(S3Settings(bucket=BUCKET, endpoint=s3.endpoint))
    await asyncio.to_thread(blobs.put, DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    async with controlling(tmp_path, repository(public, blobs)) as controller:
        source = WebSource(f"{controller.url}repository/")
        landing = Landing(until=MIB)
        with pytest.raises(KeyboardInterrupt):
            await asyncio.to_thread(quiet, source, BLOB.removeprefix("repository/"), landing)
        await asyncio.to_thread(source.copy, BLOB.removeprefix("repository/"), landing, len(CONTENT))
        assert bytes(landing.content) == CONTENT
        source.close()
        async with controller.client() as client:
            moved = await client.get(BLOB)
            assert (moved.status_code, moved.content) == (302, b"")
            assert moved.headers["location"].startswith(f"{s3.endpoint}/{BUCKET}/blobs/sha256/{DIGEST}?")
            assert moved.headers["cache-control"] == "private, no-store"
            assert (await client.get(BLOB, headers={"If-None-Match": f'"{DIGEST}"'})).status_code == 304
            async with httpx.AsyncClient(trust_env=False) as outside:
                head = await client.head(BLOB)
                assert (await outside.head(head.headers["location"])).headers["content-length"] == str(len(CONTENT))
        _, said = await controller.run("curl", "-sSL", "-r", "5-9", "-o", "span", controller.url + BLOB)
        assert (tmp_path / "span").read_bytes() == CONTENT[5:10], said
