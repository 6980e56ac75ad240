"""OpenVINO IR with weights in 16 bits, and quantized by NNCF. Runs in a child process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.common.domain.tensor import Tensors
from gateway.workshop.making.float_tail import GraphNode, float_tail

WEIGHTED = frozenset(
    {
        *("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul"),
        *("LSTMSequence", "GRUSequence", "RNNSequence"),
    }
)
"""Operators whose constants are weights."""


def write_openvino_fp16(source: Path, runs: Sequence[Tensors], target: Path) -> None:
    """Write the IR of an ONNX file or of an IR with weights in 16 bits. Raises the tool's errors."""
    _save(_read(source), target)


def write_openvino_int8(source: Path, runs: Sequence[Tensors], target: Path) -> None:
    """Quantize weights per channel and activations per tensor. Raises the tools' errors.

    The overflow fix covers every layer, for processors without VNNI (see `quantize_onnx`). Ranges are the extremes
    over all runs: NNCF's default averages each run's extremes, which cuts off rare large values (`models/activity`,
    mean error of a probability over its training rows: 0.0050 instead of 0.0012).
    """
    import nncf
    from nncf.quantization.advanced_parameters import OverflowFix
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    parameters = nncf.AdvancedQuantizationParameters(
        overflow_fix=OverflowFix.ENABLE, activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX
    )
    model = _read(source)
    tail = nncf.IgnoredScope(names=float_tail(_nodes(model)), validate=False)  # it knows no constants
    model = nncf.quantize(
        model,
        # NNCF takes an array, or a dictionary of several.
        nncf.Dataset([next(iter(run.values())) if len(run) == 1 else dict(run) for run in runs]),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(runs),
        ignored_scope=tail,
        advanced_parameters=parameters,
    )
    _save(model, target)


def _nodes(model: Any) -> list[GraphNode]:
    """Return the operators of a model with the names that OpenVINO gives to their outputs."""
    nodes = []
    for operator in model.get_ordered_ops():
        sources = [(source.get_node(), source.get_index()) for source in operator.input_values()]
        constants = [math.prod(node.get_output_shape(0)) for node, _ in sources if _is_constant(node)]
        weights = max(constants, default=0) if operator.get_type_name() in WEIGHTED else 0
        name = operator.get_friendly_name()
        inputs = tuple(f"{node.get_friendly_name()}:{index}" for node, index in sources)
        nodes.append(
            GraphNode(name, inputs, tuple(f"{name}:{at}" for at in range(operator.get_output_size())), weights)
        )
    return nodes


def _is_constant(node: Any) -> bool:
    """Return True for weights, which may be stored in 16 bits and converted."""
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def _read(source: Path) -> Any:
    import openvino

    return openvino.Core().read_model(source) if source.suffix == ".xml" else openvino.convert_model(source)


def _save(model: Any, target: Path) -> None:
    import openvino

    openvino.save_model(model, target, compress_to_fp16=True)
