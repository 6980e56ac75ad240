"""Operators of the reference runtime, in numpy, as ONNX opset 13 defines them. Readability has priority over speed.

Each takes its inputs as arrays and its attributes as a mapping, and returns one array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.domain.postprocess import softmax

Attributes = Mapping[str, Any]
Operator = Callable[[Sequence[Array], Attributes], Array]


def _identity(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return inputs[0]


def _relu(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(np.maximum(inputs[0], inputs[0].dtype.type(0)))


def _gemm(inputs: Sequence[Array], attributes: Attributes) -> Array:
    left = inputs[0].T if attributes.get("transA") else inputs[0]
    right = inputs[1].T if attributes.get("transB") else inputs[1]
    product = left @ right
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    if alpha != 1.0:
        product = product * product.dtype.type(alpha)
    if len(inputs) < 3:
        return np.asarray(product)
    return np.asarray(product + (inputs[2] if beta == 1.0 else inputs[2] * inputs[2].dtype.type(beta)))


def _matmul(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(inputs[0] @ inputs[1])


def _add(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(inputs[0] + inputs[1])


def _sub(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(inputs[0] - inputs[1])


def _mul(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(inputs[0] * inputs[1])


def _conv(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Convolve with channels first and any number of spatial axes: one tensordot per group over sliding windows."""
    image, kernel = inputs[0], inputs[1]
    groups = int(attributes.get("group", 1))
    windows = _windows(image, kernel.shape[2:], attributes, fill=0.0)
    parts = zip(np.split(windows, groups, axis=1), np.split(kernel, groups, axis=0), strict=True)
    answer = np.concatenate([_correlate(*part) for part in parts], axis=1)
    if len(inputs) > 2:
        answer = answer + inputs[2].reshape(1, -1, *[1] * (image.ndim - 2))
    return np.asarray(answer)


def _correlate(windows: Array, kernel: Array) -> Array:
    """Correlate [n, c, out…, k…] with [o, c, k…] to [n, o, out…]."""
    spatial = kernel.ndim - 2
    over = (1, *range(windows.ndim - spatial, windows.ndim))
    answer = np.tensordot(windows, kernel, axes=(over, tuple(range(1, kernel.ndim))))
    return np.asarray(np.moveaxis(answer, -1, 1))


def _max_pool(inputs: Sequence[Array], attributes: Attributes) -> Array:
    windows = _windows(inputs[0], attributes["kernel_shape"], attributes, fill=-math.inf)
    return np.asarray(windows.max(axis=_last(attributes["kernel_shape"])))


def _average_pool(inputs: Sequence[Array], attributes: Attributes) -> Array:
    over = _last(attributes["kernel_shape"])
    total = _windows(inputs[0], attributes["kernel_shape"], attributes, fill=0.0).sum(axis=over)
    counted = np.ones((1, 1, *inputs[0].shape[2:]), inputs[0].dtype)
    fill = 1.0 if attributes.get("count_include_pad") else 0.0
    return np.asarray(total / _windows(counted, attributes["kernel_shape"], attributes, fill=fill).sum(axis=over))


def _global_average_pool(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(inputs[0].mean(axis=tuple(range(2, inputs[0].ndim)), keepdims=True))


def _flatten(inputs: Sequence[Array], attributes: Attributes) -> Array:
    axis = int(attributes.get("axis", 1))
    return inputs[0].reshape(math.prod(inputs[0].shape[:axis]), -1)


def _reshape(inputs: Sequence[Array], attributes: Attributes) -> Array:
    sizes = [int(size) for size in inputs[1]]
    if not attributes.get("allowzero"):
        sizes = [inputs[0].shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return inputs[0].reshape(sizes)


def _transpose(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return inputs[0].transpose(attributes.get("perm"))


def _concat(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.concatenate(inputs, axis=int(attributes["axis"]))


def _softmax(inputs: Sequence[Array], attributes: Attributes) -> Array:
    axis = int(attributes.get("axis", -1))
    return np.asarray(np.moveaxis(softmax(np.moveaxis(inputs[0], axis, -1)), -1, axis))


def _reduce_mean(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Compute the mean. `axes` is an attribute before opset 18 and an input since."""
    axes = attributes.get("axes", inputs[1] if len(inputs) > 1 else range(inputs[0].ndim))
    over = tuple(int(axis) for axis in axes)
    mean = np.asarray(inputs[0].mean(axis=over, keepdims=True))
    return mean if attributes.get("keepdims", 1) else mean.squeeze(axis=over)


def _windows(image: Array, kernel: Sequence[int], attributes: Attributes, *, fill: float) -> Array:
    """Return [n, c, in…] as [n, c, out…, k…]: every place of the kernel, with pads, strides and dilations applied."""
    rank = len(kernel)
    if attributes.get("auto_pad", "NOTSET") not in {"NOTSET", "VALID", b"NOTSET", b"VALID"} or attributes.get(
        "ceil_mode"
    ):
        raise ValueError("auto_pad and ceil_mode are not supported; write the pads out")
    pads = [int(pad) for pad in attributes.get("pads", [0] * 2 * rank)]
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    padded = np.pad(image, around, constant_values=fill) if any(pads) else image
    spans = tuple((size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    return views[tuple([slice(None)] * 2 + _steps(strides) + _steps(dilations))]


def _steps(sizes: Sequence[int]) -> list[slice]:
    return [slice(None, None, int(size)) for size in sizes]


def _last(kernel: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(kernel), 0))


OPERATORS: Mapping[str, Operator] = {
    "Identity": _identity,
    "Relu": _relu,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Softmax": _softmax,
    "ReduceMean": _reduce_mean,
}
"""Operators by ONNX's name."""
