"""What is measured: the gateway, a broker, and the bare loop, each a process pinned to a core."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
START_S, STOP_S = 30.0, 15.0
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
        shutil.copytree(ROOT / "models" / name, models / name)
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
    done = subprocess.run(_gateway(*command), cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return str(json.loads(done.stdout)["chosen"])


def bare_loop(models: Path, model: str, variant: str, seconds: int, core: int) -> dict[str, float]:
    """`session.run` on one row, over and over, in a process of its own."""
    command = [sys.executable, "-m", "tests.performance.bare", str(models), model, variant, str(seconds), str(core)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=seconds + 60)
    return dict(json.loads(done.stdout))


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Pinned:
    """A child on one core, terminated when the block ends."""

    def __init__(self, command: list[str], core: int | None, port: int, log: Path) -> None:
        began = time.monotonic()
        with log.open("wb") as output:
            self._child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._process = psutil.Process(self._child.pid)
        if core is not None:
            self._process.cpu_affinity([core])
        while not _answers(port):
            if self._child.poll() is not None or time.monotonic() - began > START_S:
                raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.002)
        self.ready_s = time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def cpu_s(self) -> float:
        """User and system time so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        """Resident memory now."""
        return float(self._process.memory_info().rss) / 2**20


class Gateway(Pinned):
    """`edge-gateway run`; ready once its HTTP port, opened last, accepts."""

    def __init__(self, folder: Path, models: Path, core: int, *, mqtt_port: int = 0, qos: int = 1) -> None:
        self.grpc_port, http = free_port(), free_port()
        config = folder / "bench.toml"
        config.write_text(ROUTE.format(qos=qos))
        options: list[Any] = ["--config", config, "--models", models, "--state", folder / "state"]
        options += ["--grpc", f"127.0.0.1:{self.grpc_port}", "--http", f"127.0.0.1:{http}"]
        options += ["--mqtt", f"mqtt://127.0.0.1:{mqtt_port}"] if mqtt_port else []
        super().__init__(_gateway("run", *map(str, options)), core, http, folder / "gateway.log")


class Broker(Pinned):
    """mosquitto, not pinned: it is neither the gateway nor the load."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        config = folder / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"
        )
        program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        super().__init__([program, "-c", str(config)], None, self.port, folder / "mosquitto.log")


def golden(model: str) -> dict[str, Any]:
    """The golden set of a shipped model."""
    with np.load(ROOT / "models" / model / "1" / "golden.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def _gateway(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *arguments]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
