"""Pipelines in the real daemon: metadata, index, statistics and answers over HTTP and gRPC, and their models' fate."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as web
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.simulators.images_made import encoded
from tests.simulators.models import BIAS, WEIGHTS, adder, dense, write_release

CHAIN = """
schema = 1
name = "{name}"
version = "1"
[input]
x = "FP32[4]"
extra = "FP32[3]"
[[step]]
name = "colours"
model = "{model}"
of = "x"
[[step]]
name = "sum"
model = "adder"
inputs = {{ left = "colours.scores", right = "extra" }}
when = "top(colours.scores) > 0.5"
[[step]]
name = "best"
rule = {{ colour = "label(argmax(colours.scores), colours)" }}
[output]
scores = "colours.scores"
colour = "best.colour"
total = "sum.total"
"""
OUTER = """
schema = 1
name = "outer"
version = "1"
[input]
x = "FP32[4]"
extra = "FP32[3]"
[[step]]
name = "inner"
model = "chain"
inputs = { x = "x", extra = "extra" }
[output]
colour = "upper(inner.colour)"
"""
MIXED = """
schema = 1
name = "mixed"
version = "1"
[input]
x = "FP32[4]"
word = "text"
image = "image"
[[step]]
name = "colours"
model = "dense"
of = "x"
[output]
scores = "colours.scores"
word = "upper(word)"
"""
CONTROL = QUIET + SHORT_TRIALS + "[models]\ncontrol = true\n"


def write(folder, name, text):
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "pipeline.toml").write_text(text)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_release(folder, dense(), "onnx")
    write_release(folder, adder(), "onnx")
    write(folder, "chain", CHAIN.format(name="chain", model="dense"))
    write(folder, "outer", OUTER)
    write(folder, "mixed", MIXED)
    write(folder, "unfit", CHAIN.format(name="unfit", model="dense").replace("colours.scores", "colours.score"))
    write(folder, "waiting", CHAIN.format(name="waiting", model="later"))
    write(folder, "broken", "schema = 1\nname = [")
    return folder


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("gateway"), models=library, state=state, config=CONTROL) as daemon:
        yield daemon


def by_hand(x, extra):
    """Return scores, colours and totals of rows; a total of zeros where none was computed."""
    logits = x @ WEIGHTS + BIAS
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    colours = [dense().labels[row.argmax()].encode() for row in scores]
    total = np.where(scores.max(axis=1, keepdims=True) > 0.5, scores + extra, 0)
    return scores, colours, total


def asked(module, x, extra):
    """Return the inputs of a request."""
    inputs = [module.InferInput(name, list(array.shape), "FP32") for name, array in (("x", x), ("extra", extra))]
    for each, array in zip(inputs, (x, extra), strict=True):
        each.set_data_from_numpy(array)
    return inputs


def mixed(module, x, words, images):
    """Return the inputs of a request of numbers, texts and images."""
    image = encoded(np.zeros((8, 8, 3), np.uint8))
    inputs = [module.InferInput("x", list(x.shape), "FP32")]
    inputs += [module.InferInput(name, [n], "BYTES") for name, n in (("word", words), ("image", images))]
    contents = x, np.array([b"a"] * words, object), np.array([image] * images, object)
    for each, array in zip(inputs, contents, strict=True):
        each.set_data_from_numpy(array)
    return inputs


def rows(seed, count):
    own = np.random.default_rng(seed)
    return own.normal(size=(count, 4)).astype(np.float32), own.normal(size=(count, 3)).astype(np.float32)


def post(gateway, path, body=None):
    return httpx.post(f"http://{gateway.http}/v2/{path}", json=body or {}, timeout=30)


def test_clients_of_triton_get_what_the_steps_give_by_hand(gateway):
    with triton.InferenceServerClient(gateway.grpc) as grpc, web.InferenceServerClient(gateway.http) as http:
        for count in (1, 3, 50):
            x, extra = rows(count, count)
            scores, colours, total = by_hand(x, extra)
            for client, module in ((grpc, triton), (http, web)):
                answer = client.infer("chain", asked(module, x, extra))
                np.testing.assert_allclose(answer.as_numpy("scores"), scores, rtol=1e-4)
                np.testing.assert_allclose(answer.as_numpy("total"), total, rtol=1e-4, atol=1e-5)
                assert answer.as_numpy("colour").tolist() == colours
                documents = [json.loads(text) for text in answer.as_numpy("result")]
                assert [each["total"] is None for each in documents] == [not row.any() for row in total]
                outer = client.infer("outer", asked(module, x, extra), outputs=None)
                assert outer.as_numpy("colour").tolist() == [colour.upper() for colour in colours]


def test_sixteen_callers_at_once_get_their_own_answers(gateway):
    def call(caller):
        with triton.InferenceServerClient(gateway.grpc) as client:
            for number in range(10):
                x, extra = rows(100 * caller + number, 1 + number)
                answer = client.infer("chain", asked(triton, x, extra))
                np.testing.assert_allclose(answer.as_numpy("total"), by_hand(x, extra)[2], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(16)))


def test_metadata_index_and_statistics_are_those_of_a_model(gateway):
    metadata = httpx.get(f"http://{gateway.http}/v2/models/chain").json()
    assert [(each["name"], each["datatype"], each["shape"]) for each in metadata["inputs"]] == [
        ("x", "FP32", [-1, 4]),
        ("extra", "FP32", [-1, 3]),
    ]
    assert {each["name"]: each["datatype"] for each in metadata["outputs"]} == {
        "result": "BYTES",
        "scores": "FP32",
        "colour": "BYTES",
        "total": "FP32",
    }
    index = {each["name"]: each for each in post(gateway, "repository/index").json()}
    assert index["chain"]["state"] == index["outer"]["state"] == "READY"
    assert "step 'sum'" in index["unfit"]["reason"] or "'colours' has no column 'score'" in index["unfit"]["reason"]
    assert "pipeline.toml:" in index["unfit"]["reason"]
    assert "'later'" in index["waiting"]["reason"]
    assert "pipeline.toml" in index["broken"]["reason"]
    x, extra = rows(1, 2)
    with triton.InferenceServerClient(gateway.grpc) as client:
        before = client.get_inference_statistics("chain", as_json=True)["model_stats"][0]
        client.infer("chain", asked(triton, x, extra))
        with pytest.raises(InferenceServerException, match="shape"):
            client.infer("chain", asked(triton, x[:, :2].copy(), extra))
        after = client.get_inference_statistics("chain", as_json=True)["model_stats"][0]
        assert client.is_model_ready("chain")
        assert client.get_model_metadata("chain").outputs[0].name == "result"

    def count(stats, key):
        return int(stats["inference_stats"][key].get("count", 0))

    assert count(after, "success") - count(before, "success") == 1
    assert count(after, "fail") - count(before, "fail") == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"inputs": []}, "is missing"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}, "'extra' is missing"),
        ({"inputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1]}]}, "unexpected inference input"),
    ],
)
def test_bad_requests_are_refused_with_words(gateway, body, words):
    answer = post(gateway, "models/chain/infer", body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_inputs_of_different_rows_are_refused_at_once_over_grpc_and_http(gateway):
    x, extra = rows(7, 8)
    for module, address in ((triton, gateway.grpc), (web, gateway.http)):
        with module.InferenceServerClient(address) as client:
            for count in (0, 5):
                for inputs in (asked(module, x, extra[:count]), asked(module, x[:count], extra)):
                    with pytest.raises(InferenceServerException, match="differ in their first dimension"):
                        client.infer("chain", inputs)
            most = int(httpx.get(f"http://{gateway.http}/v2/models/chain/config").json()["max_batch_size"])
            with pytest.raises(InferenceServerException, match=f"batch of {most + 1} rows"):
                client.infer("chain", asked(module, *rows(8, most + 1)))
            assert client.infer("chain", asked(module, x, extra)).as_numpy("scores").shape == (8, 3)
            for words, images in ((5, 8), (8, 5), (0, 8), (8, 0)):
                with pytest.raises(InferenceServerException, match="differ in their first dimension"):
                    client.infer("mixed", mixed(module, x, words, images))
            assert client.infer("mixed", mixed(module, x, 8, 8)).as_numpy("word").tolist() == [b"A"] * 8


def test_a_pipeline_ends_before_its_models_and_comes_back(gateway, library):
    x, extra = rows(7, 1)
    refused = post(gateway, "repository/models/adder/unload")
    assert refused.status_code == 400
    assert "is run by the pipeline chain" in refused.json()["error"]
    shutil.move(library / "adder", library.parent / "adder")
    gateway.reload()
    with triton.InferenceServerClient(gateway.grpc) as client:
        with pytest.raises(InferenceServerException, match=r"pipeline 'chain': step 'sum': .*'adder'"):
            client.infer("chain", asked(triton, x, extra))
        shutil.move(library.parent / "adder", library / "adder")
        gateway.reload()
        client.infer("chain", asked(triton, x, extra))
    for name in ("outer", "chain"):
        assert post(gateway, f"repository/models/{name}/unload").status_code == 200
    assert post(gateway, "repository/models/adder/unload").status_code == 200
    for name in ("adder", "chain"):
        assert post(gateway, f"repository/models/{name}/load").status_code == 200
    with web.InferenceServerClient(gateway.http) as client:
        answer = client.infer("chain", asked(web, x, extra))
        np.testing.assert_allclose(answer.as_numpy("scores"), by_hand(x, extra)[0], rtol=1e-4)
