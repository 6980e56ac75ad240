"""Kills during the trials of a first start: no model is refused for good, and no process is left."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.simulators import models
from tests.simulators.daemon import QUIET, SHIPPED, Daemon, starting

WAIT_S = 60.0
LONG_TRIALS = "[trial]\nmeasure_runs = 1000000\nmeasure_s = 0.3\n"
CONFIG = f"{QUIET}{LONG_TRIALS}"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for number in range(8):
        (tmp_path / "models" / f"digits-{number}").mkdir(parents=True)
        shutil.copy(SHIPPED / "meter-reader" / "1" / "onnx-fp32" / "model.onnx", tmp_path / f"models/digits-{number}")
    return tmp_path / "models"


def at_trials(daemon: Daemon) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Wait for a trial. Return the fork servers, and the processes of the trials."""
    while True:
        with suppress(psutil.NoSuchProcess):
            servers = psutil.Process(daemon.pid).children()
            if trials := [process for server in servers for process in server.children()]:
                return servers, trials


@pytest.mark.parametrize("whose", ["server", "trial"])
def test_what_is_killed_in_its_trial_is_tried_again(tmp_path: Path, library: Path, whose: str) -> None:
    with starting(tmp_path / "gateway", models=library, config=CONFIG) as daemon:
        for _ in range(2):
            servers, trials = at_trials(daemon)
            for process in servers if whose == "server" else trials:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                process.wait(WAIT_S)
        for path in library.iterdir():
            daemon.wait_logged("variant chosen", model=path.name)
        assert [line for line in daemon.lines() if line["event"] == "model undecided"]
        assert not [line for line in daemon.lines() if line["event"] == "model refused"]
        for child in psutil.Process(daemon.pid).children(recursive=True):
            child.wait(WAIT_S)


def test_no_process_outlives_a_killed_gateway(tmp_path: Path) -> None:
    (tmp_path / "models" / "endless").mkdir(parents=True)
    models.write_onnx_endless(tmp_path / "models" / "endless" / "model.onnx")
    daemon = Daemon(tmp_path / "gateway", models=tmp_path / "models", config=CONFIG).start(ready=False)
    servers, trials = at_trials(daemon)
    daemon.kill()
    for process in (*servers, *trials):
        process.wait(WAIT_S)
