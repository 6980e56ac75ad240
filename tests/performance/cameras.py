"""A detector fed with a video: each form of frames, shared memory and bytes: `python -m tests.performance.cameras`.

The model is nudenet's (YOLOv8n, 320 × 320), which `make test-world` installs; the video is a photograph of scikit-image
that moves, 1280 × 720. Rounds of all rows alternate; each figure is the median of its rounds. `--rate max` shows what a
source could have at most; `30 per s` shows latencies where frames come as from a camera.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.simulators.camera_tools import infer
from tests.simulators.daemon import QUIET, ROOT, running
from tests.simulators.vision_models import write_yolov8

WORLD = ROOT / ".venv" / "world"
WIDTH, HEIGHT, PER_S = 1280, 720, 30
FORMS = {
    "jpeg": 'decode = ["jpeg"]',
    "nv12": f'decode = ["nv12"], frame = [{HEIGHT}, {WIDTH}]',
    "i420": f'decode = ["i420"], frame = [{HEIGHT}, {WIDTH}]',
}
CONFIG = QUIET + "[shared_memory]\nallowed = true\n"
RATES = ("max", str(PER_S))


def main() -> int:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=150)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        video = write_video(folder / "street.mp4", arguments.frames)
        for form in FORMS:
            write_model(folder / "models" / form / "1", form)
        print_table(measure(folder, video, arguments.rounds))
    return 0


def write_video(path: Path, count: int) -> Path:
    """Write a photograph that moves one pixel with each frame."""
    import av

    with Image.open(WORLD / "skimage" / "data" / "astronaut.png") as photograph:
        wide = np.asarray(photograph.convert("RGB").resize((WIDTH + count, HEIGHT)))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=PER_S)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(count):
            moved = np.ascontiguousarray(wide[:, number : number + WIDTH])
            frame = av.VideoFrame.from_ndarray(moved, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, PER_S)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_model(folder: Path, form: str) -> None:
    """Write a release of the detector that takes frames in one form."""
    labels = [f"class-{number}" for number in range(18)]
    write_yolov8(folder, (WORLD / "nudenet" / "320n.onnx").read_bytes(), labels, form=FORMS[form], side=320, boxes=2100)


def measure(folder: Path, video: Path, rounds: int) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Return the summaries of each row: form, transport, rate."""
    found = defaultdict(list)
    socket = f"unix:{folder / 'http.sock'}"
    with running(folder / "gateway", models=folder / "models", config=CONFIG, http=("127.0.0.1:0", socket)) as gateway:
        gateway.wait_logged("models in step", 300)
        urls = {"shared memory": socket, "bytes over TCP": gateway.http}
        rows = [(form, transport, rate) for rate in RATES for form in FORMS for transport in urls]
        for number in range(rounds):
            for row in rows:
                print(f"round {number + 1} of {rounds}: {', '.join(row)}", file=sys.stderr)
                form, transport, rate = row
                words = ("--video", video, "--rate", rate, "--url", urls[transport], "--output", "json")
                done = infer(form, *words)
                if done.returncode:
                    raise SystemExit(done.stderr)
                found[row].append(json.loads(done.stdout.splitlines()[-1])["summary"])
    return found


def print_table(found: dict[tuple[str, ...], list[dict[str, Any]]]) -> None:
    """Print the medians of the rounds."""
    print("| frames | way | rate | answered | prepare p50 | request p50 · p99 | whole p50 · p99 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (form, transport, rate), rounds in found.items():

        def ms(part: str, name: str, rounds: list[dict[str, Any]] = rounds) -> str:
            return f"{statistics.median(each['latency_ms'][part][name] for each in rounds):.1f}"

        per_s = statistics.median(each["per_s"]["answered"] for each in rounds)
        times = f"{ms('prepare', 'p50')} | {ms('request', 'p50')} · {ms('request', 'p99')}"
        whole = f"{ms('whole', 'p50')} · {ms('whole', 'p99')}" if rate != "max" else ""
        print(f"| {form} | {transport} | {rate} | {per_s:.1f}/s | {times} ms | {whole} |")


if __name__ == "__main__":
    raise SystemExit(main())
