"""Classification: ranks as scikit-learn ranks them, thresholds, several labels, label outputs, no scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.classification import Classification, ClassificationResult
from gateway.serving.tasks.interpreter import Interpreter
from tests.simulators.task_models import model, options, output

LABELS = ("cat", "dog", "fish")


def classify(scores: object, text: str = "", labels: tuple[str, ...] = LABELS) -> ClassificationResult:
    row = np.asarray(scores, np.float32)
    task = Classification(model(output(shape=(-1, *row.shape)), labels=labels), options(text))
    return task.interpret({"y": row}, None)


def refusal(text: str, *outputs: TensorSpec, labels: tuple[str, ...] = LABELS) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        Classification(model(*outputs, labels=labels), options(text))
    return error.value


def listed(result: ClassificationResult) -> list[str]:
    return [entry["label"] for entry in result.document()["classes"]]


def test_the_document_has_the_best_label_and_all_listed_classes() -> None:
    assert classify([0.25, 0.5, 0.125], "top_k = 2").document() == {
        "label": "dog",
        "score": 0.5,
        "classes": [{"label": "dog", "class": 1, "score": 0.5}, {"label": "cat", "class": 0, "score": 0.25}],
    }


def test_the_tensors_are_as_declared() -> None:
    got = classify([0.25, 0.5, 0.125], "top_k = 2").tensors()
    assert got["class"].tolist() == [1, 0]
    assert got["score"].tolist() == [0.5, 0.25]
    assert got["label"].tolist() == [b"dog", b"cat"]
    assert {spec.name: spec.datatype.dtype for spec in Classification.results} == {
        name: array.dtype for name, array in got.items()
    }


def test_without_labels_a_class_is_called_by_its_index() -> None:
    assert classify([0.1, 0.9], labels=()).document()["label"] == "1"


@pytest.mark.parametrize(
    ("activation", "reference"), [("softmax", scipy.special.softmax), ("sigmoid", scipy.special.expit)]
)
def test_activations_are_those_of_scipy(activation: str, reference: object) -> None:
    logits = np.array([3.0, -1.0, 100.0, -800.0, 0.0], np.float32)
    got = classify(logits, f'activation = "{activation}"\nthreshold = -1\ntop_k = 9', tuple("abcde"))
    order = np.argsort(-logits, kind="stable")
    assert np.allclose(got.scores, reference(logits.astype(np.float64))[order], rtol=1e-12, atol=0)  # type: ignore[operator]


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_the_label_is_among_the_listed_as_often_as_scikit_learn_counts(seed: int, count: int) -> None:
    from sklearn.metrics import top_k_accuracy_score

    rng = np.random.default_rng(seed)
    scores, truth = rng.random((20, 7)).astype(np.float32), rng.integers(0, 7, 20)
    task = Classification(model(output(shape=(-1, 7))), options(f"top_k = {count}"))
    hits = [label in task.interpret({"y": row}, None).classes for row, label in zip(scores, truth, strict=True)]
    assert np.mean(hits) == pytest.approx(top_k_accuracy_score(truth, scores, k=count, labels=range(7)))


ANY_SCORES = arrays.arrays(np.float32, st.integers(2, 8), elements=st.floats(width=32))


@given(ANY_SCORES, st.sampled_from(["softmax", "sigmoid"]))
def test_probabilities_are_in_range_and_a_row_with_nan_has_no_label(scores: Array, activation: str) -> None:
    got = classify(scores, f'activation = "{activation}"\nmulti_label = false', tuple("abcdefgh"[: len(scores)]))
    assert ((got.scores >= 0) & (got.scores <= 1)).all()
    document = got.document()
    json.dumps(document, allow_nan=False)
    if np.isnan(scores).any():
        assert document == {"label": None, "score": None, "classes": []}


@given(ANY_SCORES)
def test_the_order_is_by_score_and_then_by_class(scores: Array) -> None:
    got = classify(scores, "top_k = 100", labels=())
    pairs = list(zip((-got.scores).tolist(), got.classes.tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert len(pairs) == (0 if np.isnan(scores).any() else len(scores))
    json.dumps(got.document(), allow_nan=False)


def test_thresholds_for_all_classes_and_for_single_ones() -> None:
    scores = [0.3, 0.5, 0.4]
    assert listed(classify(scores, "threshold = 0.35")) == ["dog", "fish"]
    assert listed(classify(scores, "threshold = 0.35\nthresholds = {dog = 0.6, cat = 0.1}")) == ["fish", "cat"]
    assert classify(scores, "threshold = 0.9").document() == {"label": None, "score": None, "classes": []}


def test_several_labels_of_one_row() -> None:
    got = classify([2.0, -2.0, 1.0], 'activation = "sigmoid"')
    assert [entry["label"] for entry in got.document()["classes"]] == ["cat", "fish"]
    assert "label" not in got.document()


@pytest.mark.parametrize(("score", "label"), [(0.75, "bad"), (0.25, "good")])
def test_one_score_decides_between_two_labels(score: float, label: str) -> None:
    document = classify([score], labels=("good", "bad")).document()
    assert (document["label"], document["score"]) == (label, 0.75)
    logit = classify([2.0], 'activation = "sigmoid"', ("good", "bad")).document()
    assert logit["label"] == "bad"
    assert logit["score"] == pytest.approx(scipy.special.expit(2.0))


def test_frames_of_a_recording_are_reduced() -> None:
    frames = [[0.9, 0.0, 0.1], [0.0, 0.5, 0.2], [0.0, 0.7, 0.3]]
    assert classify(frames, 'pool = "mean"').document()["label"] == "dog"
    assert classify(frames, 'pool = "max"').document()["label"] == "cat"


def test_dimensions_of_size_one_do_not_matter() -> None:
    assert classify(np.array([0.1, 0.2, 0.9]).reshape(1, 3, 1, 1)).document()["label"] == "fish"


def test_quantised_scores_have_a_scale() -> None:
    task = Classification(model(output(datatype=Datatype.INT8)), options("scale = 0.00390625\nzero_point = -128"))
    got = task.interpret({"y": np.array([-128, 127, 0], np.int8)}, None)
    assert got.scores.tolist() == [255 / 256, 0.5, 0.0]


LABEL, PROBABILITIES = output("label", (-1,), Datatype.INT64), output("probabilities", (-1, 2))


@pytest.mark.parametrize("label", [np.array(7, np.int64), np.array(b"7", object), np.array(["7"], object)])
def test_the_label_output_of_skl2onnx_decides(label: Array) -> None:
    datatype = Datatype.INT64 if label.dtype == np.int64 else Datatype.BYTES
    outputs = TensorSpec("label", datatype, (-1, *label.shape)), PROBABILITIES
    text = 'output = "probabilities"\nlabel_output = "label"'
    task = Classification(model(*outputs, labels=("3", "7")), options(text))
    document = task.interpret({"label": label, "probabilities": np.array([0.6, 0.4])}, None).document()
    assert (document["label"], document["score"]) == ("7", 0.4)
    assert [entry["class"] for entry in document["classes"]] == [1, 0]


def test_texts_of_several_rows_are_read_one_by_one() -> None:
    outputs = TensorSpec("label", Datatype.BYTES, (-1,)), PROBABILITIES
    manifest = model(*outputs, labels=("3", "7"))
    task = Classification(manifest, options('output = "probabilities"\nlabel_output = "label"'))
    answer = {"label": np.array([b"7", b"3"], object), "probabilities": np.array([[0.6, 0.4], [0.9, 0.1]])}
    (documents, *_) = Interpreter(task, manifest).interpret(answer, None, {}, ()).values()
    assert [json.loads(document)["label"] for document in documents] == ["7", "3"]


def test_a_label_that_the_manifest_does_not_have_is_refused() -> None:
    task = Classification(
        model(LABEL, PROBABILITIES, labels=("3", "7")), options('output = "probabilities"\nlabel_output = "label"')
    )
    with pytest.raises(RequestError, match="the class '5'") as error:
        task.interpret({"label": np.array(5), "probabilities": np.array([0.6, 0.4])}, None)
    assert error.value.fault is Fault.UNSUPPORTED


@pytest.mark.parametrize(
    ("outputs", "words"),
    [({}, "no output 'y'"), ({"y": np.zeros(4)}, "shape \\[4\\]"), ({"y": np.zeros((1, 3))}, "shape \\[1, 3\\]")],
)
def test_outputs_that_are_not_as_declared_are_refused(outputs: dict[str, Array], words: str) -> None:
    with pytest.raises(RequestError, match=words) as error:
        Classification(model(labels=LABELS), options()).interpret(outputs, None)
    assert error.value.fault is Fault.UNSUPPORTED


@pytest.mark.parametrize(("size", "pool"), [(0, "mean"), (4, "mean"), (6, "none")])
def test_an_open_output_must_hold_scores_of_all_classes(size: int, pool: str) -> None:
    task = Classification(model(output(shape=(-1, -1)), labels=LABELS), options(f'pool = "{pool}"'))
    with pytest.raises(RequestError, match="no scores of 3 classes"):
        task.interpret({"y": np.zeros(size)}, None)


REFUSALS = [
    ("zz = 1", (), "zz", "unknown key"),
    ('output = "z"', (), "output", "must name an output"),
    ("", (LABEL, PROBABILITIES), "output", "label, probabilities"),
    ('activation = "relu"', (), "activation", "must be one of"),
    (
        'activation = "softmax"',
        (TensorSpec("y", Datatype.FP32, (-1, 3), postprocess="softmax"),),
        "activation",
        "already",
    ),
    ("thresholds = {bird = 0.5}", (), "bird", "no label"),
    ("threshold = inf", (), "threshold", "between"),
    ("top_k = 0", (), "top_k", "between"),
    ("", (output(shape=(-1, 4)),), "output", "4 scores, but the manifest has 3 labels"),
    ("", (output(shape=(-1, 1)),), "output", "1 scores, but the manifest has 3 labels"),
    ("", (output(shape=(-1, 5, 3)),), "pool", "several axes"),
    ('label_output = "y"', (), "label_output", "(none)"),
]


@pytest.mark.parametrize(("text", "outputs", "key", "words"), REFUSALS)
def test_options_that_do_not_fit_are_refused(text: str, outputs: tuple[TensorSpec, ...], key: str, words: str) -> None:
    error = refusal(text, *outputs)
    assert error.key == key
    assert words in error.problem


def test_a_number_of_classes_must_be_known() -> None:
    assert "needs labels" in refusal("", output(shape=(-1, -1)), labels=()).problem
    both = 'multi_label = true\nactivation = "sigmoid"'
    assert refusal(both, output(shape=(-1, 1)), labels=("a", "b")).key == "multi_label"
    assert refusal('activation = "softmax"', output(shape=(-1, 1)), labels=("a", "b")).key == "activation"
    assert "name two labels" in refusal("", output(shape=(-1, 1)), labels=()).problem
    assert listed(classify([0.0], 'activation = "sigmoid"', ("smoke",))) == ["smoke"]
    named = 'output = "probabilities"\nlabel_output = "label"'
    assert refusal(named, LABEL, PROBABILITIES, labels=()).key == "label_output"


@pytest.mark.parametrize("kind", [kind for kind, task in TASKS.items() if task is Classification])
def test_every_kind_of_classification_is_in_the_catalogue(kind: str) -> None:
    assert kind.endswith("classification") or kind == "keyword-spotting"
    assert TASKS[kind](model(labels=LABELS), options()).results == Classification.results
