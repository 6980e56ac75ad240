"""Files as users have them, through daemon and commands: Triton's examples, external data, and what is no model."""

import ast
import hashlib
import json
import subprocess

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
import tritonclient.http as web

from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, running
from tests.simulators.models import dense, write_release
from tests.simulators.triton_examples import (
    write_densenet,
    write_external,
    write_optional,
    write_simple,
    write_texts,
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_simple(folder)
    write_densenet(folder)
    write_optional(folder)
    write_texts(folder)
    write_external(folder / "external.onnx", 0.5)
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("to do")
    (folder / "operations").mkdir()
    (folder / "operations" / "config.pbtxt").write_text("model_operations { }")
    return folder


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("gateway"), models=library, state=state) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(gateway):
    with triton.InferenceServerClient(gateway.grpc) as client:
        yield client


def tensor(name, array):
    made = triton.InferInput(name, list(array.shape), {"i": "INT32", "f": "FP32"}[array.dtype.kind])
    made.set_data_from_numpy(array)
    return made


def test_tritons_simple_takes_as_many_rows_as_its_configuration_says(client):
    assert client.get_model_config("simple").config.max_batch_size == 8
    for rows in (1, 8):
        left = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
        right = np.full((rows, 16), 3, np.int32)
        answer = client.infer("simple", [tensor("INPUT0", left), tensor("INPUT1", right)])
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), left + right)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), left - right)
    nine = np.zeros((9, 16), np.int32)
    with pytest.raises(triton.InferenceServerException, match=r"1 and 8 are served \(max_batch_size in config.pbtxt"):
        client.infer("simple", [tensor("INPUT0", nine), tensor("INPUT1", nine)])


def test_tritons_densenet_is_asked_as_its_configuration_says(client, library):
    image = np.random.default_rng(1).normal(size=(3, 224, 224)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(library / "densenet_onnx" / "1" / "model.onnx"))
    expected = session.run(None, {"data_0": image[None]})[0].reshape(1000)
    answer = client.infer("densenet_onnx", [tensor("data_0", image)]).as_numpy("fc6_1")
    np.testing.assert_array_equal(answer, expected)
    best = triton.InferRequestedOutput("fc6_1", class_count=1)
    (line,) = client.infer("densenet_onnx", [tensor("data_0", image)], outputs=[best]).as_numpy("fc6_1")
    assert line.decode().split(":")[2] == f"class {expected.argmax()}"
    config = client.get_model_config("densenet_onnx").config
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [3, 224, 224])


def test_what_is_not_served_stands_in_the_index_and_the_log_with_the_reason(client, gateway):
    lines = {line.name: line for line in client.get_model_repository_index().models}
    for name, words in {
        "empty": "holds no model; put a .onnx",
        "notes.txt": "belongs to no model here",
        "operations": "config.pbtxt:1: model_operations: is not offered here",
    }.items():
        assert lines[name].state == "UNAVAILABLE"
        assert words in lines[name].reason
        assert words in gateway.log
    ready = {name for name, line in lines.items() if line.state == "READY"}
    assert ready == {"simple", "densenet_onnx", "external", "gained", "texts"}


def test_an_optional_input_has_the_value_of_the_file_unless_it_is_sent(client, gateway):
    x = np.ones(3, np.float32)
    for _ in range(3):  # the second and third may pass as bytes, in a batch of their like
        np.testing.assert_array_equal(client.infer("gained", [tensor("x", x)]).as_numpy("y"), [2, 3, 4])
        gain = tensor("gain", np.array(5, np.float32))
        np.testing.assert_array_equal(client.infer("gained", [tensor("x", x), gain]).as_numpy("y"), [5, 6, 7])
    config = client.get_model_config("gained").config
    assert [(each.name, each.optional) for each in config.input] == [("x", False), ("gain", True)]


def test_parameters_are_read_as_the_client_of_ultralytics_reads_them(client, gateway):
    with web.InferenceServerClient(gateway.http) as other:
        documents = other.get_model_config("gained"), client.get_model_config("gained", as_json=True)["config"]
    for config in documents:
        text = config.get("parameters", {}).get("metadata", {}).get("string_value", "None")
        assert ast.literal_eval(text) == {"task": "detect", "names": {0: "grün"}}


def test_a_text_is_generated(gateway):
    answer = httpx.post(f"http://{gateway.http}/v2/models/texts/generate", json={"text_input": "grüße"})
    assert answer.json() == {"model_name": "texts", "model_version": "1", "text_output": "grüße"}


def test_other_weights_are_tried_again_and_answer(tmp_path):
    x = np.ones((1, 64), np.float32)
    for value in (0.5, 2.0):
        write_external(tmp_path / "models" / "external.onnx", value)
        config = f"{QUIET}{SHORT_TRIALS}"
        with (
            running(
                tmp_path / "gateway", models=tmp_path / "models", state=tmp_path / "state", config=config
            ) as daemon,
            triton.InferenceServerClient(daemon.grpc) as client,
        ):
            assert client.infer("external", [tensor("x", x)]).as_numpy("y")[0, 0] == 64 * value
            assert "trial finished" in daemon.log


def test_what_has_no_effect_and_a_directory_without_models_are_logged(tmp_path):
    write_simple(tmp_path / "models")
    with (tmp_path / "models" / "simple" / "config.pbtxt").open("a") as file:
        file.write("dynamic_batching { max_queue_delay_microseconds: 100 }")
    with running(tmp_path / "one", models=tmp_path / "models", state=tmp_path / "state") as daemon:
        assert "simple 1: dynamic_batching is not applied: max_queue_delay_microseconds" in daemon.log
        assert "no models found" not in daemon.log
    (tmp_path / "nothing").mkdir()
    with running(tmp_path / "two", models=tmp_path / "nothing", state=tmp_path / "state") as daemon:
        assert "no models found" in daemon.log
        assert f"{tmp_path}/nothing" in daemon.log
        assert "holds no model; put a .onnx" in daemon.log


def run(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False)


def test_models_lists_all_of_it_and_an_empty_directory_says_so(library, tmp_path):
    done = run("models", "--models", library, "--json")
    assert done.returncode == 0
    listed = {line["name"]: line["problem"] for line in json.loads(done.stdout)["models"]}
    assert set(listed) == {"gained", "texts", "simple", "densenet_onnx", "external", "empty", "notes.txt", "operations"}
    nothing = run("models", "--models", tmp_path)
    assert nothing.returncode == 1
    assert f"{tmp_path} holds no model; put a .onnx" in nothing.stderr


@pytest.mark.parametrize("action", ["check", "new", "import"])
def test_what_must_be_exported_is_refused_with_the_command(tmp_path, action):
    (tmp_path / "saved").mkdir()
    for name in ("best.pt", "saved/saved_model.pb"):
        (tmp_path / name).touch()
    into = ["--into", tmp_path / "out"] if action == "import" else ["--models", tmp_path / "out"]
    for name, command in (("best.pt", "yolo export model=best.pt format=onnx"), ("saved", "tf2onnx.convert --saved-")):
        done = run("models", action, tmp_path / name, *into)
        assert done.returncode == 2
        assert command in done.stderr


def test_models_check_tries_a_release_with_its_listed_files_only(tmp_path):
    manifest = write_release(tmp_path, dense(), "onnx")
    folder = tmp_path / manifest.name / manifest.version
    assert run("models", "check", folder, "--state", tmp_path / "state").returncode == 0
    write_external(tmp_path / "bare" / "any.onnx", 1.0)
    assert run("models", "check", tmp_path / "bare", "--state", tmp_path / "state").returncode == 0
    file = folder / "onnx" / "model.onnx"
    before = file.read_bytes()
    write_external(file, 1.0)
    text = (folder / "manifest.toml").read_text()
    for old, new in ((_digest(before), _digest(file.read_bytes())), (f"= {len(before)}", f"= {file.stat().st_size}")):
        assert old in text
        text = text.replace(old, new)
    (folder / "manifest.toml").write_text(text)
    done = run("models", "check", folder, "--state", tmp_path / "state", "--json")
    assert done.returncode == 1
    problem = json.loads(done.stdout)["releases"][0]["problem"]
    assert 'refers to onnx/weights.bin, which is not among the artifacts; add {path = "onnx/weights.bin"' in problem


def _digest(content):
    return hashlib.sha256(content).hexdigest()
