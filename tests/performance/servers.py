"""What is measured: the gateway, a broker, and the bare loop, each a process pinned to a core."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import psutil

from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import COMMAND, ROOT, SHIPPED, Daemon

ROUTE = """
[gateway]
id = "bench"
[selection]
idle_before_trial_s = 3600.0
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
model = "activity"
hop_rows = 100
qos = {qos}
"""


def model_directory(folder: Path) -> Path:
    """The two shipped models and `tiny`, a bare 16 → 4 dense network."""
    models = folder / "models"
    for name in ("meter-reader", "activity"):
        shutil.copytree(SHIPPED / name, models / name)
    (models / "tiny").mkdir()
    (models / "tiny" / "model.onnx").write_bytes(_dense(16, 4))
    return models


def _dense(width: int, classes: int) -> bytes:
    """x [rows, width] → y [rows, classes], one Gemm."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.linspace(-1, 1, width * classes, dtype=np.float32).reshape(width, classes)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", classes])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.zeros(classes, np.float32), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def chosen_variant(models: Path, state: Path, model: str) -> str:
    """Try every variant here (verdicts are kept in `state`), and say which one serves."""
    command = ["explain", model, "--models", str(models), "--state", str(state), "--json"]
    done = subprocess.run([*COMMAND, *command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return str(json.loads(done.stdout)["chosen"])


def bare_loop(models: Path, model: str, variant: str, seconds: int, core: int) -> dict[str, float]:
    """`session.run` on one row, over and over, in a process of its own."""
    command = [sys.executable, "-m", "tests.performance.bare", str(models), model, variant, str(seconds), str(core)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=seconds + 60)
    return dict(json.loads(done.stdout))


class Gateway:
    """The daemon on one core, ready; its costs so far. Ends when the block ends."""

    def __init__(self, folder: Path, models: Path, core: int, *, mqtt: str = "off", qos: int = 1) -> None:
        command = ("taskset", "--cpu-list", str(core), *COMMAND)
        config = ROUTE.format(qos=qos)
        began_s = time.monotonic()
        self._daemon = Daemon(
            folder, models=models, state=folder / "state", config=config, mqtt=mqtt, command=command
        ).start()
        self.ready_s = time.monotonic() - began_s
        self.grpc_port = int(self._daemon.grpc.rpartition(":")[2])
        self._process = psutil.Process(self._daemon.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._daemon.stop()

    def cpu_s(self) -> float:
        """User and system time so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        """Resident memory now."""
        return float(self._process.memory_info().rss) / 2**20


@contextmanager
def broker(folder: Path) -> Iterator[Mosquitto]:
    """mosquitto, not pinned: it is neither the gateway nor the load."""
    with asyncio.Runner() as runner:
        started = Mosquitto(folder, "max_queued_messages 0\nautosave_on_changes false")
        runner.run(started.start())
        try:
            yield started
        finally:
            runner.run(started.stop())


def golden(model: str) -> dict[str, Any]:
    """The golden set of a shipped model."""
    with np.load(SHIPPED / model / "1" / "golden.npz", allow_pickle=False) as arrays:
        return dict(arrays)
