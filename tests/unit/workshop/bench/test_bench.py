"""Parts of `edge-gateway bench` that decide on values: figures, histograms, plots, cores, bodies, inputs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.store.library import scan_model
from gateway.workshop.bench.bodies import (
    REGION,
    BenchModel,
    binary_body,
    grpc_message,
    http_request,
    json_body,
    region_body,
    region_content,
)
from gateway.workshop.bench.figures import BenchFigures, common_edges, counts, document, figures, plot, time_text
from gateway.workshop.bench.grpc_connection import GrpcLoadConnection
from gateway.workshop.bench.http_connection import HttpLoadConnection, LoadError
from gateway.workshop.bench.inputs import accepted, described
from gateway.workshop.bench.measurement import BenchResult, CoreSplit, pinned, split_cores
from gateway.workshop.bench.mqtt_connection import MqttLoadConnection
from gateway.workshop.bench.served import link_release
from gateway.workshop.cli.bench import BLOCKS, bars, histograms, remarks, result_json
from tests.simulators.bad_server import BadServer, Behaviour, answer, say, serve
from tests.simulators.daemon import SHIPPED

LAPS = st.lists(st.integers(1, 10**12), min_size=1, max_size=50)
TENSORS = {"a": Tensor(Datatype.FP32, np.ones((1, 2), np.float32)), "b": Tensor(Datatype.INT64, np.zeros(3, np.int64))}


def measured(*laps_ns: int, name: str = "http", connections: int = 1) -> BenchFigures:
    return figures(name, connections, laps_ns or (1000,), 2.0, 0.5)


def test_figures() -> None:
    found = figures("grpc", 8, [1000, 2000, 3000, 4000], 2.0, 0.004)
    assert (found.requests, found.per_s, found.p50_us, found.cpu_us) == (4, 2.0, 2.5, 1000.0)
    assert (found.label, figures("x", 1, [1], 1.0, None).cpu_us) == ("grpc ×8", None)
    with pytest.raises(ValueError, match="more --seconds"):
        figures("grpc", 1, [], 1.0, None)


@given(st.lists(LAPS, min_size=1, max_size=4), st.integers(2, 40))
def test_no_request_is_lost_in_a_histogram(laps: list[list[int]], buckets: int) -> None:
    found = [measured(*each) for each in laps]
    edges = common_edges(found, buckets)
    assert len(edges) == buckets + 1
    assert (np.diff(edges) > 0).all()
    assert [sum(counts(each, edges)) for each in found] == [len(each) for each in laps]
    json.dumps([document(each, edges) for each in found], allow_nan=False)


@given(st.lists(LAPS, min_size=1, max_size=4))
def test_plots_are_xml_and_rows_are_alike(laps: list[list[int]]) -> None:
    found = [measured(*each, name=f"<{index}&", connections=index + 1) for index, each in enumerate(laps)]
    tree = ET.fromstring(plot('a "model" <1>', found, 32))  # noqa: S314  made here
    rects = tree.findall("{http://www.w3.org/2000/svg}rect")
    assert len(rects) == 1 + 32 * len(found)
    assert all(float(rect.get("height", "-1")) >= 0 for rect in rects)
    lines = histograms(found, 32)
    assert len({len(line) for line in lines[:-1]}) == 1


def test_bars() -> None:
    assert bars([0, 1, 500, 1000]) == " ▁▄█"
    assert bars([1]) == BLOCKS[-1]
    assert [time_text(value) for value in (12.345, 12_345.0, 12_345_678.0)] == ["12.3 µs", "12.3 ms", "12.3 s"]


@pytest.mark.parametrize(
    ("cores", "split"),
    [({0}, CoreSplit((0,), (0,))), ({3, 1}, CoreSplit((1,), (3,))), ({0, 1, 2, 3}, CoreSplit((0, 1, 2), (3,)))],
)
def test_load_and_server_are_apart_where_there_are_cores(cores: set[int], split: CoreSplit) -> None:
    assert split_cores(cores) == split
    assert split.is_apart == (len(cores) > 1)


def test_cores_are_given_back() -> None:
    import os

    before = os.sched_getaffinity(0)
    with pinned(sorted(before)[:1]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_remarks_say_what_the_figures_do_not_tell() -> None:
    result = BenchResult([measured(name="shm")])
    notes = " ".join(remarks(result, CoreSplit((0,), (0,)), here=True))
    assert "share one core" in notes
    assert "answers come over HTTP" in notes
    busy = BenchResult([measured()], disturbed={"http ×1": "load 9"})
    assert "http ×1: measured while the machine was busy (load 9)" in remarks(busy, CoreSplit((0,), (1,)), here=True)
    assert result_json(busy, [], 8)["disturbed"] == {"http ×1": "load 9"}
    assert "did not start" in remarks(BenchResult([measured()]), CoreSplit((0,), (1,)), here=False)[0]
    assert json.loads(json.dumps(result_json(result, ["n"], 8)))["notes"] == ["n"]


def test_bodies() -> None:
    body, headers = binary_body(TENSORS)
    length = int(dict(headers)["Inference-Header-Content-Length"])
    assert json.loads(body[:length])["inputs"][0]["shape"] == [1, 2]
    assert body[length:] == region_content(TENSORS)
    places = [each["parameters"] for each in json.loads(region_body(TENSORS)[0])["inputs"]]
    assert [place["shared_memory_offset"] for place in places] == [0, 8]
    assert {place["shared_memory_region"] for place in places} == {REGION}
    framed = grpc_message(BenchModel("m", "1"), TENSORS)
    assert int.from_bytes(framed[1:5], "big") == len(framed) - 5
    made = message("inference.ModelInferRequest").FromString(framed[5:])
    assert (made.model_name, [each.name for each in made.inputs]) == ("m", ["a", "b"])
    assert BenchModel("a b", "1/2").path == "/v2/models/a%20b/versions/1%2F2"
    assert http_request("POST", "/x", "h", b"body", [("A", "b")]).endswith(b"Content-Length: 4\r\nA: b\r\n\r\nbody")


def test_inputs_are_those_that_the_gateway_accepts() -> None:
    spec = {"name": "x", "datatype": "FP32", "shape": [-1, -1]}
    manifest = described("m", "1", {"inputs": [spec], "outputs": [spec]})
    asked: list[tuple[int, ...]] = []

    def picky(tensors: Mapping[str, Tensor]) -> None:
        asked.append(tensors["x"].array.shape)
        if len(asked) < 3:
            raise LoadError("wrong shape")

    assert accepted(manifest, picky, 5)["x"].array.shape == asked[2]
    asked.clear()
    with pytest.raises(ConfigurationError, match="wrong shape"):
        accepted(manifest, picky, 2)


@pytest.mark.parametrize("kind", ["release", "folder", "file"])
def test_only_the_release_is_served(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"
    if kind == "release":
        monkeypatch.chdir(SHIPPED.parent)
        models, name = Path(SHIPPED.name), "activity"
    else:
        name, place = "wrist", models / ("wrist" if kind == "folder" else ".")
        place.mkdir(parents=True)
        content = (SHIPPED / "activity/1/onnx-fp32/model.onnx").read_bytes()
        (place / ("model.onnx" if kind == "folder" else "wrist.onnx")).write_bytes(content)
        (models / "other.onnx").write_bytes(content)
    (release,) = scan_model(models, name)
    link_release(release, tmp_path / "linked")
    (found,) = scan_model(tmp_path / "linked", name)
    assert (found.problem, found.name, found.version) == ("", release.name, release.version)
    assert [path.name for path in (tmp_path / "linked").iterdir()] == [name]


def exchange(behaviour: Behaviour) -> bytes:
    with BadServer([behaviour]).running() as server:
        host, _, port = server.url.split("/")[2].partition(":")
        connection = HttpLoadConnection((host, int(port)), http_request("GET", "/", host, b""), 0.5, 1000)
        try:
            return connection.exchange()
        finally:
            connection.close()


def test_an_answer_over_http() -> None:
    assert exchange(serve(b"answer")) == b"answer"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (answer("503 Busy", body=b"too much"), "503: too much"),
        (say(b""), "closed the connection"),
        (say(b"HTTP/1.1 200 OK\r\n\r\n"), "no length"),
        (say(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"), "no length"),
        (say(b"\r\n\r\n"), "no length"),
        (lambda exchange: exchange.rest(2), "in time"),
    ],
)
def test_what_is_no_answer_over_http(behaviour: Behaviour, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        exchange(behaviour)


@contextmanager
def peer(*pieces: bytes, begins: bytes = b"/inference.") -> Iterator[tuple[str, int]]:
    """Run a server that sends the first piece at once, and the others after a call has begun."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            with listener.accept()[0] as connection:
                came = b""
                connection.sendall(b"".join(pieces[:1]))
                if pieces[1:]:
                    while begins not in came and (more := connection.recv(65_536)):
                        came += more
                connection.sendall(b"".join(pieces[1:]))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            thread.join()


SETTINGS = bytes.fromhex("000000 04 00 00000000")
PING = bytes.fromhex("000008 06 00 00000000 0102030405060708")
TRAILERS_ONLY = bytes.fromhex("00000f 01 05 00000001") + b"\x00\x0bgrpc-status\x01"


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((SETTINGS,), "closed the connection"),
        ((), "closed the connection"),
        ((SETTINGS, PING, TRAILERS_ONLY + b"8"), "refused a call: status b'8'"),
        ((SETTINGS, bytes.fromhex("000004 03 00 00000001 00000007")), "ended the call"),
        ((SETTINGS, bytes.fromhex("000008 07 00 00000000 0000000000000002")), "ended the call"),
    ],
)
def test_what_is_no_answer_over_grpc(pieces: tuple[bytes, ...], words: str) -> None:
    with peer(*pieces) as address, pytest.raises(LoadError, match=words):
        ended(address)


def test_an_answer_over_grpc() -> None:
    with peer(SETTINGS, PING, TRAILERS_ONLY + b"0") as address:
        ended(address)


CONNACK, SUBACK = b"\x20\x02\0\0", b"\x90\x03\0\x01\0"
REPLY = b"\0\x01r"


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((b"\x20\x02\0\x05",), "without a name and password"),
        ((CONNACK + b"\x90\x03\0\x01\x80",), "refuses the subscription"),
        ((CONNACK,), "closed the connection"),
        ((CONNACK + b"\x20\x7f",), "closed the connection"),
        ((b"\x20\xff\xff\xff\xff\xff",), "cannot be understood"),
        ((CONNACK + SUBACK, b"\x30\x17" + REPLY + b'{"fault": "INVALID"}'), "INVALID"),
    ],
)
def test_what_is_no_answer_over_mqtt(pieces: tuple[bytes, ...], words: str) -> None:
    with peer(*pieces, begins=b"infer/m") as address, pytest.raises(LoadError, match=words):
        ended_over_mqtt(address)


def test_an_answer_over_mqtt() -> None:
    with peer(CONNACK + SUBACK, b"\x30\x05" + REPLY + b"{}", begins=b"infer/m") as address:
        ended_over_mqtt(address)


def ended_over_mqtt(address: tuple[str, int]) -> None:
    connection = MqttLoadConnection(address, "edge/x/infer/m", b'{"inputs": []}', 2.0, 1000)
    try:
        connection.send()
        while not connection.receive():
            pass
    finally:
        connection.close()


def test_images_are_not_measured_as_json() -> None:
    with pytest.raises(ValueError, match="--npz"):
        json_body({"x": Tensor(Datatype.BYTES, np.array([b"x"], object))})
    assert json.loads(json_body(TENSORS))["inputs"][0]["data"] == [1.0, 1.0]


def ended(address: tuple[str, int]) -> None:
    connection = GrpcLoadConnection(address, b"\0\0\0\0\0", 2.0)
    try:
        connection.send()
        while not connection.receive():
            pass
    finally:
        connection.close()
