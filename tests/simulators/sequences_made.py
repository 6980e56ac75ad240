"""ONNX models with sequences, as Triton's examples ask them: custom backends there, states and controls here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.simulators.models_made import save

INT32, INT64, UINT64, STRING = TensorProto.INT32, TensorProto.INT64, TensorProto.UINT64, TensorProto.STRING
START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
END = 'control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }'
READY = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }'
CORRID = 'control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{} }} }}'
STATE = 'state { input_name: "TOTAL" output_name: "NEXT" data_type: TYPE_INT32 dims: [ 1 ] }'
CONFIG = """
name: "{name}"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {idle_us}
  {parts}
}}
"""


def model(inputs: dict[str, int], outputs: dict[str, int], *nodes: onnx.NodeProto) -> onnx.ModelProto:
    """Return a model of tensors [rows, 1] with the given datatypes."""
    sides = [
        [helper.make_tensor_value_info(name, kind, ["rows", 1]) for name, kind in side.items()]
        for side in (inputs, outputs)
    ]
    minus = numpy_helper.from_array(np.array([1], np.int32), "one")
    graph = helper.make_graph(list(nodes), "made", *sides, initializer=[minus])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write(folder: Path, name: str, made: onnx.ModelProto, *parts: str, idle_us: int = 60_000_000) -> None:
    """Write a model with its config.pbtxt."""
    save(made, folder / name / "1" / "model.onnx")
    text = CONFIG.format(name=name, parts="\n  ".join(parts), idle_us=idle_us)
    (folder / name / "config.pbtxt").write_text(text)


def accumulator() -> onnx.ModelProto:
    """Return a model that adds its inputs: its state is the sum, which begins anew at START."""
    return model(
        {"INPUT": INT32, "START": INT32, "TOTAL": INT32},
        {"OUTPUT": INT32, "NEXT": INT32},
        helper.make_node("Sub", ["one", "START"], ["goes_on"]),
        helper.make_node("Mul", ["TOTAL", "goes_on"], ["kept"]),
        helper.make_node("Add", ["kept", "INPUT"], ["OUTPUT"]),
        helper.make_node("Identity", ["OUTPUT"], ["NEXT"]),
    )


def write_accumulator(folder: Path, name: str = "sums", **changes: int) -> None:
    """Write the model that adds its inputs, with all controls but CORRID."""
    write(folder, name, accumulator(), START, STATE, **changes)


def write_triton_examples(folder: Path) -> None:
    """Write the models that Triton's sequence examples ask.

    `simple_sequence` adds 1 at START. `simple_dyna_sequence` adds CORRID at END as well. `simple_string_dyna_sequence`
    accumulates, and adds the number in CORRID, a text, at END.
    """
    first = model(
        {"INPUT": INT32, "START": INT32, "READY": INT32},
        {"OUTPUT": INT32},
        helper.make_node("Add", ["INPUT", "START"], ["sum"]),
        helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
    )
    write(folder, "simple_sequence", first, "direct { }", START, READY)
    ends = [
        helper.make_node("Cast", ["CORRID"], ["number"], to=INT32),
        helper.make_node("Mul", ["number", "END"], ["at_end"]),
    ]
    second = model(
        {"INPUT": INT32, "START": INT32, "READY": INT32, "END": INT32, "CORRID": UINT64},
        {"OUTPUT": INT32},
        *ends,
        helper.make_node("Add", ["INPUT", "START"], ["sum"]),
        helper.make_node("Add", ["sum", "at_end"], ["all"]),
        helper.make_node("Mul", ["all", "READY"], ["OUTPUT"]),
    )
    oldest = "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 100 }"
    write(folder, "simple_dyna_sequence", second, oldest, START, READY, END, CORRID.format("UINT64"))
    third = model(
        {"INPUT": INT32, "END": INT32, "CORRID": STRING, "TOTAL": INT32},
        {"OUTPUT": INT32, "NEXT": INT32},
        *ends,
        helper.make_node("Add", ["TOTAL", "INPUT"], ["NEXT"]),
        helper.make_node("Add", ["NEXT", "at_end"], ["OUTPUT"]),
    )
    write(folder, "simple_string_dyna_sequence", third, oldest, END, STATE, CORRID.format("STRING"))
