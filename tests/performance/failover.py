"""What cameras lose while an accelerator fails: frames, and the longest time without an answer.

`python tests/performance/failover.py [FRAMES_PER_S] [FALLBACK…]` runs a gateway with a simulated accelerator, four
cameras over gRPC, each a process that asks for FRAMES_PER_S (250) frames a second at most, and prints a row for each
failure and each FALLBACK (variants of `activity` on the CPU).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.simulators import accelerator  # noqa: E402
from tests.simulators.accelerator import Device  # noqa: E402
from tests.simulators.daemon import SHORT_TRIALS, Daemon, golden, running  # noqa: E402
from tests.simulators.runtime_only import interpreter  # noqa: E402

COMMAND = (interpreter(), "-m", "tests.simulators.accelerator")
UNDER_WAY = 32
"""Frames of a camera that are under way; it skips others. The gateway gives one caller 256 calls."""
FIRST = 100
"""Answers after which a camera says that it runs."""
RUN_LIMIT_S, CAMERAS, BEFORE_S, AFTER_S = 1.0, 4, 1.0, 2.0
CONFIG = (
    f"[selection]\nidle_before_trial_s = 0.0\n{SHORT_TRIALS}[failover]\nretry_s = 1.0\n"
    f"[limits]\nrun_limit_s = {RUN_LIMIT_S}\n"
)


def camera(address: str, frames_per_s: float) -> None:
    """Ask until stdin is closed; print sent, answered and failed frames, and the longest time between two answers."""
    import threading

    import tritonclient.grpc as triton

    rows, over = golden("activity", 1).rows, threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    tensor = triton.InferInput("motion", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    sent, skipped, answered, failed, gaps, last = 0, 0, 0, list[str](), [0.0], time.monotonic()
    begun, lock = False, threading.Lock()

    def take(result: object, error: Exception | None) -> None:
        nonlocal answered, last
        with lock:
            if error is not None:
                failed.append(str(error)[:200])
                return
            now = time.monotonic()
            gaps.append(now - last)
            answered, last = answered + 1, now

    with triton.InferenceServerClient(address) as client:
        client.infer("activity", [tensor])
        last = due = time.monotonic()
        while not over.is_set():
            if sent - answered - len(failed) < UNDER_WAY:
                client.async_infer("activity", [tensor], take)
                sent += 1
            else:
                skipped += 1
            if not begun and answered > FIRST:
                begun = True
                print("begun", flush=True)
            due += 1 / frames_per_s
            time.sleep(max(0.0, due - time.monotonic()))
        while answered + len(failed) < sent:
            time.sleep(0.01)
    counted = {"sent": sent, "skipped": skipped, "answered": answered, "failed": failed}
    print(json.dumps({**counted, "gap_ms": 1000 * max(gaps)}))


def measured(daemon: Daemon, device: Device, deed: str | None, frames_per_s: float) -> None:
    """Let the device fail while cameras ask, and come back."""
    before = daemon.log.count('"failed over"')
    command = [sys.executable, __file__, "camera", daemon.grpc, str(frames_per_s)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    cameras = [subprocess.Popen(command, **pipes) for _ in range(CAMERAS)]  # type: ignore[call-overload]
    for each in cameras:
        assert each.stdout is not None
        each.stdout.readline()
    time.sleep(BEFORE_S)
    device.pull() if deed is None else device.does(deed)
    while daemon.log.count('"failed over"') == before:
        time.sleep(0.01)
    time.sleep(AFTER_S)
    device.does()
    while index(daemon):
        time.sleep(0.1)
    time.sleep(1.0)
    counted = [json.loads(each.communicate("")[0]) for each in cameras]
    over = [line for line in daemon.lines() if line["event"] == "failed over"][-1]
    sent, lost = sum(each["sent"] for each in counted), [len(each["failed"]) for each in counted]
    gap_ms = max(each["gap_ms"] for each in counted)
    what = "pulled" if deed is None else deed
    skipped, waited = sum(each["skipped"] for each in counted), over["requests"]
    then = f"{over['variant']} after {over['took_ms']} ms"
    print(f"| {what} | {then} | {sent} | {lost} | {skipped} | {waited} | {gap_ms:.0f} |", flush=True)
    assert all(each["sent"] == each["answered"] + len(each["failed"]) for each in counted)


def index(daemon: Daemon) -> str:
    """Return why the model is degraded, or ""."""
    import tritonclient.grpc as triton

    with triton.InferenceServerClient(daemon.grpc) as client:
        return str(client.get_model_repository_index().models[0].reason)


def main(frames_per_s: float, fallbacks: list[str]) -> None:
    print("| failure | next candidate | frames sent | lost by camera | skipped | waited | longest gap, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for fallback in fallbacks:
        for deed in (None, "status 26", "nan", "hang"):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                device = Device(folder / "dev/hailo0")
                device.does()
                accelerator.model(folder / "models", fallback)
                options = {"models": folder / "models", "command": COMMAND, "environ": device.environ}
                with running(folder / "gateway", config=CONFIG, **options) as daemon:
                    daemon.wait_logged("trial finished", variant=fallback)
                    daemon.wait_logged("variant chosen", variant="chip")
                    measured(daemon, device, deed, frames_per_s)


if __name__ == "__main__":
    if sys.argv[1:2] == ["camera"]:
        camera(sys.argv[2], float(sys.argv[3]))
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else 250.0, sys.argv[2:] or ["openvino-fp16", "reference"])
