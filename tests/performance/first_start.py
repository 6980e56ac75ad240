"""First and second start with equal small bare models: `python -m tests.performance.first_start [--models N]`.

Seconds until all of them are AVAILABLE, the processor time per model of the daemon and of everything that it started,
the most memory of its trial processes at one time, and the load of the machine. The second start has all verdicts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from tests.simulators import models
from tests.simulators.daemon import QUIET, SHIPPED, Daemon

NETWORK = SHIPPED / "meter-reader" / "1" / "onnx-fp32" / "model.onnx"
LIMIT_S = 600.0
SAMPLE_S = 0.05
KINDS = ("network", "onnx", "openvino", "litert")


def main() -> None:
    """Write the models, start, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--kind", choices=KINDS, default="network", help="network: a small convolutional ONNX network")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edge-gateway-first-") as name:
        folder = Path(name)
        for number in range(options.models):
            _write(folder / "models" / f"model-{number}", options.kind, folder)
        load = os.getloadavg()[0]
        daemon = Daemon(folder, models=folder / "models", config=f"{QUIET}[limits]\nnotify_within_s = {LIMIT_S}\n")
        began_s = time.monotonic()
        daemon.start(ready=False)
        most_bytes, most = 0, 0
        while "models in step" not in daemon.log:
            children = psutil.Process(daemon.pid).children(recursive=True)
            most, most_bytes = max(most, len(children)), max(most_bytes, sum(map(_private_bytes, children)))
            time.sleep(SAMPLE_S)
        took_s = time.monotonic() - began_s
        available = sum(line["event"] == "variant chosen" for line in daemon.lines())
        while psutil.Process(daemon.pid).children():  # their time counts when they have ended
            time.sleep(SAMPLE_S)
        times = psutil.Process(daemon.pid).cpu_times()
        own_s, children_s = times.user + times.system, times.children_user + times.children_system
        daemon.stop()
        began_s = time.monotonic()
        daemon.start(ready=False)
        daemon.wait_logged("models in step", LIMIT_S)
        again_s, cpu = time.monotonic() - began_s, psutil.Process(daemon.pid).cpu_times()
        daemon.stop()
        print(
            f"{options.models} models ({options.kind}), {available} serve after {took_s:.1f} s; CPU per model: "
            f"daemon {1000 * own_s / options.models:.0f} ms, processes {1000 * children_s / options.models:.0f} ms; "
            f"at most {most} processes with {most_bytes / 2**20:.0f} MiB of their own; load before {load:.1f}; "
            f"again after {again_s:.1f} s with {cpu.user + cpu.system:.1f} s of processor time"
        )


def _write(folder: Path, kind: str, scratch: Path) -> None:
    if kind == "network":
        folder.mkdir(parents=True)
        shutil.copy(NETWORK, folder / "model.onnx")
        return
    models.write_variant(scratch / "made", models.dense(), kind)
    folder.parent.mkdir(exist_ok=True)
    (scratch / "made" / kind).rename(folder)


def _private_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
