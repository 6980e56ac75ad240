"""PyAV and a server of RTSP, which `make` installs apart, the command that finds them, and videos made with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from tests.simulators.daemon import COMMAND, ROOT

FOLDER = ROOT / ".venv" / "camera"
sys.path.append(str(FOLDER))  # behind all packages of the tests


def environment() -> Mapping[str, str]:
    """Return our environment with PyAV behind the packages of the gateway."""
    return {**os.environ, "PYTHONPATH": str(FOLDER)}


def infer(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `edge-gateway infer` where PyAV is installed."""
    words = [*COMMAND, "infer", *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, **options)


@contextmanager
def started_infer(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Lend `edge-gateway infer`, whose standard output is read line by line; it is killed at the end.

    It takes SIGHUP as from a terminal, also where the tests run without one (nohup).
    """
    words = ["env", "--default-signal=HUP", *COMMAND, "infer", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def pixels(number: int, width: int, height: int) -> np.ndarray[Any, Any]:
    """Return frame `number` of a video: gray, as bright as its number, so that a model can read it."""
    return np.full((height, width, 3), 2 * (number % 128), np.uint8)


def encoded(count: int, rate: int, width: int, height: int) -> Iterator[Any]:
    """Yield packets of H.264 with `count` frames."""
    import av

    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt = width, height, "yuv420p"
    codec.time_base, codec.framerate = Fraction(1, rate), rate
    codec.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "10"}
    for number in range(count):
        frame = av.VideoFrame.from_ndarray(pixels(number, width, height), format="rgb24")
        frame = frame.reformat(format="yuv420p")
        frame.pts, frame.time_base = number, Fraction(1, rate)
        yield from codec.encode(frame)
    yield from codec.encode(None)


def write_video(path: Path, count: int = 20, rate: int = 30, size: tuple[int, int] = (128, 64)) -> Path:
    """Write a video of `count` frames; `size` is (width, height)."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.options = {"preset": "ultrafast", "crf": "10"}
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(pixels(number, *size), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_spoilt(path: Path, count: int, spoilt: set[int]) -> None:
    """Write JPEG frames into a video, and zeros in place of those in `spoilt`."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuvj420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(pixels(number, 64, 32), format="rgb24")
            for packet in stream.encode(frame.reformat(format="yuvj420p")):
                sent = av.Packet(bytes(1000)) if number in spoilt else packet
                sent.stream, sent.pts, sent.dts, sent.time_base = stream, number, number, packet.time_base
                container.mux(sent)
