"""Models in worker processes of a real daemon: what their callers see, what other models do not, and what is left."""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators import faulty
from tests.simulators.daemon import QUIET, SHIPPED, SHORT_TRIALS, Daemon, running

CONFIG = QUIET + SHORT_TRIALS + '[limits]\nrun_limit_s = 3.0\n[isolation]\nmodels = ["fau*"]\n'
WAIT_S = 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    faulty.write_release(tmp_path / "models")
    name = next(each.name for each in sorted(SHIPPED.iterdir()) if each.is_dir())
    shutil.copytree(SHIPPED / name, tmp_path / "models" / name)
    environ = faulty.given_to(tmp_path / "site")
    with running(tmp_path / "gateway", models=tmp_path / "models", config=CONFIG, environ=environ) as started:
        yield started


def asked(client: triton.InferenceServerClient, fault: str) -> Any:
    x = faulty.asking(fault)["x"]
    tensor = triton.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    return client.infer("faulty", [tensor]).as_numpy("y")


def metrics(daemon: Daemon) -> str:
    answer = urllib.request.urlopen(f"http://{daemon.http}/metrics")
    return str(answer.read().decode())


def workers(pid: int) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            is_child = int(file.read_text().rpartition(")")[2].split()[1]) == pid
            if is_child and "worker_child" in (file.parent / "cmdline").read_text():
                found.append(int(file.parent.name))
    return found


def test_callers_of_a_faulty_model_are_told_and_the_next_ones_answered(daemon: Daemon) -> None:
    expected = 2 * faulty.asking("good")["x"]
    with triton.InferenceServerClient(daemon.grpc) as client:
        for fault, words in (
            ("crashes", "refuses this input: its worker process died by SIGSEGV"),
            ("exits", "refuses this input: its worker process ended without an answer"),
            ("other shape", "answered garbage"),
            ("forks", "PermissionError"),
            ("hangs", "took longer than a run may"),
        ):
            while 'worker_spares{model="faulty",version="1"} 1.0' not in metrics(daemon):
                time.sleep(0.05)
            with pytest.raises(InferenceServerException, match=words):
                asked(client, fault)
            assert (asked(client, "good") == expected).all()
        config = client.get_model_config("faulty", as_json=True)["config"]
        assert config["parameters"]["isolated"]["string_value"] == "true"
    assert 'worker_ends_total{model="faulty",reason="overlong",version="1"} 1.0' in metrics(daemon)


def test_workers_end_with_a_killed_daemon(daemon: Daemon) -> None:
    with triton.InferenceServerClient(daemon.grpc) as client:
        assert asked(client, "good") is not None
        stopped = client.async_infer  # a run that hangs must not keep its worker
        x = faulty.asking("hangs")["x"]
        tensor = triton.InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        stopped("faulty", [tensor], callback=lambda result, error: None)
        found = workers(daemon.pid)
        assert found
        daemon.kill()
        end_s = time.monotonic() + WAIT_S
        while any(Path("/proc", str(pid)).exists() for pid in found):
            assert time.monotonic() < end_s
            time.sleep(0.01)
