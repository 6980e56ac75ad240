"""The runtimes called directly, in this process: what the gateway's answers are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.world.entry import Array, Tensors

ONNX_DTYPES: Mapping[str, Any] = {
    "tensor(bool)": np.bool_,
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(string)": np.object_,
} | {
    f"tensor({name})": np.dtype(name)
    for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
}


class NotCallableError(Exception):
    """Error of a model with a tensor that numpy cannot hold, or without tensors."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input: `shape` holds sizes, symbols of open dimensions, or None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


class Direct(Protocol):
    """A model opened by its own runtime."""

    inputs: Sequence[Port]
    operators: frozenset[str]

    def run(self, feeds: Tensors) -> Tensors: ...


def open_direct(runtime: str, file: Path) -> Direct:
    """Open `file`. Raises NotCallableError, or what the runtime raises."""
    return {"onnx": OnnxDirect, "litert": LiteRtDirect, "openvino": OpenVinoDirect}[runtime](file)


class OnnxDirect:
    """ONNX Runtime with one thread, else with its defaults."""

    def __init__(self, file: Path) -> None:
        import onnx
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        self._session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        ports = [*self._session.get_inputs(), *self._session.get_outputs()]
        if odd := [port.type for port in ports if port.type not in ONNX_DTYPES]:
            raise NotCallableError(f"tensors of {', '.join(sorted(set(odd)))}")
        self.inputs = tuple(
            Port(each.name, np.dtype(ONNX_DTYPES[each.type]), tuple(each.shape)) for each in self._session.get_inputs()
        )
        self._outputs = [each.name for each in self._session.get_outputs()]
        self.operators = frozenset(_operators(onnx.load(file, load_external_data=False)))

    def run(self, feeds: Tensors) -> Tensors:
        """Run the model. Strings are UTF-8 bytes here, as the protocol carries them, and text in ONNX Runtime."""
        fed = {name: _mapped(array, bytes.decode) for name, array in feeds.items()}
        answers = self._session.run(self._outputs, fed)
        return {name: _mapped(answer, str.encode) for name, answer in zip(self._outputs, answers, strict=True)}


class LiteRtDirect:
    """LiteRT with one thread. Quantised tensors are exchanged as FP32, as the gateway offers them."""

    def __init__(self, file: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(model_path=str(file), num_threads=1)
        self.inputs = tuple(_litert_port(each) for each in self._interpreter.get_input_details())
        self.operators = frozenset(each["op_name"] for each in self._interpreter._get_ops_details())

    def run(self, feeds: Tensors) -> Tensors:
        details = self._interpreter.get_input_details()
        for each in details:
            self._interpreter.resize_tensor_input(each["index"], feeds[each["name"]].shape)
        self._interpreter.allocate_tensors()
        for each in details:
            self._interpreter.set_tensor(each["index"], _quantised(feeds[each["name"]], each))
        self._interpreter.invoke()
        outputs = self._interpreter.get_output_details()
        return {each["name"]: _real(self._interpreter.get_tensor(each["index"]), each) for each in outputs}


class OpenVinoDirect:
    """OpenVINO on the CPU in fp32 with one thread."""

    operators: frozenset[str] = frozenset()

    def __init__(self, file: Path) -> None:
        import openvino as ov

        core = ov.Core()
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1"}
        model = core.read_model(file)
        self._compiled = core.compile_model(model, "CPU", options)
        self.inputs = tuple(
            Port(
                port.get_any_name(),
                np.dtype(port.element_type.to_dtype()),
                tuple(size.get_length() if size.is_static else None for size in port.partial_shape),
            )
            for port in self._compiled.inputs
        )
        self._names = [min(port.get_names()) for port in model.outputs]  # a compiled model's ports may have others

    def run(self, feeds: Tensors) -> Tensors:
        answers = self._compiled(feeds)
        return {name: np.array(answers[index]) for index, name in enumerate(self._names)}


def _mapped(array: Array, convert: Callable[[Any], Any]) -> Array:
    if array.dtype.kind != "O":
        return array
    mapped = np.empty(array.size, object)
    mapped[:] = [convert(each) for each in array.ravel()]
    return mapped.reshape(array.shape)


def _operators(model: Any) -> set[str]:
    """Return operator types of the graph, its subgraphs and its functions."""
    found, waiting = set(), [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        found.add(node.op_type)
        for attribute in node.attribute:
            waiting += [*attribute.g.node, *(inner for graph in attribute.graphs for inner in graph.node)]
    return found


def _litert_port(detail: Mapping[str, Any]) -> Port:
    shape = detail.get("shape_signature", detail["shape"])
    shape = detail["shape"] if len(shape) != len(detail["shape"]) else shape
    dtype = np.dtype(np.float32 if detail["quantization"][0] else detail["dtype"])
    return Port(detail["name"], dtype, tuple(int(size) if size >= 0 else None for size in shape))


def _quantised(array: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if not scale:
        return array
    bounds = np.iinfo(detail["dtype"])
    return np.clip(np.rint(array / scale) + zero, bounds.min, bounds.max).astype(detail["dtype"])


def _real(array: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    return (array.astype(np.float32) - np.float32(zero)) * np.float32(scale) if scale else array
