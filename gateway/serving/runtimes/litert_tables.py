"""Tables of TFLite files, read and written with the schema of ai-edge-litert; no engine is loaded."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.serving.domain.onnx_graph import FLOATS_LIMIT
from gateway.serving.domain.rows.graph import Constant, Graph, Node


def weight_bytes(file: Path) -> dict[str, int]:
    """Return the bytes of a file's constants by the name of their type, such as INT8. The engine is not loaded.

    Raises VariantError if the file cannot be read, or this LiteRT has no reader for it.
    """
    schema = _schema(file)
    try:
        model = schema.Model.GetRootAs(file.read_bytes(), 0)
        graphs = [model.Subgraphs(index) for index in range(model.SubgraphsLength())]
        tensors = [graph.Tensors(index) for graph in graphs for index in range(graph.TensorsLength())]
        sizes = [(tensor.Type(), model.Buffers(tensor.Buffer()).DataLength()) for tensor in tensors]
    except (OSError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise VariantError(f"the weights of {file.name} cannot be read: {error}") from error
    names = {code: name for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
    return {names[kind]: sum(size for each, size in sizes if each == kind) for kind, _ in sizes if kind in names}


def first_graph(file: Path) -> Graph:
    """Return the first graph of a file with constants of few numbers. Names of operators are in ONNX's spelling.

    Raises VariantError as `weight_bytes` does.
    """
    schema = _schema(file)
    codes = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    types = {schema.TensorType.FLOAT32: "<f4", schema.TensorType.FLOAT16: "<f2"}
    try:
        model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(file.read_bytes(), 0))
        graph, constants, nodes = model.subgraphs[0], dict[str, Constant](), list[Node]()
        for place, tensor in enumerate(graph.tensors):
            data, dtype = model.buffers[tensor.buffer].data, types.get(tensor.type)
            if dtype and data is not None and len(data) <= FLOATS_LIMIT * np.dtype(dtype).itemsize:
                numbers = tuple(np.frombuffer(bytes(data), dtype).tolist())
                constants[str(place)] = Constant(tuple(tensor.shape), numbers, floats=True)
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            name = codes.get(max(code.builtinCode, code.deprecatedBuiltinCode), "")
            inputs, outputs = (tuple(map(str, each)) for each in (operator.inputs, operator.outputs))
            nodes.append(Node("Cast" if name == "DEQUANTIZE" else name.title(), name, inputs, outputs))
        shapes = {str(place): tuple(graph.tensors[place].shape) for place in graph.inputs}
    except (OSError, ValueError, TypeError, AttributeError, LookupError, struct.error) as error:
        raise VariantError(f"the graph of {file.name} cannot be read: {error}") from error
    return Graph(shapes, tuple(map(str, graph.outputs)), constants, tuple(nodes))


def with_signature(file: Path, key: str) -> bytes:
    """Return the content of a file that has no signature with one of its first graph, by the names of its tensors.

    Raises VariantError as `weight_bytes` does.
    """
    schema = _schema(file)
    flatbuffers = importlib.import_module("flatbuffers")
    content = file.read_bytes()
    tree = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = key, 0
    graph = tree.subgraphs[0]
    signature.inputs, signature.outputs = (
        [_named(schema, graph.tensors[index], index) for index in side] for side in (graph.inputs, graph.outputs)
    )
    tree.signatureDefs = [signature]
    builder = flatbuffers.Builder(len(content))
    builder.Finish(tree.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _named(schema: ModuleType, tensor: Any, index: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = tensor.name, index
    return entry


def _schema(file: Path) -> ModuleType:
    try:
        return importlib.import_module("ai_edge_litert.schema_py_generated")
    except ImportError as error:
        raise VariantError(f"this LiteRT cannot read the tables of {file.name}") from error
