"""An accelerator that fails while cameras ask: a real daemon, real gRPC, a simulated device that is a file."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators import accelerator
from tests.simulators.accelerator import Device
from tests.simulators.daemon import ROOT, SHORT_TRIALS, Daemon, golden, running
from tests.simulators.runtime_only import interpreter

CONFIG = (
    f"[selection]\nidle_before_trial_s = 0.0\n{SHORT_TRIALS}[failover]\nretry_s = 0.5\n[limits]\nrun_limit_s = 0.5\n"
)
COMMAND = (interpreter(), "-m", "tests.simulators.accelerator")
ROWS = golden("activity", 8)
PIPELINE = """
schema = 1
name = "watch"
version = "1"

[input]
motion = "FP32[100, 6]"

[[step]]
name = "act"
model = "activity"
of = "motion"

[output]
scores = "act.scores"
"""


@pytest.fixture
def device(tmp_path: Path) -> Device:
    device = Device(tmp_path / "dev/hailo0")
    device.does()
    return device


@contextmanager
def served(tmp_path: Path, device: Device, *others: str, config: str = CONFIG) -> Iterator[Daemon]:
    """Run a gateway whose model serves on the device, and has passed in the `others`."""
    accelerator.model(tmp_path / "models", *others)
    options = {"models": tmp_path / "models", "config": config, "command": COMMAND, "environ": device.environ}
    with running(tmp_path / "gateway", **options) as daemon:
        for variant in others:
            daemon.wait_logged("trial finished", variant=variant, passed=True)
        daemon.wait_logged("variant chosen", variant="chip")
        yield daemon


class Cameras:
    """Callers that each ask for one answer after the other, and note what they got."""

    def __init__(self, daemon: Daemon, count: int = 4, model: str = "activity") -> None:
        self._daemon, self._model, self._over = daemon, model, threading.Event()
        self.answered, self.errors = [0] * count, [list[str]() for _ in range(count)]
        self.wrong = 0
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> Cameras:
        for thread in self._threads:
            thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int = 20) -> None:
        """Wait until each has so many more answers."""
        until, ends_s = [each + count for each in self.answered], time.monotonic() + 60
        while any(got < wanted for got, wanted in zip(self.answered, until, strict=True)):
            assert time.monotonic() < ends_s, (self.answered, self.errors, self._daemon.log)
            time.sleep(0.01)

    def _ask(self, number: int) -> None:
        rows = ROWS.rows[number : number + 1]
        tensor = triton.InferInput("motion", list(rows.shape), "FP32")
        tensor.set_data_from_numpy(rows)
        with triton.InferenceServerClient(self._daemon.grpc) as client:
            while not self._over.wait(0.002):
                try:
                    scores = client.infer(self._model, [tensor]).as_numpy("scores")
                except InferenceServerException as error:
                    self.errors[number].append(str(error))
                    continue
                right = scores.shape == (1, 4) and np.abs(scores - ROWS.scores[number]).max() < 0.05
                self.wrong += not right
                self.answered[number] += 1


def lines(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    return [line for line in daemon.lines() if line["event"].startswith(event)]


def got(daemon: Daemon, path: str, method: str = "GET") -> str:
    """Return the answer to a request over HTTP, whose status is 200."""
    connection = http.client.HTTPConnection(daemon.http, timeout=30)
    with closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()


def index(daemon: Daemon) -> dict[str, Any]:
    return next(each for each in json.loads(got(daemon, "/v2/repository/index", "POST")) if each["name"] == "activity")


def metric(daemon: Daemon, name: str) -> float:
    found = (line for line in got(daemon, "/metrics").splitlines() if line.startswith(f"edge_gateway_{name}{{"))
    return float(next(line for line in found if 'model="activity"' in line).rpartition(" ")[2])


def test_a_device_that_is_pulled_costs_no_camera_a_frame_and_serves_again_when_it_is_back(tmp_path, device):
    with served(tmp_path, device, "reference") as daemon, Cameras(daemon) as cameras:
        device.pull()
        over = daemon.wait_logged("failed over", model="activity", variant="reference", accelerator="cpu")
        assert daemon.wait_logged("accelerator changed", state="gone", device=str(device.node))
        cameras.more()
        assert over["took_ms"] >= 0
        said = index(daemon)
        assert said["state"] == "READY"
        assert f"chip on hailo-8 is out: hailo-8 at {device.node} is gone" in said["reason"]
        got(daemon, "/v2/health/ready")
        assert (metric(daemon, "model_degraded"), metric(daemon, "failovers_total")) == (1, 1)
        listed = edge_gateway("models", "--url", f"http://{daemon.http}")
        assert "degraded: chip on hailo-8 is out" in listed
        assert "degraded: chip on hailo-8 is out" in edge_gateway(
            "explain", "activity", "--url", f"http://{daemon.http}"
        )

        device.does()
        daemon.wait_logged("variant serves again", variant="chip")
        cameras.more()
        assert index(daemon)["reason"] == ""
        assert metric(daemon, "model_degraded") == 0
    assert (cameras.errors, cameras.wrong) == ([[], [], [], []], 0)


@pytest.mark.parametrize("deed", ["nan", "shape", "status 26"])
def test_garbage_and_errors_reach_no_camera(tmp_path, device, deed):
    with served(tmp_path, device, "reference") as daemon, Cameras(daemon) as cameras:
        device.does(deed)
        daemon.wait_logged("failed over", variant="reference")
        cameras.more()
        device.does()
        daemon.wait_logged("variant serves again", variant="chip")
        cameras.more()
    assert (cameras.errors, cameras.wrong) == ([[], [], [], []], 0)


def test_a_hang_costs_the_run_that_hangs(tmp_path, device):
    with served(tmp_path, device, "reference") as daemon, Cameras(daemon) as cameras:
        device.does("hang")
        daemon.wait_logged("failed over", variant="reference")
        cameras.more()
        device.does()
        daemon.wait_logged("variant serves again", variant="chip")
        cameras.more()
    lost = [error for errors in cameras.errors for error in errors]
    assert all(len(errors) <= 1 for errors in cameras.errors), lost
    assert lost
    assert all("longer than a run may" in error for error in lost), lost
    assert cameras.wrong == 0


def test_a_device_that_comes_and_goes_costs_no_frame(tmp_path, device):
    with served(tmp_path, device, "reference") as daemon, Cameras(daemon) as cameras:
        for count in range(1, 4):
            device.pull()
            while len(lines(daemon, "failed over")) < count:
                time.sleep(0.01)
            device.does()
            while len(lines(daemon, "variant serves again")) < count:
                time.sleep(0.01)
        cameras.more()
        assert (metric(daemon, "failovers_total"), metric(daemon, "model_degraded")) == (3, 0)
    assert (cameras.errors, cameras.wrong) == ([[], [], [], []], 0)


def test_when_every_variant_fails_the_model_says_so_and_answers_once_one_can(tmp_path, device):
    with served(tmp_path, device) as daemon:
        device.does("status 26")
        with triton.InferenceServerClient(daemon.grpc) as client:
            tensor = triton.InferInput("motion", [1, 100, 6], "FP32")
            tensor.set_data_from_numpy(ROWS.rows[:1])
            for _ in range(5):
                with pytest.raises(InferenceServerException, match="failed in variant chip"):
                    client.infer("activity", [tensor])
            failed = daemon.wait_logged("variant failed in service", variant="chip")
            assert "no other variant can serve" in failed["retry"]
            assert index(daemon)["state"] == "READY"
            assert "chip on hailo-8 is out: status 26" in index(daemon)["reason"]
            device.does()
            daemon.wait_logged("variant serves again", variant="chip")
            assert client.infer("activity", [tensor]).as_numpy("scores").shape == (1, 4)
        assert not lines(daemon, "failed over")


def test_a_device_that_does_not_open_again_stays_out(tmp_path, device):
    with served(tmp_path, device, "reference") as daemon, Cameras(daemon) as cameras:
        device.does("status 26")
        daemon.wait_logged("failed over", variant="reference")
        device.does("closed")
        cameras.more()
        assert not lines(daemon, "variant serves again")
    assert (cameras.errors, cameras.wrong) == ([[], [], [], []], 0)


def test_a_pipeline_on_the_model_goes_on(tmp_path, device):
    folder = tmp_path / "models/watch/1"
    folder.mkdir(parents=True)
    (folder / "pipeline.toml").write_text(PIPELINE)
    with served(tmp_path, device, "reference") as daemon, Cameras(daemon, model="watch") as cameras:
        device.pull()
        daemon.wait_logged("failed over", variant="reference")
        cameras.more()
    assert (cameras.errors, cameras.wrong) == ([[], [], [], []], 0)


def edge_gateway(*words: str) -> str:
    """Return the words that a command prints, whatever its lines; its exit code is 0."""
    done = subprocess.run(
        [interpreter(), "-m", "gateway", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return " ".join(done.stdout.split())
