"""Sequences of models: `[sequence]` of a manifest, and `sequence_batching` of Triton's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError, UnofferedError, VariantError
from gateway.common.domain.manifest import (
    Artifact,
    ControlInput,
    ModelManifest,
    SequenceBatching,
    StateTensors,
    StreamLimits,
    TensorSpec,
    Variant,
)
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.statistics import Placement
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.triton_config import read_config
from gateway.common.domain.triton_manifest import described
from gateway.serving.frontends.documents import model_config
from gateway.workshop.importing.release_writer import release_text
from gateway.workshop.importing.triton import read_triton
from gateway.workshop.making.manifest_text import manifest_text
from tests.simulators.import_sources import documents_of
from tests.simulators.sequences_made import write_accumulator, write_triton_examples
from tests.unit.common.domain.test_manifest_toml import HEX


def tensor(side: str, name: str, datatype: str = "FP32", shape: str = "[-1, 1]") -> str:
    return f'[[{side}]]\nname = "{name}"\ndatatype = "{datatype}"\nshape = {shape}\n'


TENSORS = (
    *(tensor("input", "x"), tensor("input", "h", shape="[2, 1, 8]"), tensor("input", "start", "BOOL")),
    *(tensor("input", "id", "BYTES"), tensor("output", "y"), tensor("output", "hn", shape="[2, -1, 8]")),
)
SEQUENCE = """[sequence]
keys = 50
idle_s = 0.5
keep_on_disk = true
keep_state = true
[[sequence.state]]
input = "h"
output = "hn"
initial = -1.5
[[sequence.control]]
kind = "start"
input = "start"
false_true = [1, 0]
[[sequence.control]]
kind = "corrid"
input = "id"
"""
VARIANT = f"""[[variant]]
name = "onnx"
runtime = "onnx"
precision = "fp32"
artifacts = [{{path = "model.onnx", sha256 = "{HEX}", bytes = 1}}]
"""
WHOLE = 'schema = 1\nname = "m"\nversion = "1"\n' + "".join(TENSORS) + SEQUENCE + VARIANT


def test_sequences_are_read_and_written() -> None:
    manifest = read_manifest(WHOLE, "m.toml")
    assert manifest.sequence == SequenceBatching(
        (StateTensors("h", "hn", -1.5),),
        (ControlInput("start", "start", (1.0, 0.0)), ControlInput("id", "corrid")),
        StreamLimits(50, 0.5, keep_on_disk=True),
        keep_state=True,
    )
    assert read_manifest(manifest_text(manifest), "m.toml") == manifest
    seen = manifest.seen
    assert [[spec.name for spec in side] for side in (seen.inputs, seen.outputs)] == [["x"], ["y"]]
    assert (manifest.batched, seen.batched) == (False, False)  # rows of the state are not first
    assert list(seen.sequence.specs) == ["h", "start", "id"]  # type: ignore[union-attr]
    short = WHOLE.replace(SEQUENCE, "[sequence]\n")
    assert read_manifest(short, "m.toml").sequence == SequenceBatching()
    assert read_manifest(short.replace("[sequence]\n", ""), "m.toml").seen.sequence is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('input = "h"', 'input = "g"', "names 'g', which the model does not have on that side"),
        ('output = "hn"', 'output = "h"', "names 'h', which the model does not have on that side"),
        ('input = "id"', 'input = "h"', "names 'h' twice"),
        ('kind = "start"', 'kind = "stop"', "must be one of start, end, ready, corrid"),
        ('kind = "corrid"', 'kind = "start"', "names 'start' twice"),
        (TENSORS[0], "", "leaves callers no input, or no output"),
        (TENSORS[4], "", "leaves callers no input, or no output"),
        ("[2, -1, 8]", "[2, 1, 9]", r"has 'hn' FP32 \[2, 1, 9\] as the next 'h' FP32 \[2, 1, 8\]; they must be alike"),
        ("[2, -1, 8]", "[2, 8]", "they must be alike"),
        ("initial = -1.5", "initial = 1e99", "must be between"),
        ("false_true = [1, 0]", "false_true = [1]", "must be two values, for false and for true"),
        ("false_true = [1, 0]", "false_true = [1, 1]", "must be two values"),
        ('input = "id"', 'input = "id"\nfalse_true = [0, 1]', "unknown key"),
        ("idle_s = 0.5", "idle_s = 0", "must be between 0.001"),
        ("keys = 50", "keys = 100001", "must be between 1 and 100000"),
        ("keep_state", "keeps_state", "unknown key"),
        ('"start"\ndatatype = "BOOL"', '"start"\ndatatype = "INT64"', "'start' in 'start', which is INT64, not one of"),
        ('"id"\ndatatype = "BYTES"', '"id"\ndatatype = "FP32"', "the control 'corrid' in 'id', which is FP32"),
        ('"start"\ndatatype = "BOOL"\nshape = [-1, 1]', '"start"\ndatatype = "BOOL"\nshape = [-1, 2]', "one value for"),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str, words: str) -> None:
    assert old in WHOLE
    with pytest.raises(ConfigurationError, match=words):
        read_manifest(WHOLE.replace(old, new), "m.toml")


def test_states_of_texts_and_values_that_a_type_does_not_hold_are_refused() -> None:
    for datatype, words in (("BYTES", "a state is a tensor of numbers"), ("INT8", "has the initial value -1.5 of 'h'")):
        text = WHOLE
        for name in ("h", "hn"):
            text = text.replace(f'name = "{name}"\ndatatype = "FP32"', f'name = "{name}"\ndatatype = "{datatype}"')
        with pytest.raises(ConfigurationError, match=words):
            read_manifest(text, "m.toml")


# ---- Triton's configuration ------------------------------------------------------------------------------------------
CONFIG = """max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  max_sequence_idle_microseconds: 5000000
  control_input [
    { name: "start" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  ]
  state [ { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: [ 8 ]
            initial_state { name: "zeros" data_type: TYPE_FP32 dims: [ 8 ] zero_data: true } } ]
}
"""
ROWS = {"x": 1, "start": 1, "id": 1, "h": 8}


def bare() -> ModelManifest:
    """Return a model as its file describes it."""
    inputs = tuple(
        TensorSpec(name, Datatype.UINT64 if name == "id" else Datatype.FP32, (-1, size)) for name, size in ROWS.items()
    )
    outputs = TensorSpec("hn", Datatype.FP32, (-1, 8)), TensorSpec("y", Datatype.FP32, (-1, 1))
    return ModelManifest("m", "1", inputs, outputs, (Variant("onnx", "onnx", "fp32", ()),))


def test_sequence_batching_is_read() -> None:
    manifest = described(bare(), read_config(CONFIG, "c", "m"), ())
    assert manifest.sequence == SequenceBatching(
        (StateTensors("h", "hn"),),
        (ControlInput("start", "start"), ControlInput("id", "corrid")),
        StreamLimits(100_000, 5.0),
    )
    assert (manifest.batched, manifest.rows, manifest.max_batch_rows) == (True, "independent", 4)
    seen = manifest.seen
    assert [[spec.name for spec in side] for side in (seen.inputs, seen.outputs)] == [["x"], ["y"]]
    config = read_config(CONFIG, "c", "m")
    assert config.remarks == ("sequence_batching.oldest is not applied: all sequences run as they come, joined",)
    assert read_config("sequence_batching { }", "c", "m").sequence == SequenceBatching(
        limits=StreamLimits(100_000, 1.0)
    )
    shown = model_config(seen, Placement("onnx", "onnx", "fp32", "cpu", "", max_batch_rows=4), ["1"])
    assert shown["sequence_batching"] == {
        "direct": {},
        "max_sequence_idle_microseconds": 5_000_000,
        "control_input": [
            {"name": "start", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0.0, 1.0]}]},
            {"name": "id", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}]},
        ],
        "state": [{"input_name": "h", "output_name": "hn", "data_type": "TYPE_FP32", "dims": [8]}],
    }
    assert "dynamic_batching" not in shown


def test_a_file_may_describe_what_callers_see() -> None:
    text = "max_batch_size: 4\n" + CONFIG[CONFIG.index("sequence_batching") :]
    seen = described(bare(), read_config(text, "c", "m"), ()).seen
    assert [[spec.name for spec in side] for side in (seen.inputs, seen.outputs)] == [["x"], ["y"]]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("zero_data: true", 'data_file: "h"', "data_file: is not offered here; a state begins with zeros"),
        ("dims: [ 8 ] zero", "dims: [ 4 ] zero", r"dims: is offered as the sizes of the state, \[8\]"),
        ("oldest { max_candidate_sequences: 4 }", "iterative_sequence: true", "iterative_sequence: is not offered"),
        ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_STOP", "c:8: .*kind: must be one of CONTROL_SEQUENCE_START"),
        ("fp32_false_true: [ 0, 1 ]", "", "needs one of int32_false_true, fp32_false_true, bool_false_true"),
        ("[ 0, 1 ]", "[ 0, 1 ] bool_false_true: [ false, true ]", "needs one of int32_false_true"),
        ("[ 0, 1 ]", "[ 0, no ]", "must be a number, not 'no'"),
        ("[ 0, 1 ]", "[ 0 ]", "needs one of int32_false_true"),
        ("TYPE_UINT64", "TYPE_FP32", "data_type: must be one of TYPE_INT32, TYPE_INT64, TYPE_STRING, TYPE_UINT32"),
        ("dims: [ 8 ]\n", "dims: [ 8 ] allowed: true\n", "allowed: unknown field"),
        ("max_sequence_idle_microseconds: 5000000", "max_sequence_idle_microseconds: -1", "must lie between 0"),
    ],
)
def test_what_cannot_be_followed_is_refused(old: str, new: str, words: str) -> None:
    assert old in CONFIG
    with pytest.raises((ConfigurationError, UnofferedError), match=words):
        read_config(CONFIG.replace(old, new), "c", "m")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('input_name: "h"', 'input_name: "g"', "does not describe the input 'h' of the model"),
        ('output_name: "hn"', 'output_name: "y"', "they must be alike|the model has 'y' as FP32"),
        ("TYPE_UINT64", "TYPE_INT64", "the configuration says TYPE_INT64"),
        ('name: "id"', 'name: "x"', "does not describe the input 'id' of the model"),
        ("dims: [ 8 ]", "dims: [ 9 ]", "the configuration says"),
    ],
)
def test_a_configuration_that_contradicts_its_model_is_refused(old: str, new: str, words: str) -> None:
    assert old in CONFIG
    with pytest.raises((ConfigurationError, VariantError), match=words):
        described(bare(), read_config(CONFIG.replace(old, new), "c", "m"), ())


def test_imported_sequences_are_those_of_the_repository(tmp_path: Path) -> None:
    write_triton_examples(tmp_path)
    write_accumulator(tmp_path)
    found = read_triton(documents_of(tmp_path))
    assert not found.skipped
    for model in found.models:
        artifacts = {variant.name: [Artifact("m.onnx", HEX, 1)] for variant in model.variants}
        written = read_manifest(release_text(model, artifacts, "x"), "m")
        assert written.sequence == model.sequence
        assert written.sequence is not None
        assert [spec.name for spec in written.seen.inputs] == ["INPUT"]
        assert any(each.what == "sequence_batching" for each in model.findings)
    texts = [each.text for model in found.models for each in model.findings if each.what == "sequence_batching"]
    assert "state TOTAL ← NEXT, start START, idle for 60 s at most" in texts
