"""Ensembles of Triton and graphs of OpenVINO Model Server become pipelines, or are refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.pipeline import ModelStep, Pipeline
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.workshop.importing.imported import ImportedSource, ImportOutcome
from gateway.workshop.importing.openvino_server import read_openvino_server
from gateway.workshop.importing.release_writer import pipeline_text
from gateway.workshop.importing.triton import read_triton
from tests.simulators.import_sources import documents_of, write_openvino_server, write_sums, write_triton

ENSEMBLE = """
name: "both"
platform: "ensemble"
max_batch_size: 8
input [ { name: "RAW" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "MIDDLE" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "sums"
      model_version: 2
      input_map { key: "x" value: "prepared" }
      output_map { key: "y" value: "SCORES" }
    },
    {
      model_name: "sums"
      model_version: -1
      input_map { key: "x" value: "RAW" }
      output_map { key: "y" value: "prepared" }
    },
    {
      model_name: "other"
      input_map { key: "image" value: "RAW" }
      input_map { key: "shape" value: "prepared" }
      output_map { key: "out" value: "MIDDLE" }
    }
  ]
}
"""


def read(source: ImportedSource) -> Pipeline:
    assert source.skipped == ()
    (pipeline,) = source.pipelines
    return read_pipeline(pipeline_text(pipeline, 'a "source"\n'), "pipeline.toml")


def expressions(pipeline: Pipeline) -> list[tuple[str, str, dict[str, str]]]:
    steps = [step for step in pipeline.steps if isinstance(step, ModelStep)]
    return [(one.model, one.version, {name: each.text for name, each in one.inputs.items()}) for one in steps]


def triton(root: Path, config: str) -> ImportedSource:
    write_triton(root)
    (root / "both").mkdir()
    (root / "both" / "config.pbtxt").write_text(config)
    return read_triton(documents_of(root))


def remarks(source: ImportedSource, outcome: ImportOutcome) -> dict[str, str]:
    (pipeline,) = source.pipelines
    return {finding.what: finding.text for finding in pipeline.findings if finding.outcome is outcome}


def test_an_ensemble_becomes_a_pipeline_whose_steps_follow_what_they_read(tmp_path: Path) -> None:
    source = triton(tmp_path, ENSEMBLE)
    pipeline = read(source)
    assert [(each.name, each.kind, each.datatype.label, each.shape) for each in pipeline.inputs] == [
        ("RAW", "tensor", "FP32", (3,))
    ]
    assert expressions(pipeline) == [
        ("sums", "", {"x": "RAW"}),
        ("sums", "2", {"x": "sums_2.y"}),
        ("other", "", {"image": "RAW", "shape": "sums_2.y"}),
    ]
    assert {name: getattr(each, "text", "") for name, each in pipeline.outputs.items()} == {
        "SCORES": "sums_1.y",
        "MIDDLE": "other_3.out",
    }
    assert list(remarks(source, ImportOutcome.MISSING)) == ["model other"]


def test_names_that_no_expression_can_have_are_changed_with_a_remark(tmp_path: Path) -> None:
    changed = ENSEMBLE.replace('"RAW"', '"raw:0"').replace('"SCORES"', '"class"').replace("max_batch_size: 8", "")
    source = triton(tmp_path, changed)
    pipeline = read(source)
    assert [(each.name, each.shape) for each in pipeline.inputs] == [("raw_0", (3,))]
    assert list(pipeline.outputs) == ["class_", "MIDDLE"]
    (tmp_path / "again").mkdir()
    assert list(read(triton(tmp_path / "again", changed.replace('"class"', '"result"'))).outputs) == [
        "result_",
        "MIDDLE",
    ]
    told = [(each.what, each.text) for each in source.pipelines[0].findings if each.outcome is ImportOutcome.MISSING]
    assert told[:3] == [
        ("input raw:0", "clients send the shape [1, 3]: a pipeline has rows"),
        ("input raw:0", "is called raw_0 here: change the clients"),
        ("output class", "is called class_ here: change the clients"),
    ]


@pytest.mark.parametrize(("dims", "shape"), [("[ -1, 3 ]", (3,)), ("[ 1, 3 ]", (3,)), ("[ 4, 3 ]", (4, 3))])
def test_without_a_batch_size_the_first_dimension_counts_rows_if_it_may(
    tmp_path: Path, dims: str, shape: tuple[int, ...]
) -> None:
    config = ENSEMBLE.replace("max_batch_size: 8", "").replace("[ 3 ] } ]\noutput", f"{dims} }} ]\noutput")
    assert [each.shape for each in read(triton(tmp_path, config)).inputs] == [shape]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('value: "RAW"', 'value: "absent"', "nothing makes 'absent'"),
        ('input_map { key: "x" value: "RAW" }', 'input_map { key: "x" value: "SCORES" }', "read each other"),
        ('key: "y" value: "SCORES"', 'key: "y:0" value: "SCORES"', "'y:0' of 'sums_1' is no name"),
        ("dims: [ 3 ] } ]\noutput", "dims: [ 3 ] optional: true } ]\noutput", "input RAW is optional"),
        ("TYPE_FP32 dims: [ 3 ] } ]\noutput", "TYPE_STRING dims: [ 3 ] } ]\noutput", "several texts"),
        ('model_name: "other"', 'model_name: "other" model_namespace: "n"', "model_namespace"),
    ],
)
def test_what_a_pipeline_cannot_do_is_skipped(tmp_path: Path, old: str, new: str, words: str) -> None:
    source = triton(tmp_path, ENSEMBLE.replace(old, new))
    assert (source.pipelines, [model.name for model in source.models]) == ((), ["sums", "sums"])
    assert words in source.skipped[0].why


GRAPH: dict[str, Any] = {
    "name": "both",
    "inputs": ["image"],
    "nodes": [
        {
            "name": "Second node",
            "model_name": "sums",
            "type": "DL model",
            "inputs": [{"x": {"node_name": "first", "data_item": "found"}}],
            "outputs": [{"data_item": "y", "alias": "scores"}],
        },
        {
            "name": "first",
            "model_name": "sums",
            "version": 2,
            "type": "DL model",
            "inputs": [{"x": {"node_name": "request", "data_item": "image"}}],
            "outputs": [{"data_item": "y", "alias": "found"}],
        },
    ],
    "outputs": [
        {"label": {"node_name": "Second node", "data_item": "scores"}},
        {"middle": {"node_name": "first", "data_item": "found"}},
    ],
}


def server(root: Path, graph: dict[str, Any], rows: int | str = "rows") -> ImportedSource:
    write_openvino_server(root)
    for version in ("1", "2"):
        write_sums(root / "models" / "sums" / version / "sums.onnx", rows=rows)
    document = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps({**document, "pipeline_config_list": [graph]}))
    return read_openvino_server(documents_of(root))


@pytest.mark.parametrize("rows", ["rows", 1])
def test_a_graph_becomes_a_pipeline_with_the_types_of_its_models(tmp_path: Path, rows: int | str) -> None:
    pipeline = read(server(tmp_path, GRAPH, rows))
    assert [(each.name, each.datatype.label, each.shape) for each in pipeline.inputs] == [("image", "FP32", (3,))]
    assert expressions(pipeline) == [("sums", "2", {"x": "image"}), ("sums", "", {"x": "first.y"})]
    assert {name: getattr(each, "text", "") for name, each in pipeline.outputs.items()} == {
        "label": "second_node.y",
        "middle": "first.y",
    }


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (0, {"type": "custom", "library_name": "cutter"}, "node 'Second node' of the type 'custom' (cutter)"),
        (0, {"demultiply_count": 2}, "demultiply_count"),
        (1, {"gather_from_node": "x"}, "gather_from_node"),
        (1, {"model_name": "absent"}, "the type of input 'image' is not known"),
    ],
)
def test_what_a_graph_has_beyond_a_pipeline_is_skipped(
    tmp_path: Path, place: int, change: dict[str, Any], words: str
) -> None:
    nodes = [{**node, **(change if number == place else {})} for number, node in enumerate(GRAPH["nodes"])]
    source = server(tmp_path, {**GRAPH, "nodes": nodes})
    assert (source.pipelines, [model.name for model in source.models]) == ((), ["sums"])
    assert words in source.skipped[0].why


def test_a_damaged_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="node_name"):
        server(tmp_path, {**GRAPH, "outputs": [{"label": {"data_item": "scores"}}]})
