"""Values that an author may choose from: kinds of tasks and of variants, and ranges of the values of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = (
    *("image-classification", "object-detection", "oriented-object-detection", "instance-segmentation"),
    *("semantic-segmentation", "pose-estimation", "text-recognition", "time-series-classification"),
    *("tabular-classification", "text-classification", "regression", "embedding"),
)
"""Kinds of tasks that are proposed, or that the author may name."""
LAYOUTS = ("NCHW", "NHWC")
"""Layouts of inputs that take images."""
DEFAULT_RANGE = "unit"
_DEVIATION = 0.226
"""Mean of ImageNet's three deviations (0.229, 0.224, 0.225): a manifest has one scale for all channels."""
VALUE_RANGES: Mapping[str, tuple[float, tuple[float, ...]]] = {
    "unit": (1 / 255, (0.0,)),
    "signed-unit": (1 / 127.5, (1.0,)),
    "pixels": (1.0, (0.0,)),
    "signed-pixels": (1.0, (128.0,)),
    "imagenet": (1 / 255 / _DEVIATION, tuple(round(mean / _DEVIATION, 6) for mean in (0.485, 0.456, 0.406))),
}
"""Scale and mean of the manifest by the values that a model takes for black to white.

unit: 0 to 1; signed-unit: -1 to 1; pixels: 0 to 255; signed-pixels: -128 to 127.
"""


@dataclass(frozen=True, slots=True)
class VariantKind:
    """Variant that can be made: its runtime and precision, the runtimes of its source, the packages of its tool."""

    name: str
    runtime: str
    precision: str
    sources: tuple[str, ...]
    packages: tuple[str, ...]


VARIANT_KINDS = (
    VariantKind("onnx-int8", "onnx", "int8", ("onnx",), ("onnx", "onnxruntime")),
    VariantKind("openvino-fp16", "openvino", "fp16", ("openvino", "onnx"), ("openvino",)),
    VariantKind("openvino-int8", "openvino", "int8", ("openvino", "onnx"), ("nncf", "openvino")),
    VariantKind("litert-int8", "litert", "int8", ("litert",), ("ai_edge_quantizer",)),
    VariantKind("litert-dynamic-int8", "litert", "int8", ("litert",), ("ai_edge_quantizer",)),
)
"""There is no way without PyTorch or TensorFlow from ONNX to TFLite: LiteRT's variants need a TFLite file."""
