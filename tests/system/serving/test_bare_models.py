"""Folders that hold a model file and nothing else are served, in every datatype that clients can send."""

import json
import subprocess

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http

from gateway.common.domain.tensor import Datatype
from tests.simulators import models, models_litert
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, running

FILES = ("model.onnx", "model.tflite", "model.xml")
RUNTIMES = {"model.onnx": "onnx", "model.tflite": "litert", "model.xml": "openvino"}
VALUES = {
    **{d.label: np.array([[0, 1, 2], [3, 4, 5]]).astype(d.dtype) for d in Datatype},
    "BYTES": np.array([[b"", b"plain", "grüß".encode()]], object),
    "BF16": np.array([[0.5, -1.0, 3.0]], ml_dtypes.bfloat16),
    "INT64": np.array([[-(2**63), 0, 2**63 - 1]]),
    "UINT64": np.array([[0, 1, 2**64 - 1]], np.uint64),
    "FP16": np.array([[0.1, -65504, 6e-8]], np.float16),
}


def write_bare(folder, manifest, runtime):
    """Write the model's file(s) alone, straight in `folder`."""
    scratch = folder.parent / f".{folder.name}"
    models.write_variant(scratch, manifest, runtime)
    (scratch / runtime).rename(folder)
    scratch.rmdir()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for datatype in Datatype:
        write_bare(folder / f"identity-{datatype.label.lower()}", models.identity(datatype), "onnx")
    for runtime in RUNTIMES.values():
        write_bare(folder / f"bare-{runtime}", models.dense(), runtime)
        (folder / f"nested-{runtime}").mkdir()
        write_bare(folder / f"nested-{runtime}" / "1", models.dense(), runtime)
    (folder / "two-signatures.tflite").write_bytes(models_litert.signatures("encode", "serving_default"))
    return folder


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory, state):
    config = (
        f"{QUIET}{SHORT_TRIALS}[limits]\nnotify_within_s = 50.0\n"  # of twenty models, however busy this machine is
    )
    with running(tmp_path_factory.mktemp("gateway"), models=library, state=state, config=config) as daemon:
        yield daemon


@pytest.fixture(params=["grpc", "http"])
def client(request, gateway):
    if request.param == "grpc":
        with over_grpc.InferenceServerClient(gateway.grpc) as client:
            yield over_grpc, client
    else:
        client = over_http.InferenceServerClient(gateway.http)
        yield over_http, client
        client.close()


@pytest.mark.parametrize("label", [datatype.label for datatype in Datatype])
def test_every_datatype_comes_back_as_sent(client, label):
    triton, asked = client
    values = VALUES[label]
    tensor = triton.InferInput("x", list(values.shape), label)
    tensor.set_data_from_numpy(values)
    answer = asked.infer(f"identity-{label.lower()}", [tensor])
    got = answer.as_numpy("y")
    assert got.shape == values.shape
    np.testing.assert_array_equal(got.astype(values.dtype), values)


@pytest.mark.parametrize("label", [d.label for d in Datatype if d not in {Datatype.BF16, Datatype.FP16}])
def test_every_datatype_that_json_can_say(gateway, label):
    values = VALUES[label]
    flat = [v.decode() if isinstance(v, bytes) else v.item() if hasattr(v, "item") else v for v in values.ravel()]
    tensor = {"name": "x", "datatype": label, "shape": list(values.shape), "data": flat}
    url = f"http://{gateway.http}/v2/models/identity-{label.lower()}/infer"
    command = ["curl", "-sS", "-d", json.dumps({"inputs": [tensor]}), url]
    said = subprocess.run(command, capture_output=True, check=True).stdout
    output = json.loads(said)["outputs"][0]
    assert output == {"name": "y", "datatype": label, "shape": list(values.shape), "data": flat}


@pytest.mark.parametrize("kind", ["bare", "nested"])
@pytest.mark.parametrize("runtime", RUNTIMES.values())
def test_every_kind_of_file_answers_as_its_weights_say(client, kind, runtime):
    triton, asked = client
    metadata = asked.get_model_metadata(f"{kind}-{runtime}", **({"as_json": True} if triton is over_grpc else {}))
    (name,) = [line["name"] for line in metadata["inputs"]]
    (output,) = [line["name"] for line in metadata["outputs"]]
    x = np.array([[1, 2, 3, 4], [0, -1, 0, 1]], np.float32)
    tensor = triton.InferInput(name, [2, 4], "FP32")
    tensor.set_data_from_numpy(x)
    got = asked.infer(f"{kind}-{runtime}", [tensor]).as_numpy(output)
    np.testing.assert_allclose(got, x @ models.WEIGHTS + models.BIAS, atol=1e-4)
    assert metadata["versions"] == ["1"]


@pytest.mark.parametrize("runtime", RUNTIMES.values())
def test_explain_says_that_there_is_no_golden_set(gateway, library, runtime):
    options = ["--models", str(library), "--state", str(gateway.state), "--no-measure", "--json"]
    said = subprocess.run(
        [*COMMAND, "explain", f"bare-{runtime}", *options], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    explained = json.loads(said)
    (variant,) = [line for line in explained["variants"] if line["accelerator"] == "cpu"]
    assert variant["eligible"]
    assert variant["reason"].startswith("no golden set")
    assert explained["chosen"] == runtime


def test_the_default_signature_of_a_file_is_served_under_its_own_names(client, gateway, library):
    module, asked = client
    for value in range(3):
        x = module.InferInput("x", [1, 3], "FP32")
        x.set_data_from_numpy(np.full((1, 3), value, np.float32))
        np.testing.assert_array_equal(asked.infer("two-signatures", [x]).as_numpy("y"), [[value + 1] * 3])
    done = subprocess.run(
        [*COMMAND, "explain", "two-signatures", "--models", library, "--url", gateway.http],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "signature 'serving_default' is served, not 'encode'" in done.stdout


def test_explain_chooses_nothing_that_a_required_level_refuses(gateway, library, tmp_path):
    (tmp_path / "proven.toml").write_text('[selection]\nrequire = "proven"\n')
    options = ["--models", str(library), "--state", str(gateway.state), "--config", str(tmp_path / "proven.toml")]
    done = subprocess.run(
        [*COMMAND, "explain", "bare-onnx", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "refused: is exercised, but must be proven here" in done.stdout
    assert "without that, onnx on cpu would serve" in done.stdout
    assert "chosen" not in done.stdout
    assert "◀" not in done.stdout


def test_several_bare_files_in_one_folder_are_refused(tmp_path, state):
    folder = tmp_path / "models"
    (folder / "double").mkdir(parents=True)
    for file in FILES[:2]:
        (folder / "double" / file).write_bytes(b"anything")
    with (
        running(tmp_path / "gateway", models=folder, state=state, http=["off"]) as daemon,
        over_grpc.InferenceServerClient(daemon.grpc) as client,
    ):
        (line,) = client.get_model_repository_index().models
        assert (line.name, line.version, line.state) == ("double", "1", "UNAVAILABLE")
        assert "holds several models: model.onnx, model.tflite" in line.reason
        assert not client.is_server_ready(), "nothing serves"
