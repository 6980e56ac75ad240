"""Memory of a daemon after large work: it comes back, and answers above protobuf's bound are refused."""

from __future__ import annotations

import io
import re
import select
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import onnx.parser
import pytest
import tritonclient.grpc as triton
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.serving.frontends.mqtt.journal.journal import FILE
from gateway.serving.frontends.mqtt.journal.records import SampleRecord, framed
from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon, copy_model, running

LIMIT_S = 150.0
"""Time that a machine under load may take for 21,400 samples, or to give memory back."""
SHARE = 1.3
"""Memory of the daemon afterwards, as a part of what it had before. Threads and later trials take a tenth meanwhile."""
TIMES = 6
"""After three long runs the model's own thread runs it, which holds memory of its own."""
JOURNAL_SAMPLES = 2_100, 21_400
"""Samples of a short journal, and of one of 1.7 MB. All windows of the long one at once took 91 MiB more."""
JOURNALED = f"""{QUIET}{SHORT_TRIALS}
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
content_type = "application/json"
model = "activity"
hop_rows = 1
"""
PICTURE_BYTES = 48_000_000
"""One picture in memory: on a busy machine, one run of 7 kept it after large answers (decision 0062)."""
FLOATS = 50_000_000
"""Zeros of 200 MB."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon with a model whose caller chooses the size of the answer, and one that takes pictures."""
    folder = tmp_path_factory.mktemp("large")
    write_zeros(folder / "models")
    copy_model("meter-reader", folder / "models")
    with running(folder, models=folder / "models") as started:
        zeros(started, 1)
        pictures(started, 64)
        yield started


def write_zeros(models: Path) -> None:
    """Write a model whose caller chooses the size of the answer."""
    version = models / "zeros" / "1"
    version.mkdir(parents=True)
    graph = "(int64[1] shape) => (float[m] y) { y = ConstantOfShape(shape) }"
    text = f'<ir_version: 8, opset_import: ["": 17]> g {graph}'
    (version / "model.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())


def resident_bytes(daemon: Daemon) -> int:
    (line,) = (line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if line[:5] == "VmRSS")
    return int(line.split()[1]) << 10


def answered(daemon: Daemon) -> int:
    """Return the number of results that were sent over MQTT."""
    with urllib.request.urlopen(f"http://{daemon.http}/metrics") as page:
        found = re.search(r'mqtt_events_total\{.*event="answered"\} (\d+)', page.read().decode())
    return int(found[1]) if found else 0


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
        list(threads.map(send, range(4)))


@pytest.mark.parametrize(
    ("work", "size", "kept_bytes"),
    [(zeros, FLOATS, 0), pytest.param(pictures, 4000, PICTURE_BYTES, marks=pytest.mark.long)],
)
def test_memory_comes_back(daemon: Daemon, work: Callable[[Daemon, int], None], size: int, kept_bytes: int) -> None:
    limit_bytes = SHARE * (before := resident_bytes(daemon)) + kept_bytes
    for _ in range(TIMES):
        work(daemon, size)
    ends_s = time.monotonic() + LIMIT_S
    while resident_bytes(daemon) > limit_bytes:
        assert time.monotonic() < ends_s, f"{resident_bytes(daemon) >> 20} MiB after {before >> 20} MiB"
        select.select([], [], [], 0.1)  # poll: memory that is returned sends no event


def journal(count: int) -> bytes:
    """Return so many samples of 20 sensors: each from the hundredth on completes a window."""
    rows = np.zeros(6, np.float32).tobytes()
    samples = (
        SampleRecord("wrists", f"s-{n % 20}", n.to_bytes(8, "big"), 10**18 + n, 10**12 + n, 6, rows)
        for n in range(count)
    )
    return b"".join(map(framed, samples))


@pytest.mark.timeout(420)
def test_memory_after_a_long_journal_is_as_after_a_short_one(broker: Mosquitto, tmp_path: Path, state: Path) -> None:
    kept = shutil.copytree(state, tmp_path / "state")
    short = 0
    for samples in JOURNAL_SAMPLES:
        (kept / FILE).write_bytes(journal(samples))
        with running(tmp_path / "gateway", state=kept, config=JOURNALED, mqtt=broker.url) as daemon:
            ends_s = time.monotonic() + LIMIT_S
            while answered(daemon) < samples - 20 * 99 or (short and resident_bytes(daemon) > SHARE * short):
                assert time.monotonic() < ends_s, (
                    f"{resident_bytes(daemon) >> 20} MiB, {short >> 20} after the short one"
                )
                select.select([], [], [], 0.1)  # poll: memory that is returned sends no event
            short = resident_bytes(daemon)


def send_gzip(daemon: Daemon) -> set[tuple[grpc.StatusCode, str]]:
    """Send four gzip messages of 200 MiB, two at once. Return the refusals."""
    floats = 50 << 20
    request = service_pb2.ModelInferRequest(model_name="meter-reader", raw_input_contents=[bytes(4 * floats)])
    request.inputs.add(name="image", datatype="FP32", shape=[1, floats])

    def send(_: int) -> tuple[grpc.StatusCode, str]:
        with grpc.insecure_channel(daemon.grpc, [("grpc.max_send_message_length", -1)]) as channel:
            infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            with pytest.raises(grpc.RpcError) as refused:
                infer(request, compression=grpc.Compression.Gzip, timeout=LIMIT_S)
            return refused.value.code(), refused.value.details()

    with ThreadPoolExecutor(2) as threads:
        return set(threads.map(send, range(4)))


def test_gzip_messages_at_the_memory_limit_are_refused(tmp_path: Path, state: Path) -> None:
    # A daemon without work has more than 100 MiB of data: no message of 200 MiB fits, however few are in progress.
    bounds = "[grpc]\nmax_message_bytes = 268_435_456\nmax_receiving_bytes = 1_073_741_824\n"
    config = f"{QUIET}{SHORT_TRIALS}[gateway]\nmemory_mib = 256\n{bounds}"
    with running(tmp_path, state=state, config=config) as daemon:
        refusals = send_gzip(daemon)
        said = "the device lacks the memory for this message or its answer"
        assert {(code, words.startswith(said)) for code, words in refusals} == {
            (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        }
        assert sum("lacked memory" in line["event"] for line in daemon.lines()) <= 5


@pytest.mark.long
def test_an_answer_of_unknown_size_above_the_bound_is_refused(daemon: Daemon) -> None:
    with pytest.raises(InferenceServerException, match="at most 2147483647 are sent") as refused:
        zeros(daemon, 2**29 + 1)
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
