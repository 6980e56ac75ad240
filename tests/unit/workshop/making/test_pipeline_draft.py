"""Drafts of pipelines: a detector's crops, a chain, models side by side; whatever is drafted can be loaded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.pipeline import ModelStep, Pipeline, SelectStep
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.tensor import Datatype
from gateway.serving.pipelines.plan import plan
from gateway.workshop.making.pipeline_draft import draft_pipeline

RESULT = TensorSpec("result", Datatype.BYTES, (ROWS,))
IMAGE = TensorSpec("pixels", Datatype.FP32, (ROWS, 3, 8, 8), preprocess=Preprocess(("jpeg", "png"), resize=(8, 8)))


def fp32(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, Datatype.FP32, (ROWS, *shape))


def model(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], answered: int = 0) -> ModelManifest:
    names = tuple(spec.name for spec in outputs[:answered])
    return ModelManifest(name, "1", tuple(inputs), tuple(outputs), (), labels=("cat", "dog"), answered=names)


FOUND = [RESULT, fp32("boxes", -1, 4), fp32("scores", -1), TensorSpec("classes", Datatype.INT32, (ROWS, -1))]
POOL = {
    one.name: one
    for one in (
        model("finder", [IMAGE], FOUND, 4),
        model("reader", [IMAGE], [RESULT, TensorSpec("text", Datatype.BYTES, (ROWS,)), fp32("logits", 5)], 2),
        model("Embed.der", [IMAGE], [fp32("vector", 16)]),
        model("table", [fp32("vector", 16)], [fp32("y", 4)]),
        model("next", [fp32("x", 4)], [fp32("y", 4), fp32("other:0", 2)]),
        model("two", [fp32("x", 4), fp32("class", 2)], [fp32("y", 4)]),
        model("words", [TensorSpec("text", Datatype.BYTES, (ROWS, 1))], [fp32("y", 4)]),
        ModelManifest(
            "fixed", "1", (TensorSpec("x", Datatype.FP32, (1, 4)),), (TensorSpec("y", Datatype.FP32, (1, 4)),), ()
        ),
        model("texts", [TensorSpec("t", Datatype.BYTES, (ROWS, 3))], [fp32("y", 4)]),
        model("nameless", [fp32("x", 4)], [fp32("y:0", 4)]),
    )
}


def drafted(*names: str) -> Pipeline:
    """Return what is drafted, after it was compiled against the models."""
    text = draft_pipeline("all", "1", [(name, POOL[name.partition("@")[0]]) for name in names])
    pipeline = read_pipeline(text, "pipeline.toml")
    plan(pipeline, lambda name, _: POOL[name], lambda _: pytest.fail("no gallery is drafted"))
    return pipeline


def sources(pipeline: Pipeline) -> dict[str, list[str]]:
    steps = [step for step in pipeline.steps if isinstance(step, ModelStep)]
    return {step.name: [each.text for each in step.inputs.values()] for step in steps}


def test_what_takes_images_after_a_detector_gets_the_parts_in_its_boxes() -> None:
    pipeline = drafted("finder@1", "reader", "Embed.der")
    assert [(each.name, each.kind) for each in pipeline.inputs] == [("image", "image")]
    assert sources(pipeline) == {
        "finder": ["image"],
        "reader": ["crop(image, best.box, 1.1)"],
        "embed_der": ["crop(image, best.box, 1.1)"],
    }
    assert [step.source for step in pipeline.steps if isinstance(step, SelectStep)] == ["finder"]
    objects = pipeline.outputs["finder_objects"]
    assert isinstance(objects, dict)
    assert list(objects) == ["box", "label", "score", "reader_text", "embed_der_vector"]
    assert pipeline.models == (("finder", "1"), ("reader", ""), ("Embed.der", ""))


def test_models_follow_each_other_where_shapes_fit_and_else_stand_side_by_side() -> None:
    assert sources(drafted("table", "next", "next")) == {"table": ["vector"], "next": ["table.y"], "next_2": ["next.y"]}
    assert list(drafted("table", "next").outputs) == ["next_y"]
    assert sources(drafted("next", "table")) == {"next": ["x"], "table": ["vector"]}
    assert sources(drafted("next", "two")) == {"next": ["x"], "two": ["x", "two_class"]}
    assert list(drafted("next", "table").outputs) == ["next_y", "table_y"]


@pytest.mark.parametrize(("name", "words"), [("texts", "several texts for a row"), ("nameless", "no names in expres")])
def test_what_a_pipeline_cannot_run_is_refused_in_words(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        drafted(name)


@given(st.lists(st.sampled_from([name for name in POOL if name not in {"texts", "nameless"}]), min_size=1, max_size=6))
def test_whatever_is_drafted_can_be_loaded(names: list[str]) -> None:
    pipeline = drafted(*names)
    assert len([step for step in pipeline.steps if isinstance(step, ModelStep)]) == len(names)
