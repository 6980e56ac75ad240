"""A plugin of ONNX Runtime: a candidate of its own, named everywhere, and no danger if it is broken."""

import json
import os
import platform
import shutil
import subprocess

import numpy as np
import pytest
import tritonclient.http as over_http

from tests.simulators import onnx_plugin
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHIPPED, SHORT_TRIALS, copy_model, golden, running
from tests.simulators.onnx_plugin import MODULE, PROVIDER

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason=f"{MODULE} exists for x86_64 only")
PROFILE = """
schema = 1
name = "plugin"
description = "ONNX Runtime with a plugin first, OpenVINO for bare files"
priority = 900
[match]
arch = ["x86_64"]
[[ladder]]
accelerator = "cpu"
runtime = "onnx"
precisions = ["fp32"]
options = {providers = "OpenVINOExecutionProvider,CPUExecutionProvider"}
[[ladder]]
accelerator = "cpu"
runtime = "openvino"
precisions = ["fp32"]
"""


@pytest.fixture
def place(tmp_path):
    """Return options of a daemon on a device with the profile."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/plugin.toml").write_text(PROFILE)
    config = f'{QUIET}{SHORT_TRIALS}[gateway]\nprofiles_dir = "{tmp_path / "profiles"}"\n'
    copy_model("meter-reader", tmp_path / "models")
    return {"models": tmp_path / "models", "config": config}


def told(daemon, environ, *words):
    """Return what a command prints about the daemon's device."""
    command = [*COMMAND, *words, "--config", str(daemon.config_file)]
    environ = {**os.environ, **environ}
    answer = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer.stdout


def parameters(client, model):
    return {name: value["string_value"] for name, value in client.get_model_config(model)["parameters"].items()}


def test_a_plugin_serves_beside_the_engine_that_it_contains(place, tmp_path):
    for suffix in ("xml", "bin"):
        shutil.copy(SHIPPED / f"activity/1/openvino-fp16/model.{suffix}", tmp_path / f"models/plain.{suffix}")
    environ = onnx_plugin.environ(tmp_path)
    with running(tmp_path / "gateway", environ=environ, **place) as daemon:
        rows = golden("meter-reader")
        tensor = over_http.InferInput(rows.name, rows.rows.shape, "FP32")
        tensor.set_data_from_numpy(rows.rows)
        with over_http.InferenceServerClient(daemon.http) as client:
            assert parameters(client, "meter-reader")["provider"] == PROVIDER
            assert "provider" not in parameters(client, "plain")
            scores = client.infer("meter-reader", [tensor]).as_numpy("scores")
            shape = client.get_model_metadata("plain")["inputs"][0]
            rest = over_http.InferInput(shape["name"], [1, *shape["shape"][1:]], "FP32")
            rest.set_data_from_numpy(np.zeros([1, *shape["shape"][1:]], np.float32))
            client.infer("plain", [rest])
        np.testing.assert_allclose(scores, rows.scores, atol=1e-5)
        chosen = daemon.wait_logged("variant chosen", model="meter-reader")
        assert f"{PROVIDER} runs 9 of 9 nodes" in str(chosen["remarks"])
        listed = told(daemon, environ, "models", "--url", f"http://{daemon.http}")
        assert f"cpu by {PROVIDER}" in listed
    doctor, probe = told(daemon, environ, "doctor"), told(daemon, environ, "probe", "--json")
    (version,) = json.loads(probe)["providers"].values()
    assert f"cpu by {PROVIDER} {version}" in " ".join(doctor.split())


@pytest.mark.parametrize(
    ("fault", "problem"), [("no library", "cannot be registered with ONNX Runtime"), ("crash", "SIGSEGV")]
)
def test_a_broken_plugin_is_named_and_the_cpu_serves(place, tmp_path, fault, problem):
    environ = onnx_plugin.environ(tmp_path, fault)
    with running(tmp_path / "gateway", environ=environ, **place) as daemon:
        with over_http.InferenceServerClient(daemon.http) as client:
            served = parameters(client, "meter-reader")
        assert served["variant"] == "onnx-fp32"
        assert "provider" not in served
        tried = daemon.wait_logged("trial finished", variant="onnx-fp32", passed=False)
        assert problem in tried["reason"]
    finding = " ".join(told(daemon, environ, "doctor", "--json").split())
    assert f"provider {PROVIDER}" in finding
    assert problem in finding
    assert "-m pip uninstall onnxruntime-ep-openvino" in finding


def test_a_verdict_is_of_one_version_of_the_plugin(place, tmp_path):
    with running(tmp_path / "gateway", environ=onnx_plugin.environ(tmp_path), **place) as daemon:
        words = ("explain", "meter-reader", "--json", "--models", str(place["models"]), "--state", str(daemon.state))
    same = json.loads(told(daemon, onnx_plugin.environ(tmp_path), *words, "--no-measure"))
    other = json.loads(told(daemon, onnx_plugin.environ(tmp_path, version="9.9"), *words, "--no-measure"))
    tried = [
        [one["measured"] is not None for one in document["variants"] if one["provider"] == PROVIDER]
        for document in (same, other)
    ]
    assert tried == [[True], [False]]
