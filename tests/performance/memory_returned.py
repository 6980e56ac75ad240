"""Memory of a daemon before, during and after large work: `python -m tests.performance.memory_returned [--large]`.

For each case: resident MiB before, the peak, and 5 s after. `--large` adds answers of 1.5 GB and above 4 GiB, which
take 5 GiB of memory for some seconds. mosquitto must be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tritonclient.utils import InferenceServerException

from gateway.serving.frontends.mqtt.journal.journal import FILE
from tests.simulators.broker import Mosquitto
from tests.simulators.camera_tools import infer, write_video
from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon, copy_model, running
from tests.system.serving.test_answer_memory import (
    JOURNAL_SAMPLES,
    JOURNALED,
    answered,
    journal,
    pictures,
    send_gzip,
    write_zeros,
    zeros,
)
from tests.system.serving.test_tasks import write_detector

AFTER_S = 5.0
ABOVE_4_GIB = 2**30 + 2**20
CALLS = 20
VIDEO_FRAMES = 60
REFUSED = (InferenceServerException, urllib.error.HTTPError)
Work = Callable[[Daemon], object]


def status_mib(daemon: Daemon, key: str) -> int:
    """Return a size of the process, in MiB."""
    lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(f"{key}:"))


def measure(daemon: Daemon, name: str, work: Work) -> None:
    """Print the line of one case."""
    time.sleep(AFTER_S)
    before = status_mib(daemon, "VmRSS")
    Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")  # the peak begins again (proc(5))
    with contextlib.suppress(*REFUSED if "above" in name else ()):
        work(daemon)
    time.sleep(AFTER_S)
    row(name, before, status_mib(daemon, "VmHWM"), status_mib(daemon, "VmRSS"))


def row(name: str, before: int, peak: int, after: int) -> None:
    """Print one line of the table."""
    print(f"{name:42} {before:8} {peak:8} {after:8} {after / before - 1:+8.0%}", flush=True)


def over_http(daemon: Daemon, count: int, *, binary: bool) -> None:
    """Ask for so many zeros over HTTP."""
    output = {"name": "y", "parameters": {"binary_data": binary}}
    body = {"inputs": [{"name": "shape", "datatype": "INT64", "shape": [1], "data": [count]}], "outputs": [output]}
    sent = urllib.request.Request(f"http://{daemon.http}/v2/models/zeros/infer", json.dumps(body).encode())
    with urllib.request.urlopen(sent) as answer:  # noqa: S310 - the daemon's own address
        answer.read()


def over_mqtt(broker: Mosquitto, count: int) -> None:
    """Ask CALLS times for so many zeros over MQTT."""
    given = {"inputs": [{"name": "shape", "datatype": "INT64", "shape": [1], "data": [count]}]}
    to = [
        "-h",
        "127.0.0.1",
        "-p",
        str(broker.port),
        "-V",
        "5",
        "-t",
        "edge/bench/infer/zeros",
        "-e",
        "reply",
        "-W",
        "15",
    ]
    for _ in range(CALLS):
        answer = subprocess.run(
            [shutil.which("mosquitto_rr") or "", *to, "-m", json.dumps(given)], check=True, capture_output=True
        )
        assert len(answer.stdout) > count, answer.stdout[:300]


def over_video(daemon: Daemon, video: Path) -> None:
    """Send the frames of a video."""
    done = infer("street", "--video", video, "--rate", "max", "--output", "json", "--url", f"http://{daemon.http}")
    assert done.stdout.count("\n") > VIDEO_FRAMES, done.stderr


def journals(folder: Path, broker: Mosquitto) -> None:
    """Print the memory of starts without a journal and with one of 1.7 MB."""
    sizes = []
    for count in (0, 0, JOURNAL_SAMPLES[1]):  # the first start runs the trials
        state = folder / "state"
        state.mkdir(exist_ok=True)
        (state / FILE).write_bytes(journal(count))
        with running(folder / "journal", state=state, config=JOURNALED, mqtt=broker.url) as daemon:
            while count and answered(daemon) < count - 20 * 99:
                time.sleep(0.1)
            time.sleep(AFTER_S)
            sizes.append((status_mib(daemon, "VmHWM"), status_mib(daemon, "VmRSS")))
    row("start: no journal, a journal of 1.7 MB", sizes[1][1], *sizes[2])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="answers of 1.5 GB and above 4 GiB too")
    large = parser.parse_args().large
    print(f"{'MiB':42} {'before':>8} {'peak':>8} {'5 s after':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "broker").mkdir()
        broker = Mosquitto(folder / "broker")
        asyncio.run(broker.start())
        write_zeros(folder / "models")
        copy_model("meter-reader", folder / "models")
        write_detector(folder / "models" / "street" / "1")
        video = write_video(folder / "street.mp4", VIDEO_FRAMES, size=(1280, 720))
        config = f'{QUIET}{SHORT_TRIALS}[gateway]\nid = "bench"\n'
        cases: dict[str, Work] = {
            "gRPC, answer of 200 MB": lambda daemon: zeros(daemon, 50_000_000),
            "HTTP, answer of 40 MB in binary": lambda daemon: over_http(daemon, 10_000_000, binary=True),
            "HTTP, answer of 2 MB in JSON": lambda daemon: over_http(daemon, 500_000, binary=False),
            f"MQTT, {CALLS} answers of 2 MB in JSON": lambda _: over_mqtt(broker, 500_000),
            "8 images of 16 megapixels": lambda daemon: pictures(daemon, 4000),
            f"infer --video, {VIDEO_FRAMES} frames of 720p": lambda daemon: over_video(daemon, video),
        }
        if large:
            cases |= {
                "gRPC, answer of 1.5 GB": lambda daemon: zeros(daemon, 375_000_000),
                "gRPC, answer above 4 GiB": lambda daemon: zeros(daemon, ABOVE_4_GIB),
                "HTTP, answer above 4 GiB in binary": lambda daemon: over_http(daemon, ABOVE_4_GIB, binary=True),
                "HTTP, answer above 4 GiB in JSON": lambda daemon: over_http(daemon, ABOVE_4_GIB, binary=False),
            }
        try:
            with running(folder / "work", models=folder / "models", config=config, mqtt=broker.url) as daemon:
                zeros(daemon, 1)
                pictures(daemon, 64)
                for case, work in cases.items():
                    measure(daemon, case, work)
            small = config + "memory_mib = 256\n"
            with running(folder / "small", models=folder / "models", config=small) as daemon:
                measure(daemon, "24 gzip messages of 60 MiB, memory_mib 256", send_gzip)
            journals(folder, broker)
        finally:
            asyncio.run(broker.kill())


if __name__ == "__main__":
    main()
