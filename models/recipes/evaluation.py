"""Run every variant with its own runtime over the held-out rows, and compare it with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from gateway.workshop.making.measures import Quality
from models.recipes.litert_export import channels_last
from models.recipes.recipe import Classes, Floats, Recipe
from models.recipes.reference_export import evaluate_reference


def softmax(logits: Floats) -> Floats:
    """Return probabilities per row."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)


def judge(scores: Floats, oracle: Floats, classes: Classes) -> Quality:
    """Compare probabilities [rows, classes] with the oracle's."""
    picked = scores.argmax(axis=1)
    return Quality(
        accuracy=float(np.mean(picked == classes)),
        agreement=float(np.mean(picked == oracle.argmax(axis=1))),
        mean_abs=float(np.mean(np.abs(scores - oracle))),
    )


def run_onnx(recipe: Recipe, path: Path, rows: Floats) -> Floats:
    """Return logits from ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run([recipe.output], {recipe.input: rows})[0]


def run_openvino(recipe: Recipe, path: Path, rows: Floats) -> Floats:
    """Return logits from OpenVINO on the CPU, with the precision named: left alone it would take bf16 where it can."""
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled({recipe.input: rows})[recipe.output]


def run_litert(recipe: Recipe, path: Path, rows: Floats) -> Floats:
    """Return logits from LiteRT, the whole set as one batch; int8 tensors are quantised and dequantised here."""
    from ai_edge_litert.interpreter import Interpreter

    rows = channels_last(recipe, rows)
    interpreter = Interpreter(str(path), num_threads=1)
    source = interpreter.get_input_details()[0]
    interpreter.resize_tensor_input(source["index"], rows.shape)
    interpreter.allocate_tensors()
    target = interpreter.get_output_details()[0]
    interpreter.set_tensor(source["index"], _quantised(rows, source))
    interpreter.invoke()
    return _dequantised(interpreter.get_tensor(target["index"]), target)


def _quantised(rows: Floats, detail: Mapping[str, object]) -> np.ndarray:
    scale, zero = detail["quantization"]
    if not scale:
        return rows
    limits = np.iinfo(detail["dtype"])
    return np.clip(np.rint(rows / scale) + zero, limits.min, limits.max).astype(detail["dtype"])


def _dequantised(values: np.ndarray, detail: Mapping[str, object]) -> Floats:
    scale, zero = detail["quantization"]
    return ((values.astype(np.float32) - zero) * scale).astype(np.float32) if scale else values


def run_reference(recipe: Recipe, path: Path, rows: Floats) -> Floats:
    """Return logits from the numpy oracle."""
    return evaluate_reference(path, rows)


RUNTIMES: Mapping[str, Callable[[Recipe, Path, Floats], Floats]] = {
    "onnx": run_onnx,
    "openvino": run_openvino,
    "litert": run_litert,
    "reference": run_reference,
}
