"""Cameras that others wrote, of many kinds and with many faults, before a real daemon; and what users see of them."""

from __future__ import annotations

import io
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.simulators.camera_tools import (
    FOLDER,
    GstCameras,
    camera_relay,
    environment,
    gst_cameras,
    rtsp_rs_camera,
    spoilt_camera,
)
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, Daemon, running
from tests.system.serving.test_tasks import write_detector

WAIT_S = 150.0
RED = (230, 25, 75)
SNAPSHOT = "[camera.snapshot]\nlabels = ['person']\nevery_s = 0.5\n"
Status = Mapping[str, Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_detector(folder / "street" / "1")
    return folder


@pytest.fixture
def gateway(library, tmp_path):
    """Return a function that starts a gateway with cameras."""
    with ExitStack() as stack:

        def start(*cameras: str) -> Daemon:
            folder, config = tmp_path / "gateway", QUIET + SHORT_TRIALS + "".join(cameras)
            return stack.enter_context(
                running(folder, models=library, config=config, environ={"PYTHONPATH": str(FOLDER)})
            )

        yield start


@pytest.fixture
def gst() -> Iterator[GstCameras]:
    """Lend a server of one test: where clients of many kinds leave at once, GStreamer 1.22 may crash."""
    with gst_cameras() as cameras:
        yield cameras


def camera(name: str, url: object, more: str = "") -> str:
    return f'[[camera]]\nname = "{name}"\nurl = "{url}"\nmodel = "street"\n{more}\n'


def secret_file(folder: Path, text: str = "admin:s3cret\n") -> Path:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(0o600)
    return file


def get(daemon: Daemon, path: str) -> httpx.Response:
    return httpx.get(f"http://{daemon.http}/v2/cameras{path}", trust_env=False, timeout=30)


def wait_for(daemon: Daemon, name: str, condition: Callable[[Status], object]) -> Status:
    """Wait until the status of a camera meets a condition, and return it."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        status: Status = get(daemon, f"/{name}").json()
        if condition(status):
            return status
        time.sleep(0.1)
    raise AssertionError(f"{status}\n{daemon.log}")


def more_answers(daemon: Daemon, name: str, more: int = 2) -> Status:
    """Wait for more answers than there are now."""
    least = get(daemon, f"/{name}").json()["counts"]["answered"] + more
    return wait_for(daemon, name, lambda status: status["counts"]["answered"] >= least)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, *map(str, words)]
    return subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


def kept(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(daemon, f"/{name}/snapshots").json()["snapshots"]
    return found


# ---- the main way ----------------------------------------------------------------------------------------------------
def test_a_camera_has_answers_pictures_and_a_state(gateway, tmp_path):
    with rtsp_rs_camera() as url:
        more = f'credential = "{secret_file(tmp_path)}"\nmasks = [[0.5, 0, 1, 0, 1, 1, 0.5, 1]]\n'
        daemon = gateway(camera("door", url, more + SNAPSHOT))
        status = wait_for(daemon, "door", lambda each: each["state"] == "streaming" and each["counts"]["answered"])
        assert (status["width"], status["height"], status["codec"]) == (128, 64, "h264")
        wait_for(daemon, "door", lambda _: kept(daemon, "door"))
        newest = kept(daemon, "door")[0]
        assert newest["labels"] == ["person"]
        picture = httpx.get(f"http://{daemon.http}{newest['url']}", trust_env=False)
        with Image.open(io.BytesIO(picture.content)) as image:
            assert (image.format, image.size) == ("JPEG", (128, 64))
            assert image.getpixel((16, 40)) == pytest.approx(RED, abs=60)  # the box's left side
            assert max(image.getpixel((120, 5))) < 20  # under the mask
        listed = command("cameras", "--url", daemon.http)
        assert listed.returncode == 0, listed.stderr
        assert "streaming" in listed.stdout
        checked = command("cameras", "check", url.replace("//", "//admin:s3cret@"))
        assert (checked.returncode, checked.stdout) == (0, "✓ camera check: 128 × 64 h264\n")
        for text in (listed.stdout, checked.stdout, daemon.log, json.dumps(status)):
            assert "s3cret" not in text


# ---- kinds -----------------------------------------------------------------------------------------------------------
KINDS = {
    "b-frames": (128, 64, "h264"),
    "h265": (128, 64, "hevc"),
    "jpeg": (128, 64, "mjpeg"),
    "8k": (7680, 4320, "h264"),
    "tiny": (1, 1, "h264"),
    "rare": (128, 64, "h264"),  # a frame in four seconds
}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_cameras_of_many_kinds_are_answered(gateway, gst, tmp_path):
    locked = camera("locked", gst.url("h264", gst.locked_port), f'credential = "{secret_file(tmp_path)}"')
    daemon = gateway(*(camera(kind, gst.url(kind)) for kind in KINDS), locked)
    for kind, form in {**KINDS, "locked": (128, 64, "h264")}.items():
        status = more_answers(daemon, kind)
        assert (status["width"], status["height"], status["codec"]) == form, kind
    assert "s3cret" not in daemon.log


# ---- faults ----------------------------------------------------------------------------------------------------------
SPOILT = (
    b"",
    b"v=0\r\nnonsense",
    b"v=0\r\no=- 0 0 IN IP4 0.0.0.0\r\ns=x\r\nm=audio 0 RTP/AVP 0\r\n",
    b"v=0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 NOSUCH/90000\r\n",
    b"\xff" * 3000,
    b"v=0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n" * 500,
)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_cameras_that_cannot_be_read_say_why_and_do_not_disturb_another(gateway, gst, tmp_path):
    wrong = secret_file(tmp_path, "admin:n0tthat\n")
    with ExitStack() as stack:
        spoilt = [stack.enter_context(spoilt_camera(sdp)) for sdp in SPOILT]
        faults = {
            "wrong": (gst.url("h264", gst.locked_port), f'credential = "{wrong}"', "401", "EG-705"),
            "without": (gst.url("h264", gst.locked_port), "", "401", "EG-705"),
            "absent": (gst.url("nosuch"), "", "404", "EG-704"),
            "closed": ("rtsp://127.0.0.1:1/stream", "", "Connection refused", "EG-704"),
            "nameless": ("rtsp://camera.invalid/stream", "", "", "EG-706"),
            **{f"spoilt-{number}": (url, "", "", "EG-704") for number, url in enumerate(spoilt)},
        }
        cameras = [camera(name, url, more) for name, (url, more, _, _) in faults.items()]
        daemon = gateway(camera("good", gst.url("h264")), *cameras)
        for name, (_, _, reason, code) in faults.items():
            status = wait_for(daemon, name, lambda each: each["state"] == "lost" and each["reason"])
            assert reason in status["reason"], name
            assert status["counts"]["answered"] == 0
            checked = command("cameras", "check", name, "--config", daemon.config_file, "--json")
            (found,) = json.loads(checked.stdout)["checks"]
            assert (checked.returncode, found["ok"], found["code"]) == (1, False, code), (name, found)
        more_answers(daemon, "good", 10)
        assert get(daemon, "/good").json()["restarts"] == 0
        assert "n0tthat" not in daemon.log + checked.stdout


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_cut_a_freeze_and_a_slow_network_are_noticed_and_survived(gateway, gst):
    with camera_relay(gst.port) as relay:
        daemon = gateway(camera("door", gst.url("h264", relay.port)), camera("yard", gst.url("jpeg")))
        more_answers(daemon, "door")

        relay.cut()
        wait_for(daemon, "door", lambda each: each["state"] != "streaming" and each["reason"])
        more_answers(daemon, "door")

        gst.tell("freeze h264")  # the connection stays, and no frame comes
        status = wait_for(daemon, "door", lambda each: each["state"] in {"stalled", "lost"})
        assert status["reason"]
        gst.tell("go h264")
        more_answers(daemon, "door")

        relay.bytes_s = 300
        time.sleep(5)
        relay.bytes_s = 0
        more_answers(daemon, "door")

        relay.flows.clear()  # as with a cable that was pulled
        wait_for(daemon, "door", lambda each: each["state"] in {"stalled", "lost"})
        relay.flows.set()
        more_answers(daemon, "door")
        assert get(daemon, "/yard").json()["restarts"] == 0


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_change_of_resolution_is_followed(gateway, gst):
    daemon = gateway(camera("door", gst.url("h264")))
    more_answers(daemon, "door")
    try:
        gst.tell("size h264 320 240")
        wait_for(daemon, "door", lambda each: (each["width"], each["height"]) == (320, 240))
        assert more_answers(daemon, "door", 5)["dropped"] == {}
    finally:
        gst.tell("size h264 128 64")


@pytest.mark.long
@pytest.mark.timeout(200)
def test_pictures_survive_a_kill_and_those_that_cannot_be_kept_stop_nothing(gateway, gst, tmp_path):
    state = tmp_path / "gateway" / "state"
    state.mkdir(parents=True)
    (state / "snapshots").write_text("in the way")
    daemon = gateway(camera("door", gst.url("h264"), SNAPSHOT))
    status = wait_for(daemon, "door", lambda each: each["picture_problem"])
    assert "is not kept" in status["picture_problem"]
    more_answers(daemon, "door", 5)
    assert "is not kept" in command("cameras", "--url", daemon.http).stdout
    (state / "snapshots").unlink()
    wait_for(daemon, "door", lambda each: not each["picture_problem"] and kept(daemon, "door"))
    assert Path(state / "snapshots" / "door").is_dir()
    before = {each["file"] for each in kept(daemon, "door")}
    daemon.kill()
    daemon.start()
    wait_for(daemon, "door", lambda _: len(kept(daemon, "door")) > len(before))
    assert before < {each["file"] for each in kept(daemon, "door")}
