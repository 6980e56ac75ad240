"""LiteRT files made with the schema of ai-edge-litert: no converter, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype

TYPES = {
    Datatype.BOOL: "BOOL",
    Datatype.FP16: "FLOAT16",
    Datatype.FP32: "FLOAT32",
    Datatype.FP64: "FLOAT64",
    Datatype.BYTES: "STRING",
}


def build(manifest: ModelManifest, rows: int, weights: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]) -> bytes:
    """Return the file of `tests.simulators.models`' identity, adder or dense; `rows` -1: any number of rows."""
    from ai_edge_litert import schema_py_generated as schema

    tensors = [_tensor(spec, rows) for spec in (*manifest.inputs, *manifest.outputs)]
    feeds = list(range(len(manifest.inputs)))
    constants: list[np.ndarray[Any, Any]] = []
    code, options, kind = schema.BuiltinOperator.ADD, schema.AddOptionsT(), schema.BuiltinOptions.AddOptions
    if manifest.name == "dense":
        code = schema.BuiltinOperator.FULLY_CONNECTED
        options, kind = schema.FullyConnectedOptionsT(), schema.BuiltinOptions.FullyConnectedOptions
        constants = [np.ascontiguousarray(weights.T), bias]
    elif manifest.name != "adder":
        code = schema.BuiltinOperator.RESHAPE
        options, kind = schema.ReshapeOptionsT(), schema.BuiltinOptions.ReshapeOptions
        constants = [np.array([-1, 3], np.int32)]
    for index, constant in enumerate(constants, 1):
        feeds.append(len(tensors))
        tensors.append(_constant(f"constant{index}", constant, index))
    operator = _operator(feeds, [len(manifest.inputs)], options, kind)
    graph = _graph(tensors, range(len(manifest.inputs)), [len(manifest.inputs)], [operator])
    return _model([graph], [code], constants)


def quantised_adder(scale: float, zero_point: int) -> bytes:
    """Return total = left + right in int8, one scale for all three tensors, [1, 3]."""
    from ai_edge_litert import schema_py_generated as schema

    tensors = []
    for name in ("left", "right", "total"):
        tensor = _tensor(TensorSpec(name, Datatype.INT8, (-1, 3)), -1)
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [scale], [zero_point]
        tensors.append(tensor)
    operator = _operator([0, 1], [2], schema.AddOptionsT(), schema.BuiltinOptions.AddOptions)
    return _model([_graph(tensors, [0, 1], [2], [operator])], [schema.BuiltinOperator.ADD], [])


def single_row() -> bytes:
    """Return y = x through a reshape to [1, 3]: a file that cannot take two rows."""
    from ai_edge_litert import schema_py_generated as schema

    target = np.array([1, 3], np.int32)
    tensors = [_tensor(TensorSpec(name, Datatype.FP32, (1, 3)), 1) for name in "xy"]
    tensors.append(_constant("target", target, 1))
    operator = _operator([0, 2], [1], schema.ReshapeOptionsT(), schema.BuiltinOptions.ReshapeOptions)
    return _model([_graph(tensors, [0], [1], [operator])], [schema.BuiltinOperator.RESHAPE], [target])


def signatures(*keys: str, first: int = 0) -> bytes:
    """Return one graph per signature, in order, the first with number `first`: y = x + number, [1, 3].

    Tensors have converters' names: `serving_default_x:0`, `StatefulPartitionedCall:0`.
    """
    from ai_edge_litert import schema_py_generated as schema

    graphs, defs, addends = [], [], []
    for number in range(first + len(keys)):
        addends.append(np.full((1, 3), number, np.float32))
        names = (f"{keys[max(0, number - first)]}_x:0", "StatefulPartitionedCall:0")
        tensors = [_tensor(TensorSpec(name, Datatype.FP32, (1, 3)), 1) for name in names]
        tensors.append(_constant("addend", addends[-1], number + 1))
        operator = _operator([0, 2], [1], schema.AddOptionsT(), schema.BuiltinOptions.AddOptions)
        graphs.append(_graph(tensors, [0], [1], [operator]))
    for number, key in enumerate(keys, first):
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = key, number
        signature.inputs, signature.outputs = [schema.TensorMapT()], [schema.TensorMapT()]
        signature.inputs[0].name, signature.outputs[0].name, signature.outputs[0].tensorIndex = "x", "y", 1
        defs.append(signature)
    return _model(graphs, [schema.BuiltinOperator.ADD], addends, defs)


def other_sizes() -> bytes:
    """Return y = x through a reshape to [-1, 4]. It declares open dimensions of x, at present 1, which do not work."""
    from ai_edge_litert import schema_py_generated as schema

    target = np.array([-1, 4], np.int32)
    tensors = [_tensor(TensorSpec(name, Datatype.FP32, shape), -1) for name, shape in (("x", (-1, -1)), ("y", (-1, 4)))]
    tensors[0].shape = [1, 1]
    tensors.append(_constant("target", target, 1))
    operator = _operator([0, 2], [1], schema.ReshapeOptionsT(), schema.BuiltinOptions.ReshapeOptions)
    return _model([_graph(tensors, [0], [1], [operator])], [schema.BuiltinOperator.RESHAPE], [target])


def rescaling(factor: float, summand: float) -> bytes:
    """Return y = x * factor + summand for images [1, 8, 8, 3], as a converter writes Keras' Rescaling."""
    from ai_edge_litert import schema_py_generated as schema

    constants = [np.array(value, np.float32) for value in (factor, summand)]
    tensors = [_tensor(TensorSpec(name, Datatype.FP32, (1, 8, 8, 3)), 1) for name in ("x", "scaled", "y")]
    tensors += [_constant(f"constant{index}", constant, index) for index, constant in enumerate(constants, 1)]
    operators = [
        _operator([0, 3], [1], schema.MulOptionsT(), schema.BuiltinOptions.MulOptions),
        _operator([1, 4], [2], schema.AddOptionsT(), schema.BuiltinOptions.AddOptions),
    ]
    operators[1].opcodeIndex = 1
    codes = [schema.BuiltinOperator.MUL, schema.BuiltinOperator.ADD]
    return _model([_graph(tensors, [0], [2], operators)], codes, constants)


def crashing() -> bytes:
    """Return a valid file whose two subgraphs loop over each other: preparing it overflows the stack."""
    from ai_edge_litert import schema_py_generated as schema

    def graph() -> Any:
        options = schema.WhileOptionsT()
        options.condSubgraphIndex, options.bodySubgraphIndex = 1, 2
        operator = _operator([0], [1], options, schema.BuiltinOptions.WhileOptions)
        tensors = [_tensor(TensorSpec(name, Datatype.FP32, (1, 3)), 1) for name in "xy"]
        return _graph(tensors, [0], [1], [operator])

    return _model([graph(), graph(), graph()], [schema.BuiltinOperator.WHILE], [])


def _tensor(spec: TensorSpec, rows: int) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    tensor = schema.TensorT()
    tensor.name = spec.name.encode()
    tensor.type = getattr(schema.TensorType, TYPES.get(spec.datatype, spec.datatype.label))
    tensor.shape = [abs(rows), *spec.shape[1:]]
    tensor.shapeSignature = [rows, *spec.shape[1:]]
    tensor.buffer = 0
    return tensor


def _constant(name: str, array: np.ndarray[Any, Any], buffer: int) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.buffer = name.encode(), list(array.shape), buffer
    tensor.type = schema.TensorType.INT32 if array.dtype.kind == "i" else schema.TensorType.FLOAT32
    return tensor


def _operator(inputs: Sequence[int], outputs: Sequence[int], options: Any, kind: int) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, list(inputs), list(outputs)
    operator.builtinOptions, operator.builtinOptionsType = options, kind
    return operator


def _graph(tensors: list[Any], inputs: Sequence[int], outputs: Sequence[int], operators: list[Any]) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    graph = schema.SubGraphT()
    graph.name, graph.tensors, graph.operators = b"main", tensors, operators
    graph.inputs, graph.outputs = list(inputs), list(outputs)
    return graph


def _model(
    graphs: list[Any], codes: list[int], constants: list[np.ndarray[Any, Any]], signatures: list[Any] | None = None
) -> bytes:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT()
    model.version, model.subgraphs, model.signatureDefs = 3, graphs, signatures
    model.operatorCodes = []
    for code in codes:
        entry = schema.OperatorCodeT()
        entry.builtinCode, entry.deprecatedBuiltinCode, entry.version = code, min(code, 127), 1
        model.operatorCodes.append(entry)
    model.buffers = [schema.BufferT()]
    for constant in constants:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(constant.tobytes(), np.uint8)
        model.buffers.append(buffer)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
