"""Content of a result: a label where an output is a score vector by the rule, else every output's exact values."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.mqtt.outbound import contents
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan, check_size, plan_results, write_results
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.outbound.results import write_result
from gateway.serving.frontends.mqtt.outbound.rows import read_rows
from gateway.serving.frontends.mqtt.settings.results import DEFAULT, ResultSettings
from tests.simulators.examples import examples

FP32, INT64 = Datatype.FP32, Datatype.INT64
ABC = ("a", "b", "c")
LIMIT_BYTES = 2**20
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def model(
    *outputs: TensorSpec, labels: tuple[str, ...] = (), task: str = "", rows: int = -1, batch: bool = True
) -> ModelManifest:
    x = TensorSpec("x", FP32, (rows, 4))
    return ModelManifest("m", "1", (x,), outputs, (), task=task, labels=labels, batch=batch)


def out(name: str, *shape: int, datatype: Datatype = FP32, softmax: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, shape, postprocess="softmax" if softmax else "")


def published(
    manifest: ModelManifest,
    outputs: dict[str, Tensor],
    *,
    named: tuple[str, ...] = (),
    rows: int = 1,
    limit_bytes: int = LIMIT_BYTES,
    result: ResultSettings = DEFAULT,
) -> dict[str, Any]:
    plan = plan_results(manifest, named, result)
    ready = Ready("s", manifest, plan, Tensor(FP32, np.zeros((rows, 4), np.float32)), 0, 1_500_000_000)
    response = InferResponse("m", "1", "i", outputs, "v")
    line = write_results(plan, outputs, rows, limit_bytes)
    payload = write_result("i", ready, response, line)
    check_size(len(payload), limit_bytes)
    return dict(json.loads(payload))


def fp32(values: Any) -> Tensor:
    return Tensor(FP32, np.array(values, np.float32))


@pytest.mark.parametrize(
    ("manifest", "named", "scores"),
    [
        (model(out("y", -1, 3), labels=ABC), (), "y"),
        (model(out("y", 3), labels=ABC, rows=1), (), "y"),
        (model(out("y", 1, 3), labels=ABC, task="image-classification"), (), "y"),
        (model(out("y", -1, 3, datatype=Datatype.UINT8), labels=ABC), (), "y"),
        (model(out("label", -1, datatype=INT64), out("probabilities", -1, 3), labels=ABC), (), "probabilities"),
        (model(out("logits", -1, 3), out("p", -1, 3, softmax=True), labels=ABC), (), "p"),
        (model(out("logits", -1, 3), out("p", -1, 3), labels=ABC), ("logits",), "logits"),
        (model(out("y", -1, 3, softmax=True), labels=ABC, task="tracking"), (), "y"),
        (model(out("y", -1, 7), task="classification"), (), "y"),
        (model(out("y", -1, 7, softmax=True)), (), "y"),
        # a bare model, and what is no score vector of the labels' size
        (model(out("y", -1, 3)), (), ""),
        (model(out("label", -1, datatype=INT64), out("probabilities", -1, 3)), (), ""),
        (model(out("label", -1, datatype=INT64), out("p", -1, 3), task="classification"), (), ""),
        (model(out("label", -1, datatype=Datatype.BYTES), labels=ABC, task="classification"), (), ""),
        (model(out("y", -1, 3, datatype=INT64), labels=ABC), (), ""),
        (model(out("variable", -1, 1), task="classification"), (), ""),
        (model(out("y", -1, 4), labels=ABC, task="classification"), (), ""),
        (model(out("y", -1, -1), labels=ABC), (), ""),
        (model(out("y", -1, 84, 100), labels=ABC * 33 + ("z",)), (), ""),
        (model(out("y", 5, 3), labels=ABC), (), ""),
        (model(out("boxes", -1, 3), labels=ABC, task="object-detection"), (), ""),
        (model(out("logits", -1, 3), out("p", -1, 3), labels=ABC), (), ""),
        (model(out("y", -1, 3), out("z", -1, 2), labels=ABC), ("z",), ""),
    ],
)
def test_an_output_is_a_score_vector_by_the_rule_or_not_at_all(
    manifest: ModelManifest, named: tuple[str, ...], scores: str
) -> None:
    assert plan_results(manifest, named).scores == scores


def test_one_row_with_scores_has_the_form_that_dashboards_read() -> None:
    result = published(model(out("y", -1, 3), labels=ABC), {"y": fp32([[0.25, 0.75, 0]])})
    began, ended = "1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.500Z"
    assert list(result.items()) == [
        *(("id", "i"), ("label", "b"), ("score", 0.75), ("model", "m"), ("version", "1"), ("variant", "v")),
        *(("sensor", "s"), ("started_at", began), ("ended_at", ended)),
    ]


def test_each_row_has_a_label_of_its_own() -> None:
    result = published(model(out("y", -1, 3), labels=ABC), {"y": fp32([[1, 2, 3], [6, 5, 4]])}, rows=2)
    assert result["results"] == [{"label": "c", "score": 3.0}, {"label": "a", "score": 6.0}]
    assert not {"label", "score", "outputs"} & result.keys()


def test_a_model_without_rows_gives_its_outputs_whole() -> None:
    steps = model(out("y", -1, 3), labels=ABC, batch=False)
    result = published(steps, {"y": fp32([[1, 2, 3], [4, 5, 6]])}, rows=2)
    assert result["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]
    assert not {"label", "score", "results"} & result.keys()


def test_a_default_scikit_learn_classifier_gives_its_own_label_and_probabilities() -> None:
    bare = model(out("label", -1, datatype=Datatype.BYTES), out("probabilities", -1, 2))
    said = {"label": Tensor(Datatype.BYTES, np.array([b"on", "off"], object)), "probabilities": fp32([[0, 1], [1, 0]])}
    rows = published(bare, said, rows=2)["results"]
    assert rows == [
        {
            "outputs": [
                {"name": "label", "datatype": "BYTES", "shape": [1], "data": [label]},
                {"name": "probabilities", "datatype": "FP32", "shape": [1, 2], "data": data},
            ]
        }
        for label, data in (("on", [0.0, 1.0]), ("off", [1.0, 0.0]))
    ]


def test_all_scores_or_the_best_come_by_label() -> None:
    manifest, outputs = model(out("y", -1, 3), labels=ABC), {"y": fp32([[0.25, 0.5, 0.25]])}
    every = published(manifest, outputs, result=ResultSettings(content="scores"))
    assert list(every["scores"].items()) == [("b", 0.5), ("a", 0.25), ("c", 0.25)]
    assert (every["label"], every["score"]) == ("b", 0.5)
    best = published(manifest, outputs, result=ResultSettings(content="scores", top_k=2))
    assert list(best["scores"]) == ["b", "a"]
    broken = published(manifest, {"y": fp32([[1, math.nan, 0]])}, result=ResultSettings(content="scores"))
    assert (broken["label"], broken["scores"]) == (None, {})


@pytest.mark.parametrize(
    ("outputs", "rows", "wanted"),
    [
        ({"y": fp32([[21.5]])}, 1, {"value": 21.5}),
        ({"y": fp32([21.5])}, 1, {"value": 21.5}),
        ({"y": fp32([[1, 2]])}, 1, {"values": {"y": [1, 2]}}),
        ({"y": fp32([[1]]), "z": fp32([[2, 3]])}, 1, {"values": {"y": 1, "z": [2, 3]}}),
        ({"y": fp32([[1], [2]])}, 2, {"results": [{"value": 1}, {"value": 2}]}),
        ({"y": fp32([[math.inf]])}, 1, {"value": "Infinity"}),
        ({"y": Tensor(Datatype.BYTES, np.array([b"hot"], object))}, 1, {"value": "hot"}),
    ],
)
def test_values_are_plain(outputs: dict[str, Tensor], rows: int, wanted: dict[str, Any]) -> None:
    manifest = model(*(out(name, -1, -1) for name in outputs))
    result = published(manifest, outputs, rows=rows, result=ResultSettings(content="values"))
    assert wanted.items() <= result.items()
    assert "outputs" not in result


def test_scores_and_values_of_a_row_are_what_rules_read() -> None:
    plan = plan_results(model(out("y", -1, 3), labels=ABC))
    rows = read_rows(plan, {"y": fp32([[1, 2, 3], [6, 5, 4]])}, 2)
    assert [(row.label, row.score, row.score_of("b"), row.best_labels(2)) for row in rows] == [
        ("c", 3.0, 2.0, ["c", "b"]),
        ("a", 6.0, 5.0, ["a", "b"]),
    ]
    assert rows[0].value is None
    regressor = read_rows(plan_results(model(out("y", -1, 1))), {"y": fp32([[1], [2]])}, 2)
    assert [row.value for row in regressor] == [1.0, 2.0]
    whole = read_rows(plan_results(model(out("y", -1, 1), batch=False)), {"y": fp32([[1], [2]])}, 2)
    assert [row.value for row in whole] == [None]


def test_named_outputs_come_beside_the_label() -> None:
    manifest = model(out("y", -1, 3), out("z", -1, 1), labels=ABC)
    result = published(manifest, {"y": fp32([[1, 2, 0]])}, named=("y",))
    assert (result["label"], result["score"]) == ("b", 2.0)
    assert result["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 0.0]}]


@pytest.mark.parametrize(
    ("scores", "label", "score"),
    [([0, math.nan, 1], None, None), ([0, math.inf, 1], "b", None), ([-math.inf, 0, 0], "b", 0.0)],
)
def test_scores_that_are_not_finite(scores: list[float], label: str | None, score: float | None) -> None:
    result = published(model(out("y", -1, 3), labels=ABC), {"y": fp32([scores])})
    assert (result["label"], result["score"]) == (label, score)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (1, 3), (2, 3, 1)])
def test_an_answer_of_another_shape_than_declared_is_published_whole(shape: tuple[int, ...]) -> None:
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    result = published(model(out("y", -1, 3), labels=ABC), {"y": Tensor(FP32, values)}, rows=2)
    lines = result.get("results", [result])
    assert not any("label" in line for line in lines)
    assert [value for line in lines for value in line["outputs"][0]["data"]] == values.ravel().tolist()


def test_what_exceeds_the_bound_is_refused_with_the_remedy() -> None:
    for values in (np.zeros(1000, np.float32), np.full(400, 0.1, np.float32)):  # before and after it is written
        with pytest.raises(RequestError, match=r"outputs, or raise mqtt\.max_result_bytes") as refused:
            published(model(out("y", -1)), {"y": Tensor(FP32, values)}, rows=len(values), limit_bytes=1024)
        assert refused.value.fault is Fault.TOO_LARGE
    text = Tensor(Datatype.BYTES, np.array([b"x" * 2000], object))
    with pytest.raises(RequestError, match="max_result_bytes"):
        published(model(out("y", -1, datatype=Datatype.BYTES)), {"y": text}, limit_bytes=1024)


@pytest.mark.parametrize(
    ("content", "shape", "least_bytes"),
    [
        ("scores", (1000, 1000), 1000 * (20 + 1000 * 5)),
        ("label", (50_000, 10), 50_000 * 20),
        ("scores", (1, 100_000), 20 + 100_000 * 5),
    ],
)
def test_labels_and_scores_that_exceed_the_bound_are_refused_before_they_are_built(
    content: str, shape: tuple[int, int], least_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(contents, "_best_classes")
    plan = ResultPlan("y", shape[1], batched=True, content=content)
    with pytest.raises(RequestError, match=f"at least {least_bytes} bytes") as refused:
        write_results(plan, {"y": fp32(np.zeros(shape))}, shape[0], 256 * 1024)
    assert refused.value.fault is Fault.TOO_LARGE


labels = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=2, max_size=5)


@given(
    labels=st.one_of(st.just([]), labels),
    rows=st.integers(0, 3),
    content=st.sampled_from(["label", "scores", "values"]),
    top_k=st.integers(0, 9),
    named=st.sampled_from([(), ("y",), ("other",)]),
    other_rows=st.integers(1, 3),
    data=st.data(),
)
def test_a_result_that_fits_is_never_refused(
    *,
    labels: list[str],
    rows: int,
    content: str,
    top_k: int,
    named: tuple[str, ...],
    other_rows: int,
    data: st.DataObject,
) -> None:
    classes = len(labels) or 4
    score = st.sampled_from([0, 1, 0.25, math.nan, math.inf, -math.inf])
    scores = data.draw(st.lists(st.lists(score, min_size=classes, max_size=classes), min_size=rows, max_size=rows))
    outputs = {
        "y": Tensor(FP32, np.array(scores, np.float32).reshape(rows, classes)),
        "other": Tensor(INT64, np.zeros(other_rows, np.int64)),
    }
    plan = ResultPlan("y", classes, tuple(labels), named, batched=True, content=content, top_k=top_k)
    size_bytes = len(msgspec.json.encode(write_results(plan, outputs, rows, LIMIT_BYTES)))
    write_results(plan, outputs, rows, size_bytes)


def test_bytes_that_are_no_text_are_refused_with_the_remedy() -> None:
    with pytest.raises(RequestError, match="name other outputs") as refused:
        published(model(out("y", 1)), {"y": Tensor(Datatype.BYTES, np.array([b"\xff"], object))})
    assert refused.value.fault is Fault.UNSUPPORTED


# ---- for any manifest and any answer ---------------------------------------------------------------------------------
dimensions = st.sampled_from([-1, 1, 2, 3])
datatypes = st.sampled_from([FP32, Datatype.FP16, Datatype.FP64, Datatype.BF16, INT64, Datatype.UINT8, Datatype.BYTES])
specs = st.builds(
    lambda shape, datatype, softmax: (tuple(shape), datatype, softmax and datatype.dtype.kind == "f"),
    st.lists(dimensions, max_size=3),
    datatypes,
    st.booleans(),
)


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], datatype: Datatype) -> Tensor:
    """Draw a tensor, most often as declared, sometimes of another shape."""
    actual = [draw(st.integers(0, 3)) if draw(st.integers(0, 9)) == 0 else max(size, 1) for size in shape]
    count = math.prod(actual)
    if datatype is Datatype.BYTES:
        array = np.empty(count, object)
        array[:] = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=3).map(str.encode), min_size=count))[
            :count
        ]
    elif datatype.dtype.kind == "f":
        odd = st.sampled_from([math.nan, math.inf, -math.inf, 0.1, -0.0])
        numbers = st.floats(width=64 if datatype is Datatype.FP64 else 16) | odd
        array = np.array(draw(st.lists(numbers, min_size=count, max_size=count)), datatype.dtype)
    else:
        info = np.iinfo(datatype.dtype)
        whole = st.integers(int(info.min), int(info.max))
        array = np.array(draw(st.lists(whole, min_size=count, max_size=count)), datatype.dtype)
    return Tensor(datatype, array.reshape(actual))


@st.composite
def answered(draw: st.DrawFn) -> tuple[ModelManifest, tuple[str, ...], dict[str, Tensor], int]:
    rows = draw(st.integers(0, 3))
    labels = draw(st.sampled_from([(), ("a",), ("a", "b"), ABC]))
    vector = [((-1, len(labels) or 3), FP32, False)] if draw(st.booleans()) else []
    drawn = vector + draw(st.lists(specs, min_size=not vector, max_size=2))
    names = [f"o{index}" for index in range(len(drawn))]
    outputs = tuple(out(name, *s, datatype=d, softmax=p) for name, (s, d, p) in zip(names, drawn, strict=True))
    manifest = model(
        *outputs,
        labels=labels,
        batch=draw(st.sampled_from([True, True, False])),
        task=draw(st.sampled_from(["", "classification", "audio-classification", "object-detection"])),
    )
    named = tuple(draw(st.lists(st.sampled_from(names), unique=True)))
    sized = {spec.name: tuple(rows if size == -1 else size for size in spec.shape) for spec in outputs}
    asked = named or tuple(names)
    given_ = {name: draw(tensors(sized[name], spec.datatype)) for name, spec in zip(names, outputs, strict=True)}
    return manifest, named, {name: given_[name] for name in asked}, rows


def value_of(element: Any, tensor: Tensor) -> Any:
    """Return an element of `data` as the model gave it."""
    if tensor.datatype is Datatype.BYTES:
        return element.encode()
    return SPECIAL[element] if isinstance(element, str) else element


def shortest(element: Any) -> Any:
    """Return the shortest decimal of a float; what a Python value is without numpy."""
    return float(str(element)) if isinstance(element, np.floating) else np.asarray(element).item()


def carries(line: dict[str, Any], expected: dict[str, Tensor]) -> bool:
    """Return whether the outputs of `line` are exactly `expected`, by name, datatype, shape, and float repr."""
    found = {each["name"]: each for each in line.get("outputs", ())}
    return found.keys() == expected.keys() and all(
        each["datatype"] == expected[name].datatype.label
        and each["shape"] == list(expected[name].array.shape)
        and [repr(value_of(element, expected[name])) for element in each["data"]]
        == [repr(shortest(element)) for element in expected[name].array.ravel()]
        for name, each in found.items()
    )


def best_of(plan: ResultPlan, scores: np.ndarray[Any, Any]) -> tuple[str | None, float | None]:
    """Label and score by the rule, computed without argmax."""
    values = [float(shortest(value)) for value in scores]
    if any(math.isnan(value) for value in values):
        return None, None
    index = values.index(max(values))
    return plan.labels[index] if plan.labels else str(index), max(values) if math.isfinite(max(values)) else None


@settings(max_examples=examples(300))
@given(answered())
def test_a_result_is_the_best_class_of_a_score_vector_or_all_values_exactly(
    drawn: tuple[ModelManifest, tuple[str, ...], dict[str, Tensor], int],
) -> None:
    manifest, named, outputs, rows = drawn
    plan = plan_results(manifest, named)
    result = published(manifest, outputs, named=named, rows=rows)
    labelled = "label" in result or any("label" in line for line in result.get("results", ()))
    if labelled:
        spec = manifest.output(plan.scores)
        assert spec is not None
        assert spec.shape[-1] == outputs[plan.scores].array.shape[-1] == (len(manifest.labels) or spec.shape[-1])
        assert manifest.labels or len(manifest.outputs) == 1
    if "results" not in result:
        if labelled:
            scores = outputs[plan.scores].array.ravel()
            assert len(scores) == plan.classes
            assert (result["label"], result["score"]) == best_of(plan, scores)
        assert carries(result, outputs if named or not labelled else {})
        return
    assert manifest.batched
    assert len(result["results"]) == rows != 1
    for row, line in enumerate(result["results"]):
        if labelled:
            assert (line["label"], line["score"]) == best_of(plan, outputs[plan.scores].array[row])
        sliced = {name: Tensor(each.datatype, each.array[row : row + 1]) for name, each in outputs.items()}
        assert carries(line, sliced if named or not labelled else {})
