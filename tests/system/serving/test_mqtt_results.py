"""Results of models that came without a manifest, and with one: the real daemon, mosquitto and its clients."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.simulators import models
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.system.serving.test_mqtt import publish, subscribed

ROWS = np.random.default_rng(5).normal(size=(16, 4)).astype(np.float32)
CLASSES = ("off", "idle", "on")
ROUTES = {
    "classifier": "",
    "detector": "",
    "dense": "",
    "named": 'outputs = ["probabilities"]',
    "wrong": 'outputs = ["boxes"]',
}
CONFIG = f'{QUIET}{SHORT_TRIALS}[gateway]\nid = "bench"\n[mqtt]\nmax_result_bytes = 4096\n' + "".join(
    f'[[mqtt.route]]\nname = "{name}"\ntopics = ["{name}/+"]\nsensor = "topic[1]"\n'
    f'model = "{name if not extra else "classifier"}"\n{extra}\n'
    for name, extra in ROUTES.items()
)


def write_onnx(path, nodes, outputs, *weights):
    """Write a bare model file with the input x [rows, 4]."""
    values = [helper.make_tensor_value_info(*value) for value in (("x", TensorProto.FLOAT, ["rows", 4]), *outputs)]
    graph = helper.make_graph(
        nodes, "bare", values[:1], values[1:], [numpy_helper.from_array(w, n) for n, w in weights]
    )
    path.parent.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def write_classifier(path):
    """Write a classifier like scikit-learn's converters: text label [rows] first, probabilities [rows, 3] second."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
        helper.make_node("ArgMax", ["probabilities"], ["best"], axis=-1, keepdims=0),
        helper.make_node("Gather", ["names", "best"], ["label"]),
    ]
    outputs = [("label", TensorProto.STRING, ["rows"]), ("probabilities", TensorProto.FLOAT, ["rows", 3])]
    write_onnx(path, nodes, outputs, ("W", models.WEIGHTS), ("names", np.array(CLASSES, object)))


def write_detector(path):
    """Write a model of boxes by rows, [rows, 84, 100]: 33,600 bytes for each."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
        helper.make_node("Unsqueeze", ["sum", "axes"], ["cube"]),
        helper.make_node("Mul", ["cube", "anchors"], ["output0"]),
    ]
    weights = ("axes", np.array([1])), ("anchors", np.ones((1, 84, 100), np.float32))
    write_onnx(path, nodes, [("output0", TensorProto.FLOAT, ["rows", 84, 100])], *weights)


@pytest.fixture(scope="module", autouse=True)
def gateway(broker, tmp_path_factory, state):
    library = tmp_path_factory.mktemp("models")
    write_classifier(library / "classifier" / "model.onnx")
    write_detector(library / "detector" / "model.onnx")
    models.write_release(library, models.dense(), "onnx")
    folder = tmp_path_factory.mktemp("gateway")
    with running(folder, models=library, state=state, config=CONFIG, mqtt=broker.url) as daemon:
        daemon.wait_logged("link completed")
        yield daemon


def asked(broker, route, rows):
    """Return what comes on the route's result topic for a message of `rows`."""
    with subscribed(broker, f"edge/bench/results/{route}/s", 1) as heard:
        publish(broker, f"{route}/s", json.dumps(rows.tolist()), "-s")
    return heard[0]["payload"]


def refused(broker, route, rows):
    """Return what comes on the error topic for it."""
    with subscribed(broker, "edge/bench/errors", 1) as heard:
        publish(broker, f"{route}/s", json.dumps(rows.tolist()), "-s")
    return heard[0]["payload"]


def softmax(rows, bias=0):
    scores = np.exp(rows @ models.WEIGHTS + bias)
    return scores / scores.sum(axis=1, keepdims=True)


def test_a_bare_classifier_says_what_the_model_said_for_every_row(broker):
    lines = asked(broker, "classifier", ROWS)["results"]
    wanted = softmax(ROWS)
    assert len(set(wanted.argmax(axis=1))) == len(CLASSES)
    for line, scores in zip(lines, wanted, strict=True):
        label, probabilities = line["outputs"]
        assert label == {"name": "label", "datatype": "BYTES", "shape": [1], "data": [CLASSES[scores.argmax()]]}
        described = {"name": "probabilities", "datatype": "FP32", "shape": [1, 3]}
        assert described.items() <= probabilities.items()
        assert probabilities["data"] == pytest.approx(scores, abs=1e-5)
    assert asked(broker, "classifier", ROWS[:1])["outputs"] == lines[0]["outputs"]


def test_a_manifest_with_labels_gives_a_label_for_every_row(broker):
    wanted = softmax(ROWS, models.BIAS)
    lines = asked(broker, "dense", ROWS)["results"]
    assert [line["label"] for line in lines] == [models.dense().labels[best] for best in wanted.argmax(axis=1)]
    assert [line["score"] for line in lines] == pytest.approx(wanted.max(axis=1), abs=1e-5)
    one = asked(broker, "dense", ROWS[:1])
    assert (one["label"], one["score"]) == (lines[0]["label"], pytest.approx(lines[0]["score"], abs=1e-6))


def test_a_route_names_outputs(broker, gateway):
    (output,) = asked(broker, "named", ROWS[:1])["outputs"]
    assert output["name"] == "probabilities"
    gateway.wait_logged(
        "MQTT route wrong is waiting for its model: route 'wrong': model 'classifier' has no output 'boxes'"
    )
    complaint = refused(broker, "wrong", ROWS[:1])
    assert complaint["fault"] == "UNAVAILABLE"
    assert "its outputs are label, probabilities" in complaint["message"]


def test_a_result_that_is_too_large_is_refused_with_the_remedy(broker):
    complaint = refused(broker, "detector", ROWS[:1])
    assert (complaint["topic"], complaint["fault"]) == ("detector/s", "TOO_LARGE")
    assert "mqtt.max_result_bytes" in complaint["message"]
