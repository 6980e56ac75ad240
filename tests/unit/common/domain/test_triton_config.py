"""Triton's config.pbtxt: its published examples are read, what is not offered is refused by name and line."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.manifest import Artifact, Binding, ModelManifest, TensorSpec, Variant
from gateway.common.domain.release import Release, complete
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.text_format import read_text_format
from gateway.common.domain.triton_config import ConfigTensor, TritonConfig, read_config
from gateway.common.domain.verdict import Signature, read_signature, signature_document
from tests.simulators.triton_examples import DENSENET, SIMPLE, SIMPLE_STRING


def read(text: str, model: str = "m") -> TritonConfig:
    return read_config(text, "config.pbtxt", model)


def manifest(
    config: TritonConfig, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]
) -> ModelManifest:
    """Return the manifest of a bare model whose runtime says FP32 (INT32 for upper-case names) of every tensor."""
    variant = Variant("onnx", "onnx", "fp32", (Artifact("m.onnx", "0" * 64, 1),))
    sides = [
        tuple(
            TensorSpec(name, Datatype.INT32 if name.isupper() else Datatype.FP32, shape) for name, shape in side.items()
        )
        for side in (inputs, outputs)
    ]
    release = Release("m", "1", Path("/m"), "d", bare=variant, config=config, labels=("cat",))
    return complete(release, variant, Signature(sides[0], sides[1]))


def test_simple_takes_batches_of_eight() -> None:
    config = read(SIMPLE, "simple")
    assert (config.runtime, config.max_batch_size, config.batched, config.remarks) == ("onnx", 8, True, ())
    shapes: dict[str, tuple[int, ...]] = {"INPUT0": (-1, 16), "INPUT1": (-1, 16)}
    made = manifest(config, shapes, {"OUTPUT0": (-1, 16), "OUTPUT1": (-1, 16)})
    assert (made.batched, made.max_batch_rows, made.rows_limit(1024), made.rows_limit(4)) == (True, 8, 8, 4)
    assert [spec.shape for spec in made.inputs + made.outputs] == [(-1, 16)] * 4
    assert made.labels == ("cat",)


def test_strings_are_bytes() -> None:
    assert {tensor.datatype for tensor in read(SIMPLE_STRING, "simple_string").inputs} == {Datatype.BYTES}


def test_densenet_is_seen_by_clients_as_its_configuration_says() -> None:
    config = read(DENSENET, "densenet_onnx")
    assert (config.batched, config.label_filename) == (False, "densenet_labels.txt")
    made = manifest(config, {"data_0": (1, 3, 224, 224)}, {"fc6_1": (1, 1000, 1, 1)})
    assert (made.batched, made.max_batch_rows, made.rows_limit(1024)) == (False, 0, 1024)
    assert [spec.shape for spec in made.inputs + made.outputs] == [(3, 224, 224), (1000,)]
    assert made.variants[0].bind["data_0"] == Binding("data_0", shape=(1, 3, 224, 224))


def test_a_configuration_may_say_little() -> None:
    made = manifest(read(""), {"x": (-1, 4)}, {"y": (-1, 2)})
    assert (made.batch, made.max_batch_rows) == (None, 0)
    only_rows = manifest(read("max_batch_size: 4"), {"x": (-1, 4), "z": (1, 4)}, {"y": (-1, 2)})
    assert (only_rows.batch, only_rows.max_batch_rows) == (True, 4)
    assert {spec.shape[0] for spec in only_rows.inputs} == {-1}
    assert read("input { name: 'x' data_type: TYPE_FP32 dims: -1 dims: 4 }").batched is False


def test_only_the_outputs_that_are_named_are_served_in_that_order() -> None:
    config = read(
        "output { name: 'c' data_type: TYPE_FP32 dims: 2 }, output { name: 'a' data_type: TYPE_FP32 dims: 2 }"
    )
    assert [spec.name for spec in manifest(config, {"x": (2,)}, {"a": (2,), "b": (2,), "c": (2,)}).outputs] == [
        "c",
        "a",
    ]


def test_all_forms_of_the_text_format_say_the_same() -> None:
    expected = (ConfigTensor("x", Datatype.FP32, (3, -1)),)
    for text in (
        'input [{name: "x", data_type: TYPE_FP32, dims: [3, -1]}]',
        "input { name: 'x' data_type: TYPE_FP32 dims: 3 dims: -1 }",
        "input: { name: 'x'; data_type: TYPE_FP32; dims: [0x3]; dims: -1; };  # comment",
        'input\n[\n{\nname:\n"" "x"\ndata_type : TYPE_FP32 dims : [ 3 , -1 ]}\n]',
        "input < name: 'x' data_type: TYPE_FP32 dims: 03 dims: - 1 >",
        "input\f{ name: '\\x78' data_type: TYPE_FP32 dims: 0X3 dims: -\n1 optional: False }",
        "input [ < name: '\\170' data_type: TYPE_FP32 dims: [3, -0x1] optional: 0 > ]",
        'input { name: "\\"x"  data_type: TYPE_FP32 dims: [3, -1] }'.replace('\\"x', "x"),
    ):
        assert read(text).inputs == expected, text
    assert read('input { name: "a\\"\\n" data_type: TYPE_FP32 dims: [1] }').inputs[0].name == 'a"\n'


def test_what_only_concerns_scheduling_is_accepted_with_a_remark() -> None:
    config = read(
        """
        instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { kind: KIND_CPU } ]
        dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
                           default_queue_policy { timeout_action: REJECT } }
        optimization { graph { level: 1 } cuda { graphs: true } }
        metric_tags { key: "a" value: "b" }
        model_warmup [ { name: "zeros" batch_size: 1 inputs { key: "x" value { zero_data: true } } } ]
        response_cache { enable: true }
        model_transaction_policy { decoupled: false }
        version_policy: { all { } }
        """
    )
    remarks = "\n".join(config.remarks)
    assert len(config.remarks) == 6
    for words in (
        "instance_group is not applied: the trials choose",
        'max_queue_delay_microseconds (set delay_us = 100 in [[limits.queue]] model = "m")',
        "preferred_batch_size",
        "optimization is not applied",
        "metric_tags is not applied",
        "model_warmup is not applied: every model is tried",
        "response_cache is not applied: every request is run",
    ):
        assert words in remarks
    assert read("dynamic_batching { } instance_group { count: 1 kind: KIND_CPU }").remarks == ()
    (told,) = read("instance_group { kind: KIND_CPU rate_limiter { priority: 2 } passive: true }").remarks
    assert told.startswith("instance_group.passive, instance_group.rate_limiter is not applied: the trials")


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", 0),
        ("instance_group { kind: KIND_CPU }", 0),
        ("instance_group { count: 1 }", 1),
        ("instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_AUTO } ]", 3),
        ("instance_group [ { count: 2 kind: KIND_GPU }, { count: 4 kind: KIND_CPU } ]", 4),
    ],
)
def test_instances_on_the_processor_are_runs_at_a_time(text: str, runs: int) -> None:
    config = read(text)
    assert config.runs == runs
    assert manifest(config, {"x": (-1, 4)}, {"y": (-1, 2)}).runs == runs


def test_parameters_are_kept_with_all_their_characters() -> None:
    text = r"""parameters { key: "metadata" value { string_value: "{'names': {0: 'gr\303\274n'}, 'd': \"\xc3\xbc\"}" } }
               parameters [ { key: "empty" value { } }, { key: "twice" value: { string_value: "1" } } ]
               parameters { key: "twice" value { string_value: 'ü' } }"""
    config = read(text)
    assert config.parameters == {"metadata": "{'names': {0: 'grün'}, 'd': \"ü\"}", "empty": "", "twice": "ü"}
    assert config.remarks == ()
    assert manifest(config, {"x": (-1, 4)}, {"y": (-1, 2)}).parameters == config.parameters


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", []),
        ("version_policy { all {} }", []),
        ("version_policy { latest { num_versions: 1 } }", ["2", "9"]),
        ("version_policy { latest { num_versions: 2 } }", ["2"]),
        ("version_policy { latest { num_versions: 9 } }", []),
        ("version_policy { specific { versions: [2, 10] } }", ["9"]),
    ],
)
def test_the_version_policy_leaves_out(text: str, left: list[str]) -> None:
    assert list(read(text).unserved(["2", "9", "10"])) == left


TENSOR = "name: 'x' data_type: TYPE_FP32 dims: [2]"
REFUSED = [
    ("name: 'other'", "name: says 'other', but the folder is called 'm'"),
    ("\nmodel_operations { }", "config.pbtxt:2: model_operations: is not offered here; custom operators"),
    (
        "platform: 'ensemble' ensemble_scheduling { step [] }",
        "ensemble_scheduling: is not offered here; make a pipeline of it",
    ),
    ("backend: 'python'", "backend: 'python' is not offered here; make a pipeline of it"),
    ("platform: 'tensorrt_plan'", "platform: 'tensorrt_plan' is not offered here"),
    ("platform: 'onnxruntime_onnx' backend: 'openvino'", "contradict each other"),
    ("colour: 1", "config.pbtxt:1: colour: unknown field; correct its name or remove it"),
    ("\n\ninput { name: 'x' data_type: TYPE_FP32\n dims: [1] size: 3 }", "config.pbtxt:4: input.size: unknown field"),
    ("max_batch_size: -1", "max_batch_size: must lie between 0 and 1000000"),
    ("max_batch_size: 1.5", "must be an integer, not '1.5'"),
    ("max_batch_size: '8'", "max_batch_size: must be a number"),
    ("max_batch_size: 99999999999999999999999", "must lie between"),
    ("max_batch_size: 8 max_batch_size: 8", "is given twice"),
    ("input { data_type: TYPE_FP32 dims: [2] }", "input.name: missing"),
    ("input { name: 'x' dims: [2] }", "data_type: must be one of TYPE_BOOL"),
    ("input { name: 'x' data_type: TYPE_BYTES dims: [2] }", "TYPE_STRING"),
    ("input { name: 'x' data_type: TYPE_FP32 dims: [0] }", "dims: a dimension must be positive"),
    (f"input {{ {TENSOR} allow_ragged_batch: true }}", "allow_ragged_batch: is not offered here; pad"),
    (f"input {{ {TENSOR} format: FORMAT_XYZ }}", "format: must be FORMAT_NONE"),
    (f"input {{ {TENSOR} reshape {{ shape: [3] }} }}", "reshape: [3] holds another number of elements than dims [2]"),
    (f"input {{ {TENSOR} reshape {{ shape: [-1] }} }}", "reshape: is offered for fixed dims only"),
    (f"output {{ {TENSOR} label_filename: '../x' }}", "label_filename: must be the name of a file in the same folder"),
    (
        f"output {{ {TENSOR} label_filename: 'a' }} output {{ {TENSOR} label_filename: 'b' }}",
        "only one label file is offered, and a is named already",
    ),
    ("model_transaction_policy { decoupled: true }", "decoupled: is not offered here: only language models"),
    ("version_policy { latest { } specific { versions: [1] } }", "latest, specific and all exclude each other; keep"),
    ("version_policy { all { } latest { } }", "version_policy: latest, specific and all exclude each other"),
    ("version_policy { specific { } }", "specific.versions: missing; name the versions"),
    (f"input {{ {TENSOR} }} input {{ {TENSOR} }}", "input: describes 'x' twice; keep one"),
    (f"output {{ {TENSOR} }} output {{ {TENSOR} }}", "output: describes 'x' twice; keep one"),
    ("version_policy { newest { } }", "version_policy.newest: unknown field"),
    ("dynamic_batching { max_delay: 3 }", "dynamic_batching.max_delay: unknown field"),
    ("model_transaction_policy { decoupled: yes }", "must be true or false"),
    ("input: 3", "input: must be a block in braces"),
    ("name: 'm", 'config.pbtxt:1: not the text format of Protocol Buffers at "\'m"'),
    ("name 'm'", "name needs ':' before its value"),
    ("name:", "name has no value"),
    ("\ninput {", "config.pbtxt:2: a field's name is expected, not the end"),
    ("}", "a field's name is expected, not '}'"),
    ("input [ { } { } ]", "a list needs ','"),
    ("input < name: 'x' }", "a field's name is expected, not '}'"),
    ("input { name: 'x' >", "a field's name is expected, not '>'"),
    ("max_batch_size: 1_0", "must be an integer, not '1_0'"),
    ("max_batch_size: 0b11", "must be an integer, not '0b11'"),
    ("max_batch_size: 08", "must be an integer, not '08'"),
    ("name: '\\xff'", "its escapes are not UTF-8"),
    ("parameters { key: 'a' value { int_value: 3 } }", "value.int_value: unknown field"),
    ("name: '\\x'", "the escape \\x is not read"),
    ("name: '\\8'", "the escape \\8 is not read"),
    ("name: '\\777'", "the escape \\777 is not read"),
    (f"input {{ {TENSOR} optional: 2 }}", "must be true or false, not '2'"),
    ("name: '\\q'", "the escape \\q is not read"),
    ("a {" * 30, "more than 16 blocks lie inside each other"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_what_cannot_be_read_is_refused_by_name_and_line(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        read(text)


CONTRADICTIONS = [
    (f"input {{ {TENSOR} }}", {"x": (3,)}, "the model has 'x' as FP32 [3]; the configuration says [2]"),
    (f"input {{ {TENSOR} }}", {"x": (-1, 2)}, "the configuration says [2]: correct dims or max_batch_size"),
    (f"max_batch_size: 8 input {{ {TENSOR} }}", {"x": (4, 2)}, "the configuration says [-1, 2]"),
    ("max_batch_size: 8", {"x": (4, 2)}, "its first dimension counts no rows: set max_batch_size: 0"),
    ("input { name: 'x' data_type: TYPE_FP32 dims: [-1] }", {"x": (2,)}, "the configuration says [-1]"),
    ("input { name: 'x' data_type: TYPE_INT64 dims: [2] }", {"x": (2,)}, "says TYPE_INT64: correct data_type"),
    ("input { name: 'z' data_type: TYPE_FP32 dims: [2] }", {"x": (2,)}, "does not describe the input 'x'"),
    (f"input {{ {TENSOR} }}", {"x": (2,), "z": (2,)}, "does not describe the input 'z' of the model; add it"),
    (f"output {{ {TENSOR} }}", {"x": (2,)}, "describes output 'x', but the model has 'y'"),
]


@pytest.mark.parametrize(("text", "inputs", "words"), CONTRADICTIONS)
def test_a_configuration_that_contradicts_its_model_is_refused(
    text: str, inputs: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(VariantError, match=re.escape(words)):
        manifest(read(text), inputs, {"y": (-1, 2)})


OPTIONAL = "input { name: 'x' data_type: TYPE_FP32 dims: [2] } input { name: 't' data_type: TYPE_FP32 optional: true }"


def test_an_optional_input_is_one_for_which_the_file_has_a_value() -> None:
    variant = Variant("onnx", "onnx", "fp32", (Artifact("m.onnx", "0" * 64, 1),))
    x, y = (TensorSpec(name, Datatype.FP32, (2,)) for name in "xy")
    values = tuple(TensorSpec(name, Datatype.FP32, (), default=0.5) for name in "st")
    signature = read_signature(json.loads(json.dumps(signature_document(Signature((x,), (y,), values)))))

    def made(text: str, signature: Signature = signature) -> tuple[TensorSpec, ...]:
        release = Release("m", "1", Path("/m"), "d", bare=variant, config=read(text))
        return complete(release, variant, signature).inputs

    assert made(OPTIONAL) == (x, values[1])
    assert made("max_batch_size: 0") == (x,)
    with pytest.raises(VariantError, match="'t' is optional, but the model file's value for it has no rows"):
        made(f"max_batch_size: 8 {OPTIONAL}")
    with pytest.raises(VariantError, match="'t' is optional, but the model file has no single value"):
        made(OPTIONAL, Signature((x,), (y,)))


def test_a_backend_for_other_files_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="backend for onnx files, but the model is one for litert"):
        read("backend: 'onnxruntime'").check_runtime("litert")


@pytest.mark.parametrize("backend", ["", "backend: 'armnn_tflite'"])
def test_quantised_tensors_of_litert_pass_as_integers_also_without_a_backend(backend: str) -> None:
    config = read(f"{backend} input {{ name: 'x' data_type: TYPE_INT8 dims: [2] }}")
    variant = Variant("litert", "litert", "fp32", (Artifact("m.tflite", "0" * 64, 1),))
    specs = [(TensorSpec(name, Datatype.FP32, (2,)),) for name in "xy"]
    release = Release("m", "1", Path("/m"), "d", bare=variant, config=config)
    assert complete(release, variant, Signature(*specs)).inputs[0].datatype is Datatype.INT8


TEXTS = [SIMPLE, SIMPLE_STRING, DENSENET, *(text for text, _ in REFUSED)]


@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.integers(0, 700), st.text(max_size=3)), max_size=4))
def test_any_text_is_read_or_refused(text: str, changes: list[tuple[int, str]]) -> None:
    for place, change in changes:
        text = text[:place] + change + text[place + len(change) :]
    with contextlib.suppress(ConfigurationError):
        assert read(text).file == "config.pbtxt"


def test_a_text_of_many_values_is_bounded() -> None:
    with pytest.raises(ConfigurationError, match="more than 100000 values"):
        read_text_format("a: [" + "1," * 100_001 + "1]", "f")
