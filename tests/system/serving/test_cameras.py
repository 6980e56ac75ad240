"""Cameras of the gateway: a real daemon, real processes, sources of other programs, and what goes wrong with them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.simulators.camera_tools import FOLDER, rtsp_rs_camera, write_video
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.system.serving.test_streams import write_models
from tests.system.serving.test_tasks import write_detector

WAIT_S = 150.0


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_detector(folder / "street" / "1")
    return folder


def camera(name: str, url: object, more: str = "", model: str = "street") -> str:
    return f'[[camera]]\nname = "{name}"\nurl = "{url}"\nmodel = "{model}"\n{more}\n'


@pytest.fixture
def gateway(library, tmp_path):
    """Return a function that starts a gateway with these cameras."""
    with ExitStack() as stack:

        def start(*cameras: str, config: str = "", **options):
            folder = tmp_path / "gateway"
            text = QUIET + SHORT_TRIALS + config + "".join(cameras)
            control = ("--control", f"unix:{folder / 'control.sock'}")
            environ = {"PYTHONPATH": str(FOLDER)}
            options = {"arguments": control, "environ": environ, **options}
            return stack.enter_context(running(folder, **{"models": library, "config": text, **options}))

        yield start


def page_of(daemon, path: str) -> bytes:
    connection = http.client.HTTPConnection(daemon.http)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200
    return content


def statuses(daemon) -> dict[str, dict]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(daemon.folder / "control.sock"))
    connection.request("GET", "/v1/cameras")
    document = json.loads(connection.getresponse().read())
    connection.close()
    return {each["name"]: each for each in document["cameras"]}


def wait_for(daemon, name, condition):
    """Wait until the status of a camera meets a condition, and return it."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        if condition(found := statuses(daemon)[name]):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{found}\n{daemon.log}")


def children(daemon) -> list[int]:
    """Return the processes of cameras."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if b"cameras.child" in words and parent == daemon.pid:
                found.append(int(entry.name))
    return found


def answered(number: int):
    return lambda status: status["counts"]["answered"] >= number


def test_a_file_is_played_again_and_again_and_its_frames_are_answered(gateway, tmp_path):
    video = write_video(tmp_path / "street.mp4", 10, rate=20)
    daemon = gateway(camera("door", video, "per_s = 10.0"))
    status = wait_for(daemon, "door", answered(12))
    assert (status["state"], status["codec"], status["width"], status["height"]) == ("streaming", "h264", 128, 64)
    assert status["counts"]["read"] > 20
    assert status["restarts"] == 0
    assert status["latency_ms"]["p50"] > 0
    assert status["rss_bytes"] > 10_000_000


def test_a_killed_process_is_started_again_and_dies_with_the_daemon(gateway, tmp_path):
    video = write_video(tmp_path / "street.mp4", 10, rate=20)
    daemon = gateway(camera("door", video), camera("yard", video))
    wait_for(daemon, "yard", answered(1))
    wait_for(daemon, "door", answered(1))
    first = set(children(daemon))
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    daemon.wait_logged("its process ended with exit code -9")
    for name in ("door", "yard"):
        before = statuses(daemon)[name]["counts"]["answered"]
        wait_for(daemon, name, answered(before + 2))
    assert sum(each["restarts"] for each in statuses(daemon).values()) == 1
    now = children(daemon)
    assert len(now) == 2
    assert victim not in now
    daemon.kill()
    until_s = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in now) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not [pid for pid in now if Path(f"/proc/{pid}").exists()]


def test_a_camera_over_rtsp_is_answered_counted_and_ends_with_the_daemon(gateway):
    with rtsp_rs_camera() as url:
        daemon = gateway(camera("yard", url, "per_s = 10.0"))
        status = wait_for(daemon, "yard", answered(10))
        assert (status["state"], status["codec"]) == ("streaming", "h264")
        assert status["latency_ms"]["p99"] < 10_000
        page = page_of(daemon, "/metrics").decode()
        assert re.search(r'edge_gateway_camera_up\{camera="yard"\} 1(\.0)?\n', page)
        assert re.search(r'edge_gateway_camera_frames_total\{camera="yard",what="answered"\} [1-9]', page)
        pids = children(daemon)
        assert len(pids) == 1
        assert daemon.stop() == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_reload_starts_and_ends_what_changed_and_a_wrong_one_changes_nothing(gateway, tmp_path):
    video = write_video(tmp_path / "street.mp4", 10, rate=20)
    daemon = gateway(camera("door", video), camera("yard", video))
    wait_for(daemon, "yard", answered(1))
    wait_for(daemon, "door", answered(1))
    before = set(children(daemon))
    text = daemon.config_file.read_text()
    daemon.config_file.write_text(text.replace('name = "yard"', 'name = "gate"'))
    daemon.reload()
    wait_for(daemon, "gate", answered(1))
    assert set(statuses(daemon)) == {"door", "gate"}
    now = set(children(daemon))
    assert len(now) == 2
    assert len(now & before) == 1, "the camera that did not change goes on"
    daemon.config_file.write_text(text.replace('name = "yard"', 'name = "door"'))
    daemon.reload()
    daemon.wait_logged("reload refused")
    assert set(children(daemon)) == now
    daemon.config_file.write_text(text.partition("[[camera]]")[0])
    daemon.reload()
    assert not statuses(daemon)


def test_a_camera_waits_for_a_model_that_comes_later(gateway, library, tmp_path):
    video = write_video(tmp_path / "street.mp4", 10, rate=20)
    daemon = gateway(camera("door", video, model="later"))
    status = wait_for(daemon, "door", lambda status: status["state"] == "no_model")
    assert "later" in status["reason"]
    write_detector(tmp_path / "made" / "later" / "1")
    (tmp_path / "made" / "later").rename(library / "later")
    wait_for(daemon, "door", lambda status: status["state"] == "streaming" and status["counts"]["answered"] >= 2)


def test_a_pipeline_with_steps_that_remember_takes_the_frames_of_a_camera(gateway, tmp_path):
    write_models(tmp_path / "models")
    video = write_video(tmp_path / "walk.mp4", 20, rate=20)
    daemon = gateway(camera("gate", video, "per_s = 10.0", model="gate"), models=tmp_path / "models")
    status = wait_for(daemon, "gate", answered(15))
    assert (status["state"], status["counts"]["failed"], status["dropped"]) == ("streaming", 0, {})


def test_without_pyav_the_gateway_serves_and_the_camera_says_what_is_missing(gateway, tmp_path):
    video = write_video(tmp_path / "street.mp4", 10, rate=20)
    daemon = gateway(camera("door", video), environ={})
    status = wait_for(daemon, "door", lambda status: status["state"] == "lost")
    assert "(EG-702)" in status["reason"]
    assert b"true" in page_of(daemon, "/v2/models/street/ready")
