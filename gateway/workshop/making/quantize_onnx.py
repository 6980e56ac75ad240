"""Static quantization of ONNX files by ONNX Runtime's own tool: QDQ, weights per channel. Runs in a child process."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gateway.common.domain.tensor import Tensors
from gateway.serving.runtimes.onnx import NO_REPORTS
from gateway.workshop.making.float_tail import GraphNode, float_tail

LEAST_OPSET = 13
"""First opset of ONNX whose QuantizeLinear has a scale for each channel."""
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"})
"""Operators whose constants are weights."""
BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators whose third input is a bias."""
OPSET = 17
"""Opset to which older files are converted; ONNX Runtime 1.12 and later read it."""


def write_onnx_int8(source: Path, runs: Iterable[Tensors], target: Path) -> None:
    """Quantize to unsigned activations and signed weights, with the graph simplified before.

    More of the graph stays in 8 bits with unsigned activations, also in OpenVINO. Raises the tools' errors.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        quantize_onnx(_simplified(_converted(source, Path(folder)), Path(folder)), runs, target, activations="QUInt8")


def quantize_onnx(source: Path, runs: Iterable[Tensors], target: Path, *, activations: str) -> None:
    """Quantize with ranges that are the extremes of all `runs`; `activations` is a name of QuantType.

    Weights keep 7 bits (`reduce_range`): x86 processors without VNNI add pairs of products in 16 bits and saturate
    with 8, https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html.
    """
    os.environ.setdefault(NO_REPORTS, "1")
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    quantize_static(
        source,
        target,
        _CalibrationReader(runs),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        nodes_to_exclude=float_tail(_nodes(source)),
        extra_options={"QDQDisableWeightAdjustForInt32Bias": _has_wide_bias(source)},
    )


def _nodes(source: Path) -> list[GraphNode]:
    """Return the nodes of a graph; one with a graph inside counts as weights."""
    import onnx

    graph = onnx.load(source, load_external_data=False).graph
    elements = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        weights = max([elements.get(name, 0) for name in node.input], default=0) if node.op_type in WEIGHTED else 0
        if any(attribute.HasField("g") for attribute in node.attribute):
            weights = sys.maxsize
        nodes.append(GraphNode(node.name, tuple(filter(None, node.input)), tuple(node.output), weights))
    return nodes


def _has_wide_bias(source: Path) -> bool:
    """Return True if a bias has several dimensions, such as [1, n]: ONNX Runtime 1.31 cannot adjust for it."""
    import onnx

    graph = onnx.load(source, load_external_data=False).graph
    wide = {tensor.name for tensor in graph.initializer if len(tensor.dims) > 1}
    return any(name in wide for node in graph.node if node.op_type in BIASED for name in node.input[2:])


class _CalibrationReader:
    """ONNX Runtime's CalibrationDataReader: one run a call, then None."""

    def __init__(self, runs: Iterable[Tensors]) -> None:
        self._runs = iter(runs)

    def get_next(self) -> dict[str, Any] | None:
        """Return the inputs of the next run."""
        run = next(self._runs, None)
        return None if run is None else dict(run)


def _converted(source: Path, folder: Path) -> Path:
    """Return the file, or a copy in `folder` of an opset that has scales for each channel."""
    import onnx

    model = onnx.load(source, load_external_data=False)
    opset = next((each.version for each in model.opset_import if each.domain in {"", "ai.onnx"}), OPSET)
    if opset >= LEAST_OPSET:
        return source
    target = folder / "converted.onnx"
    onnx.save(onnx.version_converter.convert_version(onnx.load(source), OPSET), target)
    return target


def _simplified(source: Path, folder: Path) -> Path:
    """Return a copy in `folder` with constants computed, normalisations merged into convolutions, and nodes named."""
    os.environ.setdefault(NO_REPORTS, "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "simplified.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    # Name the nodes of a file that have no name: the quantizer excludes nodes by it.
    file = folder / "simplified.onnx"
    import onnx

    model = onnx.load(file)
    unnamed = [node for node in model.graph.node if not node.name]
    for place, node in enumerate(unnamed):
        node.name = f"unnamed-{place}"
    if unnamed:
        onnx.save(model, file)
    return file
