"""Modules that are not asked for are not loaded: a cheap import, and no HTTP stack in a daemon without HTTP."""

import json
import subprocess
import sys
import urllib.request

import pytest
import tritonclient.grpc as triton

from tests.simulators.daemon import ROOT, golden, running

HEAVY = {
    *("onnxruntime", "openvino", "ai_edge_litert", "tflite_runtime", "grpc", "google", "paho", "litestar", "uvicorn"),
    *("rich", "PIL", "prometheus_client", "cryptography", "cbor2", "msgspec", "structlog", "psutil"),
}


def loaded(module):
    code = f"import json, sys, {module}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["gateway.serving.daemon", "gateway.cli", "gateway.serving.config"])
def test_importing_is_cheap(module):
    assert loaded(module) & HEAVY == set()


def test_logs_do_not_bring_rich_which_others_may_still_import():
    assert (
        loaded("gateway.common.logs as logs; logs.configure_logging(); logs.get_logger('a').info('b')")
        & {
            *("rich", "attr", "pygments"),
        }
        == set()
    )
    assert "rich" in loaded("gateway.common.logs as logs; logs.configure_logging(); import rich.console")


def maps(daemon):
    """Return the compiled modules that the process has mapped, by path."""
    with open(f"/proc/{daemon.pid}/maps") as lines:  # noqa: PTH123  a file of the kernel
        return {line.split(None, 5)[5].strip() for line in lines if "site-packages" in line}


def mapped(daemon, package):
    return any(f"site-packages/{package}" in path for path in maps(daemon))


def test_without_http_and_mqtt_their_libraries_stay_out(tmp_path, state):
    """Compiled packages can be seen from outside, others not: msgspec comes with litestar, Pillow with an image."""
    with running(tmp_path, state=state, http=["off"]) as daemon:
        wanted = golden("activity", 1)
        tensor = triton.InferInput(wanted.name, list(wanted.rows.shape), "FP32")
        tensor.set_data_from_numpy(wanted.rows)
        with triton.InferenceServerClient(daemon.grpc) as client:
            client.infer("activity", [tensor])
        for package in ("grpc", "msgspec", "PIL", "cryptography", "multidict"):
            assert not mapped(daemon, package), package


def test_the_service_of_grpc_needs_no_grpcio():
    code = "gateway.serving.frontends.grpc_v2.service.inference as s; s.message('inference.ModelInferRequest')"
    assert loaded(code) & HEAVY == {"google"}


def test_without_grpc_its_library_stays_out(tmp_path, state):
    with running(tmp_path, state=state, grpc=["off"]) as daemon:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/health/ready", timeout=20) as answer:
            assert answer.status == 200
        assert mapped(daemon, "msgspec")
        assert not mapped(daemon, "grpc")


def test_engines_that_do_not_serve_stay_out(gateway):
    """OpenVINO and LiteRT were tried in a child process; onnx-int8 serves both models at first."""
    serving = {line["variant"].split("-")[0] for line in gateway.lines() if line["event"] == "variant chosen"}
    names = {"onnx": "onnxruntime", "openvino": "openvino", "litert": "ai_edge_litert"}
    for runtime, package in names.items():
        assert mapped(gateway, package) is (runtime in serving), package
