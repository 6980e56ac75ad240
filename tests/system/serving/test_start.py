"""The start: what a daemon has loaded by configuration, what HTTP says before and right after READY=1."""

import http.client
import json
import select
import shutil
import socket
import time

import psutil
import pytest

from tests.performance.networks import mobilenet, tiny
from tests.simulators import modules
from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon, golden, running, starting
from tests.simulators.models import write_onnx_endless

HTTP = {"litestar", "uvicorn", "h11"}
JSON = {"msgspec"}
SCRAPE = {"prometheus_client"}
MQTT = {"gateway.serving.frontends.mqtt.session.session"}
GRPCIO = {"grpc"}
PROTOBUF = {"google"}
NOBODY_S = {"rich", "attr", "pygments", "cryptography", "openvino", "ai_edge_litert", "tensorflow", "httpx", "onnx"}
ON_REQUEST = {"PIL", "cbor2", "psutil"}
BROKER = "mqtt://127.0.0.1:1"
"""No broker answers there."""


def request(daemon, method, path, body=None):
    host, port = daemon.http.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def packages(daemon):
    loaded = modules.modules(daemon)
    return {name.partition(".")[0] for name in loaded} | (MQTT & loaded)


def test_it_listens_for_commands_first(tmp_path, state):
    """`infer` waits while a gateway that was begun listens nowhere, and asks over HTTP."""
    with running(tmp_path, state=state) as daemon:
        assert [line["protocol"] for line in daemon.lines() if line["event"] == "listening"][:2] == ["http", "grpc"]


@pytest.mark.parametrize(
    ("options", "wanted", "unwanted"),
    [
        ({"http": ["off"]}, PROTOBUF | {"onnxruntime"}, GRPCIO | HTTP | JSON | SCRAPE | MQTT),
        ({"http": ["off"], "mqtt": BROKER}, MQTT | PROTOBUF, HTTP | SCRAPE),
        ({"http": ["off"], "grpc": ["off"], "mqtt": BROKER}, MQTT, HTTP | SCRAPE | GRPCIO | PROTOBUF),
        ({"grpc": ["off"]}, set(), MQTT | GRPCIO | PROTOBUF | SCRAPE),
    ],
    ids=["gRPC", "gRPC and MQTT", "MQTT", "HTTP"],
)
def test_what_a_daemon_has_loaded(tmp_path, options, wanted, unwanted):
    """The daemon has one ONNX model: of the shipped ones another runtime's variant may be the fastest here."""
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "model.onnx").write_bytes(tiny().content)
    with running(tmp_path / "gateway", models=tmp_path / "models", command=modules.COMMAND, **options) as daemon:
        loaded = packages(daemon)
    assert wanted <= loaded
    assert loaded & (unwanted | NOBODY_S | ON_REQUEST) == set()


def test_http_loads_its_libraries_after_ready_and_a_scrape_loads_none(tmp_path, state):
    with running(tmp_path, state=state, command=modules.COMMAND, grpc=["off"]) as daemon:
        assert request(daemon, "GET", "/v2/health/ready")[0] == 200
        loaded = packages(daemon)
        assert loaded >= HTTP
        assert loaded & (SCRAPE | ON_REQUEST) == set()
        assert request(daemon, "GET", "/metrics")[0] == 200
        assert packages(daemon) & (SCRAPE | ON_REQUEST) == set()


def test_images_bring_pillow_and_other_requests_do_not(tmp_path, state, digit_png):
    with running(tmp_path, state=state, command=modules.COMMAND, grpc=["off"]) as daemon:
        rows = golden("meter-reader", 1).rows
        tensor = {"name": "image", "datatype": "FP32", "shape": list(rows.shape), "data": rows.ravel().tolist()}
        path = "/v2/models/meter-reader/infer"
        assert request(daemon, "POST", path, json.dumps({"inputs": [tensor]}))[0] == 200
        assert "PIL" not in packages(daemon)
        encoded = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 0}}
        image = len(digit_png[0]).to_bytes(4, "little") + digit_png[0]
        encoded["parameters"]["binary_data_size"] = len(image)
        header = json.dumps({"inputs": [encoded]}).encode()
        host, port = daemon.http.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("POST", path, header + image, {"Inference-Header-Content-Length": str(len(header))})
        assert connection.getresponse().status == 200
        connection.close()
        assert "PIL" in packages(daemon)


def test_what_the_start_made_is_never_searched_for_garbage_and_the_rest_is(tmp_path, state):
    with running(tmp_path, state=state, command=modules.COMMAND) as daemon:
        assert request(daemon, "GET", "/v2/health/ready")[0] == 200
        told = modules.told(daemon)
    assert told["collecting"]
    assert told["frozen"] > 30_000


def test_http_is_answered_right_after_ready(tmp_path, state):
    """A unit ordered after ours relies on it: a client that connects at READY=1 is answered, the first of many too."""
    with running(tmp_path, state=state) as daemon:
        assert [request(daemon, "GET", "/v2/health/ready")[0] for _ in range(3)] == [200, 200, 200]


def test_http_lives_while_a_model_is_tried(tmp_path):
    models = tmp_path / "models"
    (models / "endless").mkdir(parents=True)
    write_onnx_endless(models / "endless" / "model.onnx")
    with starting(tmp_path / "gateway", models=models) as daemon:
        daemon.wait_logged("listening", protocol="http")
        assert request(daemon, "GET", "/v2/health/live")[0] == 200
        assert request(daemon, "GET", "/v2/health/ready")[0] == 503
        assert daemon.heard == []
        assert daemon.stop() == 0


def test_http_that_cannot_be_loaded_ends_the_daemon(tmp_path, state):
    """Callers would else wait at a port where they never get an answer."""
    (tmp_path / "litestar.py").write_text("raise ImportError('a broken wheel')\n")
    daemon = Daemon(tmp_path / "gateway", state=state, environ={"PYTHONPATH": str(tmp_path)}).start(ready=False)
    assert daemon.ended() == 1
    assert "a broken wheel" in daemon.log


def test_a_taken_http_port_ends_the_start_before_any_model_is_tried(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with starting(tmp_path, http=[taken], config=QUIET + SHORT_TRIALS) as daemon:
            assert daemon.ended() == 3
            assert "in use" in daemon.log
            assert "trial finished" not in daemon.log


@pytest.mark.timeout(240)
def test_what_a_model_leaves_is_given_back(tmp_path):
    """Three times a newer version comes and the older goes: without malloc_trim 80 MiB would stay."""
    model = tmp_path / "models" / "mobilenet"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_bytes(mobilenet().content)
    with running(tmp_path / "gateway", models=tmp_path / "models", http=["off"]) as daemon:
        daemon.wait_logged("servable changed", state="AVAILABLE")  # it may be ready before a long trial has ended
        process = psutil.Process(daemon.pid)
        at_start = process.memory_info().rss
        for version in (1, 2, 3):
            shutil.copytree(model / str(version), model / str(version + 1))
            daemon.reload()
            shutil.rmtree(model / str(version))
            daemon.reload()
        ends_s = time.monotonic() + 120  # a busy machine tries versions for long
        while process.memory_info().rss > at_start and time.monotonic() < ends_s:
            select.select([], [], [], 0.05)  # nothing tells when memory was given back
        assert process.memory_info().rss <= at_start
