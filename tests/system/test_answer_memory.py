"""Memory of a daemon after large work: it comes back, and answers above protobuf's bound are refused."""

from __future__ import annotations

import io
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import tritonclient.grpc as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import Daemon, copy_model, running

LIMIT_S = 60.0
SHARE = 1.3
"""Memory of the daemon afterwards, as a part of what it had before. Threads and later trials take a tenth meanwhile."""
TIMES = 6
"""After three long runs the model's own thread runs it, which holds memory of its own."""
FLOATS = 50_000_000
"""Zeros of 200 MB."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon with a model whose caller chooses the size of the answer, and one that takes pictures."""
    folder = tmp_path_factory.mktemp("large")
    version = folder / "models" / "zeros" / "1"
    version.mkdir(parents=True)
    graph = "(int64[1] shape) => (float[m] y) { y = ConstantOfShape(shape) }"
    text = f'<ir_version: 8, opset_import: ["": 17]> g {graph}'
    (version / "model.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    copy_model("meter-reader", folder / "models")
    with running(folder, models=folder / "models") as started:
        zeros(started, 1)
        pictures(started, 64)
        yield started


def resident_bytes(daemon: Daemon) -> int:
    (line,) = (line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if line[:5] == "VmRSS")
    return int(line.split()[1]) << 10


def zeros(daemon: Daemon, count: int) -> None:
    with triton.InferenceServerClient(daemon.grpc, channel_args=[("grpc.max_receive_message_length", -1)]) as client:
        shape = triton.InferInput("shape", [1], "INT64")
        shape.set_data_from_numpy(np.array([count]))
        assert client.infer("zeros", [shape]).as_numpy("y").shape == (count,)


def pictures(daemon: Daemon, side: int) -> None:
    """Send eight pictures at once, small as files and large in memory."""
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "PNG")

    def send(_: int) -> None:
        with triton.InferenceServerClient(daemon.grpc) as client:
            picture = triton.InferInput("image", [1], "BYTES")
            picture.set_data_from_numpy(np.array([file.getvalue()], object))
            client.infer("meter-reader", [picture])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(8)))


@pytest.mark.parametrize(("work", "size"), [(zeros, FLOATS), (pictures, 4000)])
def test_memory_comes_back(daemon: Daemon, work: Callable[[Daemon, int], None], size: int) -> None:
    before = resident_bytes(daemon)
    for _ in range(TIMES):
        work(daemon, size)
    ends_s = time.monotonic() + LIMIT_S
    while resident_bytes(daemon) > SHARE * before:
        assert time.monotonic() < ends_s, f"{resident_bytes(daemon) >> 20} MiB after {before >> 20} MiB"
        select.select([], [], [], 0.1)  # poll: memory that is returned sends no event


@pytest.mark.long
def test_an_answer_of_unknown_size_above_the_bound_is_refused(daemon: Daemon) -> None:
    with pytest.raises(InferenceServerException, match="at most 2147483647 are sent") as refused:
        zeros(daemon, 2**29 + 1)
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
