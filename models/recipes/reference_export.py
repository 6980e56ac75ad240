"""ONNX fp32 graph <-> the reference runtime's npz: JSON under `graph`, every weight as an FP32 array by its name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from models.recipes.onnx_export import IR_VERSION, OPSET
from models.recipes.recipe import Floats, Recipe

OPERATORS = frozenset(
    {
        *("Identity", "Relu", "Gemm", "MatMul", "Add", "Sub", "Mul", "Conv", "MaxPool", "AveragePool"),
        *("GlobalAveragePool", "Flatten", "Reshape", "Transpose", "Concat", "Softmax", "ReduceMean"),
    }
)


def write_reference(recipe: Recipe, fp32: Path, calibration: Floats, path: Path) -> None:
    """Write the graph of an ONNX file; refuses an operator that the reference runtime does not have."""
    graph = onnx.load(fp32).graph
    unknown = {node.op_type for node in graph.node} - OPERATORS
    if unknown:
        raise ValueError(f"{fp32}: the reference runtime has no {', '.join(sorted(unknown))}")
    described = {
        "inputs": [_tensor(value) for value in graph.input],
        "outputs": [_tensor(value) for value in graph.output],
        "nodes": [_node(node) for node in graph.node],
    }
    text = np.frombuffer(json.dumps(described, separators=(",", ":")).encode(), dtype=np.uint8)
    weights = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, graph=text, **weights)


def evaluate_reference(path: Path, inputs: Floats) -> Floats:
    """Read the file back and run it with ONNX's own numpy evaluator: the oracle of the golden set."""
    with np.load(path, allow_pickle=False) as archive:
        graph = json.loads(archive["graph"].tobytes())
        weights = [numpy_helper.from_array(archive[key], key) for key in archive.files if key != "graph"]
    nodes = [
        helper.make_node(node["op"], node["inputs"], node["outputs"], **node["attributes"]) for node in graph["nodes"]
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "reference", _values(graph["inputs"]), _values(graph["outputs"]), weights),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    return ReferenceEvaluator(model).run(None, {graph["inputs"][0]["name"]: inputs})[0]


def _tensor(value: onnx.ValueInfoProto) -> dict[str, object]:
    sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in value.type.tensor_type.shape.dim]
    return {"name": value.name, "datatype": "FP32", "shape": sizes}


def _node(node: onnx.NodeProto) -> dict[str, object]:
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return {"op": node.op_type, "inputs": [*node.input], "outputs": [*node.output], "attributes": attributes}


def _values(tensors: list[dict[str, object]]) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(
            tensor["name"], onnx.TensorProto.FLOAT, [None if size < 0 else size for size in tensor["shape"]]
        )
        for tensor in tensors
    ]
