"""Keys of `[input.preprocess]` from the numbers that image processors of other tools have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.manifest import ROWS, TensorSpec

CHANNELS = 3
"""Values of a pixel: red, green, blue."""
SIGNIFICANT_DIGITS = 9
"""Digits of written numbers: more than FP32, in which pixels are computed, can hold."""


@dataclass(frozen=True, slots=True)
class PixelSteps:
    """Steps from an image to an input: value of a pixel = (x · scale − mean) / std. `size` is (height, width)."""

    size: tuple[int, int]
    fit: str = "stretch"
    color: str = "rgb"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad_value: int = 0
    crop_share: float = 1.0
    resample: str = "bilinear"


_USUAL = PixelSteps((1, 1))


def image_spec(spec: TensorSpec, steps: PixelSteps) -> TensorSpec | None:
    """Return an input with layout and sizes of these images, or None if it takes none of them."""
    height, width = steps.size
    if len(spec.shape) != 4:
        return None
    for layout, sizes in (("NCHW", (CHANNELS, height, width)), ("NHWC", (height, width, CHANNELS))):
        if all(own in {ROWS, size} for own, size in zip(spec.shape[1:], sizes, strict=True)):
            return TensorSpec(spec.name, spec.datatype, (spec.shape[0], *sizes), layout)
    return None


def preprocess_keys(steps: PixelSteps) -> dict[str, Any]:
    """Return the keys for these steps.

    A standard deviation that all channels share is part of scale and mean: (x·s − m) / d = x·(s/d) − m/d.
    """
    scale, mean, std = steps.scale, steps.mean, steps.std
    if len(set(std)) == 1:
        scale, mean, std = scale / std[0], tuple(each / std[0] for each in mean), (1.0,)
    keys: dict[str, Any] = {"decode": ["jpeg", "png"], "color": steps.color, "resize": list(steps.size)}
    keys |= {"fit": steps.fit, "scale": _rounded(scale), "mean": _short(mean)}
    keys |= {"std": _short(std)} if std != (1.0,) else {}
    for key in ("pad_value", "crop_share", "resample"):
        if getattr(steps, key) != getattr(_USUAL, key):
            keys[key] = getattr(steps, key)
    return keys


def _short(numbers: Sequence[float]) -> list[float]:
    """Return the numbers, or one of them if all are equal."""
    rounded = [_rounded(number) for number in numbers]
    return rounded[:1] if len(set(rounded)) == 1 else rounded


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")
