"""Cameras with real processes: sources that fail in every way, and processes that misbehave in place of ours."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import socketserver
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.retry import SECOND_NS
from gateway.common.domain.statistics import Placement
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.common.timeouts import timeout
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.cameras import process as camera_process
from gateway.serving.frontends.cameras.cameras import Cameras
from gateway.serving.frontends.cameras.feed import CameraFeed
from gateway.serving.frontends.cameras.settings import CameraSettings, ChildLimits, SnapshotSettings
from gateway.serving.frontends.cameras.snapshots import Snapshots
from tests.simulators.authority import Authority
from tests.simulators.camera_tools import FOLDER, write_video

WAIT_S = 150.0
QUICK = ChildLimits(
    alive_s=0.1, pause_s=0.05, pause_limit_s=0.2, read_s=1.0, open_s=5.0, start_s=0.0, nice=0, silent_s=120.0
)
"""Limits of tests: short pauses. A busy machine may let a process of low precedence wait for minutes."""
JPEGS = TensorSpec("images", Datatype.FP32, (-1, 3, 64, 64), "NCHW", preprocess=Preprocess(("jpeg",)))
PNGS = TensorSpec("images", Datatype.FP32, (-1, 3, 64, 64), "NCHW", preprocess=Preprocess(("png",)))
PIXELS = TensorSpec("frame", Datatype.UINT8, (-1, -1, -1, 3), "NHWC")
FOUND = {"detections": [{"label": "person", "class": 0, "score": 0.9, "box": [4.0, 4.0, 20.0, 20.0]}]}


@pytest.fixture(autouse=True)
def _with_pyav(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))


class Answers:
    """Engine that answers each frame, and what listens to the answers. `fault`: how it refuses them."""

    def __init__(self, spec: TensorSpec = JPEGS) -> None:
        self.manifest = ModelManifest("street", "1", (spec,), (), ())
        self.fault: Fault | None = None
        self.away = False
        self.result = json.dumps(FOUND).encode()
        self.requests, self.answers, self.pictures, self.changes = [], [], [], []
        self.most = self.running = 0

    def describe(self, model: str, version: str = "") -> ModelManifest:
        if self.away:
            raise RequestError(Fault.NOT_FOUND, f"model '{model}' is unknown")
        return self.manifest

    def placement(self, _model: str, _version: str = "") -> Placement:
        return Placement("v", "onnx", "fp32", "cpu", "", 8)

    async def infer(self, request) -> InferResponse:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        self.requests.append(request)
        if self.fault is not None:
            raise RequestError(self.fault, "it is refused")
        element = np.array([self.result], object)
        return InferResponse("street", "1", "", {"result": Tensor(Datatype.BYTES, element)})

    def answered(self, answer) -> None:
        self.answers.append(answer)

    def changed(self, _camera: str, *, streaming: bool) -> None:
        self.changes.append(streaming)

    def pictured(self, _camera: str, wall_ns: int, jpeg: bytes) -> None:
        self.pictures.append((wall_ns, jpeg))


@asynccontextmanager
async def reading(engine: Answers, *settings: CameraSettings, limits: ChildLimits = QUICK) -> AsyncIterator[Cameras]:
    cameras = Cameras(engine, [engine], limits)
    cameras.follow(settings)
    try:
        async with timeout(WAIT_S):
            yield cameras
    finally:
        await cameras.stop()


def camera(url: object, **more: object) -> CameraSettings:
    return CameraSettings("door", str(url), "street", **{"per_s": 50.0, **more})


async def until(cameras: Cameras, condition) -> dict:
    """Wait until the status of the camera meets a condition; the test's own time limit ends it."""
    while not condition(status := cameras.statuses()[0]):
        await asyncio.sleep(0.01)
    return status


def pid_of(cameras: Cameras) -> int:
    return cameras._feeds["door"]._process.pid


def jpeg(width: int, height: int, level: int = 128) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height), (level,) * 3).save(content, "JPEG")
    return content.getvalue()


class WebServer(socketserver.ThreadingTCPServer):
    """Server with a thread for each connection, with TLS if it has a context for it."""

    daemon_threads, tls = True, None

    def get_request(self):
        peer, address = super().get_request()
        if self.tls is not None:
            peer = self.tls.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
        return peer, address

    def handle_error(self, *_) -> None:
        """Leave out the reports of handshakes that a client ends."""


@contextmanager
def web_camera(
    *frames: bytes, user: str = "", then: str = "repeat", pause_s: float = 0.02, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Lend the address of a camera of MJPEG over HTTP. `then`: after its frames it repeats them, freezes or ends."""
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while not head.endswith(b"\r\n\r\n") and (line := self.rfile.readline(8192)):
                head += line
            token = base64.b64encode(user.encode())
            if user and b"Basic " + token not in head:
                self.wfile.write(b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="c"\r\n\r\n')
                return
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=next\r\n\r\n")
            try:
                while not ended.is_set():
                    for frame in frames:
                        head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(frame)}\r\n\r\n"
                        self.wfile.write(head.encode() + frame + b"\r\n")
                        ended.wait(pause_s)
                    if then == "end":
                        return
                    if then == "freeze":
                        ended.wait()
            except OSError:
                return

    with WebServer(("127.0.0.1", 0), Handler) as server:
        server.tls = tls
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/video.mjpg"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


# ---- frames ----------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
@pytest.mark.parametrize("spec", [JPEGS, PIXELS])
async def test_one_frame_at_a_time_is_asked_for_and_the_newest_wins(tmp_path, spec):
    engine = Answers(spec)
    video = write_video(tmp_path / "v.mp4", 40, rate=100)
    async with reading(engine, camera(video, per_s=1000.0)) as cameras:
        status = await until(cameras, lambda status: status["counts"]["answered"] >= 30)
    counts = status["counts"]
    assert engine.most == 1
    assert counts["read"] >= counts["asked"] + counts["skipped"]
    answer = engine.answers[-1]
    assert (answer.camera, answer.size, answer.manifest) == ("door", (128, 64), engine.manifest)
    assert answer.tensor.array.shape == ((1, 64, 128, 3) if spec is PIXELS else (1,))
    request = engine.requests[-1]
    assert (request.caller, request.stream) == ("camera:door", "door")
    times = [answer.wall_ns for answer in engine.answers]
    assert times == sorted(times)
    assert engine.changes[:2] == [False, True]
    assert engine.changes[-1] is False  # it ended


@pytest.mark.asyncio
async def test_masks_are_black_in_what_the_model_sees_and_in_pictures(tmp_path):
    engine = Answers(PNGS)
    half = ((0.5, 0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0),)
    with web_camera(jpeg(64, 32, 200)) as url:
        settings = camera(url, masks=half, snapshot=SnapshotSettings(boxes=False))
        async with reading(engine, settings) as cameras:
            await until(cameras, lambda _: engine.pictures)
    for content in (engine.answers[0].tensor.array[0], engine.pictures[0][1]):
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("L"), int)
        assert pixels[:, 40:].max() <= 8
        assert abs(pixels[:, :24] - 200).max() <= 12
    assert engine.pictures[0][0] == engine.answers[0].wall_ns


@pytest.mark.asyncio
async def test_a_picture_has_the_boxes_of_the_frame_that_was_answered(tmp_path):
    engine = Answers()
    with web_camera(jpeg(64, 64, 0)) as url:
        none = camera(url, snapshot=SnapshotSettings(labels=("dog",)))
        async with reading(engine, none) as cameras:
            await until(cameras, lambda status: status["counts"]["answered"] >= 3)
        assert not engine.pictures
        async with reading(engine, camera(url, snapshot=SnapshotSettings(labels=("person",)))) as cameras:
            await until(cameras, lambda _: engine.pictures)
            await until(cameras, lambda status: status["counts"]["answered"] >= 6)
    assert len(engine.pictures) == 1, "at most one in every_s"
    image = Image.open(io.BytesIO(engine.pictures[0][1]))
    assert image.size == (64, 64)
    assert np.asarray(image).max() > 100, "a box was drawn"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "result",
    [
        b"no JSON",
        b"[1]",
        b'{"a": [1, {"label": 3}, {"label": "x", "score": null}, {"label": "x", "score": "y"}]}',
        b'{"a": [{"label": "x", "box": "none"}, {"label": "x", "box": [1, 2]}, {"label": "x", "box": [9, 9, 1, 1]}]}',
        b'{"a": [{"label": "x", "box": [0, 0, NaN, Infinity]}]}',
        b"\xff" * 10,
    ],
)
async def test_results_that_cannot_be_drawn_end_nothing(result):
    engine = Answers()
    engine.result = result
    with web_camera(jpeg(64, 32)) as url:
        async with reading(engine, camera(url, snapshot=SnapshotSettings(every_s=0.1))) as cameras:
            status = await until(cameras, lambda status: status["counts"]["answered"] >= 10)
    assert (status["restarts"], status["dropped"]) == (0, {})


@pytest.mark.asyncio
async def test_a_listener_and_an_engine_that_fail_end_nothing(tmp_path, caplog):
    class Broken(Answers):
        def answered(self, answer) -> None:
            super().answered(answer)
            raise KeyError("defect")

        async def infer(self, request):
            if len(self.answers) == 2:
                self.answers.append(None)
                raise ValueError("defect")
            return await super().infer(request)

    engine = Broken()
    async with reading(engine, camera(write_video(tmp_path / "v.mp4", 10, rate=50))) as cameras:
        status = await until(cameras, lambda status: status["counts"]["answered"] >= 5)
    assert status["dropped"] == {"INTERNAL": 1}
    assert "defect" in caplog.text


@pytest.mark.asyncio
async def test_a_file_of_one_frame_is_no_flood(tmp_path):
    engine = Answers()
    async with reading(engine, camera(write_video(tmp_path / "v.mp4", 1, rate=100), per_s=1000.0)) as cameras:
        status = await until(cameras, lambda status: status["counts"]["answered"] >= 150)
    assert status["restarts"] == 0


@pytest.mark.asyncio
async def test_a_stream_may_change_its_resolution_down_to_one_pixel(tmp_path):
    engine = Answers()
    with web_camera(jpeg(64, 32), jpeg(128, 64), jpeg(1, 1), pause_s=0.2) as url:
        async with reading(engine, camera(url)) as cameras:
            await until(cameras, lambda _: {answer.size for answer in engine.answers} >= {(64, 32), (128, 64), (1, 1)})
            assert cameras.statuses()[0]["restarts"] == 0


@pytest.mark.asyncio
async def test_a_video_of_8k_is_read_within_the_bound_of_memory(tmp_path):
    engine = Answers()
    video = write_video(tmp_path / "large.mp4", 3, rate=5, size=(7680, 4320))
    async with reading(engine, camera(video)) as cameras:
        status = await until(cameras, lambda status: status["counts"]["answered"] >= 2)
    assert (status["width"], status["height"], status["restarts"]) == (7680, 4320, 0)


@pytest.mark.asyncio
async def test_frames_that_are_refused_are_dropped_by_reason_and_the_feed_goes_on(tmp_path):
    engine = Answers()
    engine.fault = Fault.OVERLOADED
    video = write_video(tmp_path / "v.mp4", 10, rate=50)
    async with reading(engine, camera(video)) as cameras:
        status = await until(cameras, lambda status: status["dropped"].get("OVERLOADED", 0) >= 3)
        assert (status["reason"], status["state"]) == ("it is refused", "streaming")
        engine.fault = None
        status = await until(cameras, lambda status: status["counts"]["answered"] >= 2)
        assert status["reason"] == ""


@pytest.mark.asyncio
async def test_a_camera_waits_for_its_model(tmp_path):
    engine = Answers()
    engine.away = True
    video = write_video(tmp_path / "v.mp4", 10, rate=50)
    async with reading(engine, camera(video)) as cameras:
        status = await until(cameras, lambda status: status["state"] == "no_model")
        assert "is unknown" in status["reason"]
        assert status["counts"]["asked"] == 0
        engine.away = False
        cameras.readiness_changed()
        await until(cameras, lambda status: status["state"] == "streaming" and status["counts"]["answered"])
        engine.away = True
        await until(cameras, lambda status: status["state"] == "no_model")
    assert engine.changes == [False, True, False]


@pytest.mark.asyncio
async def test_cameras_that_did_not_change_go_on(tmp_path):
    engine = Answers()
    video = write_video(tmp_path / "v.mp4", 10, rate=50)
    async with reading(engine, camera(video)) as cameras:
        await until(cameras, lambda status: status["counts"]["answered"])
        pid = pid_of(cameras)
        cameras.follow([camera(video), CameraSettings("yard", str(video), "street")])
        assert pid_of(cameras) == pid
        cameras.follow([camera(video, per_s=7.0)])
        await until(cameras, lambda status: status["counts"]["answered"])
        assert pid_of(cameras) != pid
        assert [status["name"] for status in cameras.statuses()] == ["door"]


# ---- sources that fail -----------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_frozen_stream_is_stalled_and_opened_again(tmp_path):
    engine = Answers()
    with web_camera(jpeg(64, 32), jpeg(64, 32), jpeg(64, 32), then="freeze") as url:
        async with reading(engine, camera(url)) as cameras:
            status = await until(cameras, lambda status: status["state"] == "stalled")
            assert "time limit" in status["reason"]
            before = status["counts"]["answered"]
            most = before + 2
            await until(cameras, lambda now: now["state"] == "streaming" and now["counts"]["answered"] >= most)
            assert cameras.statuses()[0]["restarts"] == 0
    assert engine.changes[:4] == [False, True, False, True]


@pytest.mark.asyncio
async def test_a_process_whose_reading_hangs_ends_itself_and_is_started_again():
    engine = Answers()
    limits = ChildLimits(alive_s=0.1, pause_s=0.05, pause_limit_s=0.2, read_s=50.0, hang_s=2.0)
    with web_camera(*[jpeg(64, 32)] * 4, then="freeze") as url:
        async with reading(engine, camera(url), limits=limits) as cameras:
            status = await until(cameras, lambda status: status["state"] == "stalled")
            assert status["reason"] == "no frame was decoded in 2 s"
            await until(cameras, lambda status: status["restarts"] == 1 and status["state"] == "streaming")


@pytest.mark.asyncio
async def test_a_camera_that_is_gone_is_connected_again_for_ever():
    engine = Answers()
    with web_camera(*[jpeg(64, 32)] * 4, then="end") as url:
        async with reading(engine, camera(url)) as cameras:
            seen = set()
            await until(cameras, lambda status: seen.add(status["state"]) or status["counts"]["read"] >= 8)
            assert "lost" in seen
            assert cameras.statuses()[0]["restarts"] == 0


@pytest.mark.asyncio
async def test_a_wrong_password_is_told_and_nobody_reads_the_right_one(tmp_path, caplog):
    engine, secret = Answers(), tmp_path / "door"
    secret.write_text("admin:wrong/p@ss\n")
    with web_camera(jpeg(64, 32), user="admin:s3cret/p@ss") as url:
        async with reading(engine, camera(url, credential=str(secret))) as cameras:
            status = await until(cameras, lambda status: status["state"] == "lost")
            assert "401" in status["reason"]
            assert "(EG-705)" in status["reason"]
            secret.write_text("admin:s3cret/p@ss\n")  # read before the next attempt, without a reload
            await until(cameras, lambda status: status["counts"]["answered"])
            process = Path(f"/proc/{pid_of(cameras)}")
            for seen in (process / "cmdline", process / "environ"):
                assert b"s3cret" not in seen.read_bytes()
            assert "s3cret" not in json.dumps(cameras.statuses())
    assert "p@ss" not in caplog.text


@pytest.mark.asyncio
async def test_a_reload_takes_another_password_and_keeps_the_one_that_works(tmp_path):
    engine, secret = Answers(), tmp_path / "door"
    secret.write_text("admin:one\n")
    with web_camera(jpeg(64, 32)) as url:
        settings = camera(url, credential=str(secret))
        async with reading(engine, settings) as cameras:
            await until(cameras, lambda status: status["counts"]["answered"])
            pid = pid_of(cameras)
            for content in ("admin:one\n", "no password\n"):
                secret.write_text(content)
                cameras.follow([settings])
                assert pid_of(cameras) == pid
            secret.write_text("admin:two\n")
            cameras.follow([settings])
            await until(cameras, lambda status: status["counts"]["answered"])
            assert pid_of(cameras) != pid


@pytest.mark.asyncio
@pytest.mark.parametrize("ca", ["", "own", "other", "none"])
async def test_a_certificate_is_verified_where_the_setting_names_one(tmp_path, ca):
    tls, file = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tmp_path / ca / "ca.pem"
    own = Authority().write(tmp_path / "own")
    Authority().write(tmp_path / "other")
    tls.load_cert_chain(own / "cert.pem", own / "key.pem")
    with web_camera(jpeg(64, 32), tls=tls) as url:
        settings = camera(url.replace("http://127.0.0.1", "https://localhost"), ca=ca and str(file))
        async with reading(Answers(), settings) as cameras:
            status = await until(cameras, lambda status: status["state"] == "lost" or status["counts"]["answered"])
    assert (status["state"] == "lost") == (ca in {"other", "none"})
    assert not status["reason"] or f"{file} can be read and has the camera's certificate (EG-704)" in status["reason"]


@pytest.mark.asyncio
@pytest.mark.parametrize("content", [b"", b"no video", b"GIF89a"])
async def test_what_is_no_video_is_told_with_a_remedy(tmp_path, content):
    file = tmp_path / "v.mp4"
    file.write_bytes(content)
    async with reading(Answers(), camera(file)) as cameras:
        status = await until(cameras, lambda status: status["state"] == "lost")
    assert "give a file that holds the video itself" in status["reason"]


@pytest.mark.asyncio
async def test_without_pyav_the_status_says_how_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    async with reading(Answers(), camera(tmp_path / "v.mp4")) as cameras:
        status = await until(cameras, lambda status: status["state"] == "lost")
        assert "install" in status["reason"]
        assert "[camera]" in status["reason"] or "python3-av" in status["reason"]
        assert "(EG-702)" in status["reason"]
        await until(cameras, lambda status: status["restarts"] >= 2)


# ---- processes that fail ---------------------------------------------------------------------------------------------
@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
async def test_a_process_that_crashes_or_hangs_is_started_again(tmp_path, number):
    engine = Answers()
    video = write_video(tmp_path / "v.mp4", 10, rate=50)
    limits = ChildLimits(alive_s=0.1, silent_s=3.0, pause_s=0.05, pause_limit_s=0.2)
    async with reading(engine, camera(video), limits=limits) as cameras:
        await until(cameras, lambda status: status["counts"]["answered"])
        pid = pid_of(cameras)
        os.kill(pid, number)
        status = await until(cameras, lambda status: status["state"] == "lost")
        wanted = "hangs" if number is signal.SIGSTOP else f"exit code {-number}"
        assert wanted in status["reason"]
        before = status["counts"]["answered"]
        await until(cameras, lambda status: status["counts"]["answered"] > before and status["restarts"] == 1)
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.asyncio
async def test_a_process_that_leaks_is_bounded_by_its_own_limit(tmp_path):
    video = write_video(tmp_path / "large.mp4", 3, rate=5, size=(7680, 4320))
    limits = ChildLimits(alive_s=0.1, pause_s=0.05, pause_limit_s=0.2, memory_bytes=150_000_000)
    engine = Answers()
    async with reading(engine, camera(video), limits=limits) as cameras:
        status = await until(cameras, lambda status: status["state"] == "lost" or status["dropped"])
    assert status["reason"]
    assert not engine.answers


HOSTILE = """\
import fcntl, json, os, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[-1]))
setup = json.loads(channel.recv(200_000))
def report(**fields): channel.send(json.dumps(fields).encode())
def memory(size, seals=15, flags=2):
    descriptor = os.memfd_create("m", flags)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
def order():
    while True:
        found = json.loads(channel.recv(200_000))
        if "frame" in found:
            return found["frame"]
def frame(descriptors, **fields):
    report_ = {"kind": "frame", "id": order(), "width": 2, "height": 2, "byte_size": 12, **fields}
    socket.send_fds(channel, [json.dumps(report_).encode()], descriptors)
opened = {"kind": "opened", "codec": "h264", "width": 2, "height": 2}
"""
WRONG = {
    "garbage": "channel.send(b'\\xff\\x00garbage')",
    "too long": "channel.send(b'[' * 20_000)",
    "unknown field": "report(kind='alive', shape=[1])",
    "negative": "report(kind='opened', width=-1, height=4)",
    "huge": "report(**{**opened, 'width': 10**30})",
    "nan": 'channel.send(b\'{"kind": "opened", "width": NaN}\')',
    "no such transition": "report(**opened); report(kind='connecting')",
    "frame unasked": 'socket.send_fds(channel, [b\'{"kind": "frame", "id": 7, "byte_size": 1}\'], [memory(1)])',
    "flood": "\nwhile True: report(kind='alive')",
    "memory with alive": 'socket.send_fds(channel, [b\'{"kind": "alive"}\'], [memory(1)])',
    "several": "report(**opened); frame([memory(12), memory(12)])",
    "many": "report(**opened); frame([memory(12)] * 200)",
    "none": "report(**opened); frame([])",
    "unsealed": "report(**opened); frame([memory(12, 0)])",
    "partly sealed": "report(**opened); frame([memory(12, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)])",
    "no memfd": "report(**opened); frame([os.open('/etc/passwd', os.O_RDONLY)])",
    "pipe": "report(**opened); frame([os.pipe()[0]])",
    "too small": "report(**opened); frame([memory(11)])",
    "too large": "report(**opened); frame([memory(10**9)], byte_size=10**9, width=16384, height=16384)",
    "empty": "report(**opened); frame([memory(0)], byte_size=0)",
    "other shape": "report(**opened); frame([memory(12)], width=3)",
    "no width": "report(**opened); frame([memory(12)], width=0)",
    "frames without end": "report(**opened)\nwhile True: frame([memory(12)])",
    "failures without end": "report(**opened)\nwhile True: report(kind='failed', id=order(), reason='x')",
    "wrong id": "report(**opened); frame([memory(12)], id=99)",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("what", WRONG)
async def test_a_process_that_says_what_ours_never_says_is_ended(tmp_path, monkeypatch, what):
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE + WRONG[what] + "\ntime.sleep(60)\n")
    monkeypatch.setattr(camera_process, "COMMAND", (sys.executable, str(script)))
    engine, limits = Answers(PIXELS), ChildLimits(pause_s=0.05, pause_limit_s=0.1)
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with reading(engine, camera("/none.mp4", per_s=5.0), limits=limits) as cameras:
        status = await until(cameras, lambda status: status["state"] == "lost")
        assert "wrong message" in status["reason"]
        await until(cameras, lambda status: status["restarts"] >= 2)
    assert len(engine.requests) <= (2_000 if what == "frames without end" else 0)
    engine.requests.clear(), engine.answers.clear()  # a frame in use keeps its memory and descriptor
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 2, "descriptors are closed"  # noqa: PTH208


@pytest.mark.asyncio
async def test_sealed_memory_of_the_right_size_is_a_frame(tmp_path, monkeypatch):
    """The hostile process itself: with right messages its frames are asked for."""
    script = tmp_path / "friendly.py"
    script.write_text(HOSTILE + "report(**opened)\nwhile True: frame([memory(12)]); time.sleep(0.02)\n")
    monkeypatch.setattr(camera_process, "COMMAND", (sys.executable, str(script)))
    engine = Answers(PIXELS)
    async with reading(engine, camera("/none.mp4")) as cameras:
        await until(cameras, lambda _: len(engine.answers) >= 100)
        assert cameras.statuses()[0]["restarts"] == 0
    assert not engine.answers[0].tensor.array.any()


@pytest.mark.asyncio
async def test_frames_that_come_in_one_go_after_a_delay_are_no_flood(tmp_path, monkeypatch):
    script = tmp_path / "late.py"
    script.write_text(HOSTILE + "report(**opened)\nfor _ in range(20): frame([memory(12)])\ntime.sleep(60)\n")
    monkeypatch.setattr(camera_process, "COMMAND", (sys.executable, str(script)))
    engine = Answers(PIXELS)
    async with reading(engine, camera("/none.mp4", per_s=1.0)) as cameras:
        status = await until(cameras, lambda status: len(engine.answers) >= 20 or status["state"] == "lost")
    assert status["state"] == "streaming", status["reason"]


@pytest.mark.parametrize("per_s", [0.5, 5.0, 50.0])
def test_a_picture_of_every_frame_is_within_the_budget_for_ever(per_s):
    _, answers = CameraFeed(camera("/v.mp4", per_s=per_s), Answers(), [], ChildLimits(), Snapshots(None))._budgets()
    times_ns = [int(number / per_s * SECOND_NS) for number in range(3_000)]
    assert not any(answers.take("", at_ns) for at_ns in times_ns for _ in ("frame", "picture"))
    assert any(answers.take("", times_ns[-1]) for _ in range(int(20 * per_s) + 20)), "a flood has an end"
