"""Small model files for every runtime, written from the same three descriptions, and their manifests.

identity: y = x, [-1, 3] of any datatype · adder: total = left + right, [-1, 3] FP32 · dense: scores = x·W + b, [-1, 4]
to [-1, 3] FP32, softmax declared as postprocess.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype
from tests.simulators import models_litert

ONNX_TYPES = {
    Datatype.BOOL: "BOOL",
    Datatype.FP16: "FLOAT16",
    Datatype.FP32: "FLOAT",
    Datatype.FP64: "DOUBLE",
    Datatype.BF16: "BFLOAT16",
    Datatype.BYTES: "STRING",
}
OPENVINO_TYPES = {
    Datatype.BOOL: "boolean",
    Datatype.FP16: "f16",
    Datatype.FP32: "f32",
    Datatype.FP64: "f64",
    Datatype.BF16: "bf16",
}
FILES = {"onnx": "model.onnx", "openvino": "model.xml", "litert": "model.tflite", "reference": "model.npz"}

WEIGHTS = np.random.default_rng(7).normal(size=(4, 3)).astype(np.float32)
BIAS = np.array([0.5, -0.25, 0.125], np.float32)


def identity(datatype: Datatype = Datatype.FP32) -> ModelManifest:
    """Return y = x of any datatype, without variants."""
    x, y = (TensorSpec(name, datatype, (-1, 3)) for name in "xy")
    return ModelManifest(f"identity-{datatype.label.lower()}", "1", (x,), (y,), (), batch=True)


def adder() -> ModelManifest:
    """Return total = left + right, without variants."""
    left, right, total = (TensorSpec(name, Datatype.FP32, (-1, 3)) for name in ("left", "right", "total"))
    return ModelManifest("adder", "1", (left, right), (total,), (), batch=True)


def dense() -> ModelManifest:
    """Return scores = softmax(x·WEIGHTS + BIAS), without variants."""
    x = TensorSpec("x", Datatype.FP32, (-1, 4), finite=True)
    scores = TensorSpec("scores", Datatype.FP32, (-1, 3), postprocess="softmax")
    return ModelManifest("dense", "1", (x,), (scores,), (), labels=("red", "green", "blue"), batch=True)


def write_variant(folder: Path, manifest: ModelManifest, runtime: str, *, rows: int = -1) -> ModelManifest:
    """Write the model for `runtime` under `folder` with `rows` rows (-1: any). Return the manifest with the variant.

    `manifest` is one of this module's, identified by its name.
    """
    path = folder / runtime / FILES[runtime]
    path.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[runtime](path, manifest, rows)
    written = sorted(path.parent.iterdir(), key=lambda file: file != path)
    variant = Variant(runtime, runtime, "fp32", tuple(_artifact(folder, file) for file in written))
    return replace(manifest, variants=(*manifest.variants, variant))


def _artifact(folder: Path, file: Path) -> Artifact:
    content = file.read_bytes()
    return Artifact(str(file.relative_to(folder)), hashlib.sha256(content).hexdigest(), len(content))


def write_release(root: Path, manifest: ModelManifest, *runtimes: str) -> ModelManifest:
    """Write `root`/<name>/<version>/ for the gateway: manifest.toml and one fp32 variant per runtime."""
    folder = root / manifest.name / manifest.version
    for runtime in runtimes:
        manifest = write_variant(folder, manifest, runtime)
    (folder / "manifest.toml").write_text("\n".join(_lines(manifest)))
    return manifest


def _lines(manifest: ModelManifest) -> Iterator[str]:
    yield f'schema = 1\nname = "{manifest.name}"\nversion = "{manifest.version}"\nlabels = {list(manifest.labels)}'
    for role, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
        for spec in specs:
            yield f'[[{role}]]\nname = "{spec.name}"\ndatatype = "{spec.datatype.label}"\nshape = {list(spec.shape)}'
            yield f'postprocess = "{spec.postprocess}"' if role == "output" else f"finite = {str(spec.finite).lower()}"
    for variant in manifest.variants:
        yield f'[[variant]]\nname = "{variant.name}"\nruntime = "{variant.runtime}"\nprecision = "fp32"\nartifacts = ['
        for file in variant.artifacts:
            yield f'  {{path = "{file.path}", sha256 = "{file.sha256}", bytes = {file.size_bytes}}},'
        yield "]"


def write_onnx_endless(path: Path) -> None:
    """Write a graph with a loop of 2**62 iterations: it opens, and its first run never ends."""
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [2**62])
    go = helper.make_tensor("start", TensorProto.BOOL, [], [True])
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "start", "x"], ["y"], body=_loop_body([1]))],
        "endless",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
        [trips, go],
    )
    onnx.save(_onnx_model(graph), path)


def write_onnx_looping(path: Path, columns: int, above: float) -> None:
    """Write y = x, [rows, columns], with an endless loop if the sum of x is above a number."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    value, shape = helper.make_tensor_value_info, ["rows", columns]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "above"], ["excess"]),
        helper.make_node("Relu", ["excess"], ["positive"]),
        helper.make_node("Mul", ["positive", "many"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["trips"], to=TensorProto.INT64),
        helper.make_node("Loop", ["trips", "start", "x"], ["y"], body=_loop_body(shape)),
    ]
    constants = {"above": np.float32(above), "many": np.float32(1e12), "start": np.bool_(True)}
    graph = helper.make_graph(
        nodes,
        "looping",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(constant), name) for name, constant in constants.items()],
    )
    onnx.save(_onnx_model(graph), path)


def _loop_body(shape: list[Any]) -> Any:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", [old], [new]) for old, new in (("go", "go_on"), ("state", "state_out"))]
    inputs = [value("step", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])]
    inputs.append(value("state", TensorProto.FLOAT, shape))
    outputs = [value("go_on", TensorProto.BOOL, []), value("state_out", TensorProto.FLOAT, shape)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def write_reference(path: Path, graph: dict[str, Any], **weights: np.ndarray[Any, Any]) -> None:
    """Write any graph in the reference runtime's form."""
    text = np.frombuffer(json.dumps(graph).encode(), np.uint8)
    np.savez(path, graph=text, **weights)


def _write_onnx(path: Path, manifest: ModelManifest, rows: int) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def value(spec: TensorSpec) -> Any:
        kind = getattr(TensorProto, ONNX_TYPES.get(spec.datatype, spec.datatype.label))
        return helper.make_tensor_value_info(spec.name, kind, ["rows" if rows < 0 else rows, *spec.shape[1:]])

    op, inputs, outputs, weights = _node(manifest)
    graph = helper.make_graph(
        [helper.make_node(op, inputs, outputs)],
        manifest.name,
        [value(spec) for spec in manifest.inputs],
        [value(spec) for spec in manifest.outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(_onnx_model(graph), path)


def _onnx_model(graph: Any) -> Any:
    from onnx import helper

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _write_openvino(path: Path, manifest: ModelManifest, rows: int) -> None:
    import openvino as ov
    from openvino import opset13 as ops

    parameters = {}
    for spec in manifest.inputs:
        label = OPENVINO_TYPES.get(spec.datatype, spec.datatype.label.lower().replace("uint", "u").replace("int", "i"))
        parameters[spec.name] = ops.parameter(
            [rows, *spec.shape[1:]],
            ov.Type(np.dtype("f4")) if label == "f32" else getattr(ov.Type, label),
            name=spec.name,
        )
    nodes = list(parameters.values())
    build: dict[str, Callable[[], Any]] = {
        "adder": lambda: ops.add(*nodes),
        "dense": lambda: ops.add(ops.matmul(nodes[0], ops.constant(WEIGHTS), False, False), ops.constant(BIAS)),
    }
    answer = build.get(manifest.name, lambda: ops.reshape(nodes[0], ops.constant(np.array([-1, 3])), False))()
    for spec, node in parameters.items():
        node.output(0).get_tensor().set_names({spec})
    answer.output(0).get_tensor().set_names({manifest.outputs[0].name})
    ov.save_model(ov.Model([answer], nodes, manifest.name), str(path), compress_to_fp16=False)


def _write_reference(path: Path, manifest: ModelManifest, rows: int) -> None:
    op, inputs, outputs, weights = _node(manifest)

    def described(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype.label, "shape": [rows, *spec.shape[1:]]}

    graph = {
        "inputs": [described(spec) for spec in manifest.inputs],
        "outputs": [described(spec) for spec in manifest.outputs],
        "nodes": [{"op": op, "inputs": inputs, "outputs": outputs, "attributes": {}}],
    }
    write_reference(path, graph, **weights)


def _node(manifest: ModelManifest) -> tuple[str, list[str], list[str], dict[str, Any]]:
    if manifest.name == "adder":
        return "Add", ["left", "right"], ["total"], {}
    if manifest.name == "dense":
        return "Gemm", ["x", "W", "b"], ["scores"], {"W": WEIGHTS, "b": BIAS}
    return "Identity", ["x"], ["y"], {}


def _write_litert(path: Path, manifest: ModelManifest, rows: int) -> None:
    path.write_bytes(models_litert.build(manifest, rows, WEIGHTS, BIAS))


_WRITERS: dict[str, Callable[[Path, ModelManifest, int], None]] = {
    "onnx": _write_onnx,
    "openvino": _write_openvino,
    "litert": _write_litert,
    "reference": _write_reference,
}
