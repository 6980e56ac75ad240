"""Quantization of TFLite files by ai-edge-quantizer. Runs in a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.domain.tensor import Tensors
from gateway.runtimes.litert import signature_names


def write_litert_int8(source: Path, runs: Sequence[Tensors], target: Path) -> None:
    """Quantize weights and activations, inputs and outputs included. Raises the tool's errors."""
    from ai_edge_quantizer import recipe

    _write(source, runs, target, recipe.static_wi8_ai8())


def write_litert_dynamic_int8(source: Path, runs: Sequence[Tensors], target: Path) -> None:
    """Quantize weights; activations are quantized in each run by their own range. Raises the tool's errors."""
    from ai_edge_quantizer import recipe

    _write(source, runs, target, recipe.dynamic_wi8_afp32())


def _write(source: Path, runs: Sequence[Tensors], target: Path, recipe: Any) -> None:
    from ai_edge_quantizer import quantizer

    tool = quantizer.Quantizer(str(source))
    tool.load_quantization_recipe(recipe)
    calibrated = tool.calibrate(_signature_runs(source, runs)) if tool.need_calibration else None
    tool.quantize(calibrated).export_model(str(target))


def _signature_runs(source: Path, runs: Sequence[Tensors]) -> dict[str | None, list[Mapping[str, Any]]]:
    """Return the runs by the served signature of a file, with its names of the inputs."""
    key, names = signature_names(source)
    return {key or None: [{names.get(name, name): array for name, array in run.items()} for run in runs]}
