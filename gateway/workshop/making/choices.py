"""Values that an author may choose from: kinds of variants, and ranges of the values of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAYOUTS = ("NCHW", "NHWC")
"""Layouts of inputs that take images."""
DEFAULT_RANGE = "unit"
NO_DEVIATION = (1.0,)
VALUE_RANGES: Mapping[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "unit": (1 / 255, (0.0,), NO_DEVIATION),
    "signed-unit": (1 / 127.5, (1.0,), NO_DEVIATION),
    "pixels": (1.0, (0.0,), NO_DEVIATION),
    "signed-pixels": (1.0, (128.0,), NO_DEVIATION),
    "imagenet": (1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Scale, mean and standard deviation of the manifest by the values that a model takes for black to white.

unit: 0 to 1; signed-unit: -1 to 1; pixels: 0 to 255; signed-pixels: -128 to 127.
"""


@dataclass(frozen=True, slots=True)
class VariantKind:
    """Variant that can be made: its runtime and precision, the runtimes of its source, the packages of its tool.

    One with `needs`, features of a CPU, is made where it is named, and only on such a CPU: elsewhere OpenVINO computes
    in 32 bits, and what is lost could not be measured.
    """

    name: str
    runtime: str
    precision: str
    sources: tuple[str, ...]
    packages: tuple[str, ...]
    needs: tuple[str, ...] = ()


VARIANT_KINDS = (
    VariantKind("onnx-int8", "onnx", "int8", ("onnx",), ("onnx", "onnxruntime")),
    VariantKind("openvino-fp16", "openvino", "fp16", ("openvino", "onnx"), ("openvino",)),
    VariantKind("openvino-int8", "openvino", "int8", ("openvino", "onnx"), ("nncf", "openvino")),
    VariantKind("litert-int8", "litert", "int8", ("litert",), ("ai_edge_quantizer",)),
    VariantKind("litert-dynamic-int8", "litert", "int8", ("litert",), ("ai_edge_quantizer",)),
    VariantKind("openvino-bf16", "openvino", "bf16", ("openvino", "onnx"), ("openvino",), ("avx512_bf16",)),
)
"""There is no way without PyTorch or TensorFlow from ONNX to TFLite: LiteRT's variants need a TFLite file."""
