"""Models that must not serve: each is refused with its reason, and the others serve."""

import json
import select
import subprocess

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators import models, models_litert
from tests.simulators.daemon import COMMAND, QUIET, ROOT, copy_model, golden, running
from tests.simulators.models_ill import wrong_golden

DEADLINE_S = 12
SHORT = f"{QUIET}[trial]\nmeasure_s = 0.02\nnice = 0\ndeadline_s = {DEADLINE_S}\n"


def edited(folder, name, old, new):
    manifest = copy_model("meter-reader", folder, name=name) / "manifest.toml"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new, 1))
    return manifest


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    copy_model("meter-reader", folder)
    edited(folder, "unknown-key", "labels = ", 'colour = "red"\nlabels = ')
    edited(folder, "not-toml", "schema = 1", "schema = = 1")
    edited(folder, "wrong-type", "max_accuracy_loss = 0.01", 'max_accuracy_loss = "little"')
    edited(folder, "other-name", 'name = "other-name"', 'name = "somebody"')
    (copy_model("meter-reader", folder, name="missing-artifact") / "onnx-int8" / "model.onnx").unlink()
    artifact = copy_model("meter-reader", folder, name="wrong-digest") / "onnx-int8" / "model.onnx"
    content = bytearray(artifact.read_bytes())
    content[-1] ^= 1
    artifact.write_bytes(content)
    wrong_golden(copy_model("activity", folder, name="wrong-golden"))
    for name in ("crashes", "never-ends", "garbage", "empty-file", "no-file/1"):
        (folder / name).mkdir(parents=True)
    (folder / "crashes" / "model.tflite").write_bytes(models_litert.crashing())
    (folder / "garbage" / "model.onnx").write_bytes(b"no model at all" * 100)
    (folder / "empty-file" / "model.xml").write_bytes(b"")
    models.write_onnx_endless(folder / "never-ends" / "model.onnx")
    copy_model("activity", folder)
    return folder


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("gateway"), models=library, state=state, config=SHORT) as daemon:
        yield daemon


@pytest.fixture
def client(gateway):
    with triton.InferenceServerClient(gateway.grpc) as client:
        yield client


REASONS = {
    "unknown-key": ["unknown-key/1/manifest.toml", "colour", "unknown key"],
    "not-toml": ["not-toml/1/manifest.toml:1", "not valid TOML"],
    "wrong-type": ["wrong-type/1/manifest.toml", "max_accuracy_loss", "must be a number, not 'little'"],
    "other-name": ["other-name/1/manifest.toml", "says 'somebody'", "folder is called 'other-name'"],
    "missing-artifact": ["missing-artifact/1/manifest.toml", "onnx-int8/model.onnx is missing"],
    "wrong-digest": ["wrong-digest/1/manifest.toml", "the file is not the one released"],
    "wrong-golden": ["failed its golden set", "agreement"],
    "crashes": ["crashed twice: died by SIGSEGV", "repair the model"],
    "never-ends": ["while running it on generated inputs", "raise [trial] deadline_s"],
    "garbage": ["model.onnx", "not an ONNX file"],
    "empty-file": ["model.xml"],
    "no-file": ["holds no model"],
}


UNDECIDED = {"never-ends"}
"""Models that may stay undecided: on a busy machine a time limit decides nothing (tests/contract decides it)."""


def unavailable(client, name):
    """Return the line of a model in the index, once none of its attempts runs: a busy machine needs more than one."""
    while True:
        (line,) = [line for line in client.get_model_repository_index().models if line.name == name]
        if line.state != "LOADING":
            return line
        select.select([], [], [], 0.02)


@pytest.mark.parametrize("name", REASONS)
def test_a_refused_model_says_why_and_is_not_ready(client, name):
    line = unavailable(client, name)
    assert (line.version, line.state) == ("1", "UNAVAILABLE")
    for part in REASONS[name]:
        assert part in line.reason
    assert not client.is_model_ready(name)
    with pytest.raises(InferenceServerException) as refused:
        client.get_model_metadata(name)
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    told = refused.value.message()
    if name in UNDECIDED:  # the time to its next attempt passes, or it has begun
        assert "is loading" in told or REASONS[name][0] in told
    else:
        assert line.reason in told


@pytest.mark.parametrize("name", ["meter-reader", "activity"])
def test_the_others_serve(client, name):
    assert client.is_server_ready()
    while not client.is_model_ready(name):  # as `unavailable`
        select.select([], [], [], 0.02)
    wanted = golden(name, 4)
    tensor = triton.InferInput(wanted.name, list(wanted.rows.shape), "FP32")
    tensor.set_data_from_numpy(wanted.rows)
    scores = client.infer(name, [tensor]).as_numpy("scores")
    assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()


def test_every_refusal_is_logged_as_an_error(gateway, client):
    for name in REASONS:
        unavailable(client, name)
    refused = {
        line["model"] for line in gateway.lines() if line["event"] == "model refused" and line["level"] == "error"
    }
    undecided = {line["model"] for line in gateway.lines() if line["event"] == "model undecided"}
    assert refused | UNDECIDED == set(REASONS)
    assert refused | undecided >= UNDECIDED


def command(gateway, *arguments):
    options = ["--models", str(gateway.models), "--state", str(gateway.state), "--config", str(gateway.config_file)]
    return subprocess.run([*COMMAND, *arguments, *options], cwd=ROOT, capture_output=True, text=True, check=False)


def test_models_check_finds_what_the_daemon_found(gateway):
    done = command(gateway, "models", "check", str(gateway.models / "wrong-digest"), "--json")
    assert done.returncode == 1, done.stderr
    (release,) = json.loads(done.stdout)["releases"]
    assert not release["ok"]
    assert "the file is not the one released" in release["problem"]


@pytest.mark.parametrize("name", ["crashes", "wrong-golden"])
def test_explain_says_the_same_from_the_verdicts_kept(gateway, name):
    done = command(gateway, "explain", name, "--no-measure", "--json")
    assert done.returncode == 1, done.stderr
    if name == "crashes":  # it crashes already while it is asked for its inputs: there are no variants to list
        assert "died by SIGSEGV" in done.stderr
        return
    assert "failed its golden set" in json.loads(done.stdout)["variants"][0]["reason"]
