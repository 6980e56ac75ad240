"""Quantization of TFLite files by ai-edge-quantizer. Runs in a child process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.common.domain.tensor import Tensors
from gateway.serving.runtimes.litert import signature_names
from gateway.serving.runtimes.litert_signatures import DEFAULT_SIGNATURE as SIGNATURE
from gateway.serving.runtimes.litert_tables import with_signature


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

    key, names = signature_names(source)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        if not key:
            key, source = SIGNATURE, _signed(source, Path(folder))
        tool = quantizer.Quantizer(str(source))
        tool.load_quantization_recipe(recipe)
        fed = [{names.get(name, name): array for name, array in run.items()} for run in runs]
        calibrated = tool.calibrate({key: fed}) if tool.need_calibration else None
        tool.quantize(calibrated).export_model(str(target))


def _signed(source: Path, folder: Path) -> Path:
    """Return a copy in `folder` with a signature, without which the tool cannot calibrate."""
    target = folder / "signed.tflite"
    target.write_bytes(with_signature(source, SIGNATURE))
    return target
