"""Steps of an image processor of Transformers, from `preprocessor_config.json`.

Source: image_processing_*.py of Transformers: resize, centre crop, rescale, normalise, each switched by `do_…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.preprocess_toml import CROP_SHARE_LIMIT
from gateway.workshop.importing.imported import ImportFinding, left_out
from gateway.workshop.importing.pixels import PixelSteps

PROCESSOR = "preprocessor_config.json"
SIDE_LIMIT_PX = 16_384
NUMBER_LIMIT = 1e6
RESCALE = 1 / 255
BILINEAR = 2
FILTERS: Mapping[int, str] = {0: "nearest", 1: "lanczos", BILINEAR: "bilinear", 3: "bicubic", 4: "box"}
"""Filters of a resize by Pillow's numbers."""
UNCROPPED_PX = 384
"""Size from which ConvNextImageProcessor resizes without a crop."""
SHARE_DIGITS = 9


def read_steps(values: Mapping[str, Any]) -> tuple[PixelSteps | None, tuple[ImportFinding, ...]]:
    """Return the steps, None if no fixed size is stated, and what the gateway does in another way.

    Raises ConfigurationError for values that are no sizes or numbers.
    """
    place = _place(values)
    if place is None:
        return None, (left_out(f"{PROCESSOR}: size", f"{values.get('size')!r:.80} is no fixed size"),)
    steps = PixelSteps(
        size=place.size,
        fit="crop" if place.crop_share else "stretch",
        crop_share=_rounded(min(place.crop_share or 1.0, 1.0)),
        resample=_filter(values) or "bilinear",
        color="bgr" if values.get("do_flip_channel_order") else "rgb",
        scale=_rescale(values),
        mean=_numbers(values, "image_mean", 0.0),
        std=_numbers(values, "image_std", 1.0),
    )
    found = []
    if place.crop_share > 1:
        text = f"a crop of {place.size[0]} × {place.size[1]} is larger than the resized image; here it is enlarged"
        found.append(left_out("crop_size", text))
    elif 0 < place.crop_share < 1 and place.size[0] != place.size[1]:
        found.append(left_out("crop_size", "is no square: the part of the image that is kept differs a little here"))
    if place.crop_share and _resize(values)[0]:
        text = "images are stretched before the crop in training; here they keep their proportions"
        found.append(left_out("do_center_crop", text))
    if not _filter(values):
        found.append(left_out("resample", f"filter {values['resample']!r:.20} in training, bilinear here"))
    if values.get("do_pad"):
        found.append(left_out("do_pad", "images of a batch are not padded to one size; they all have the same"))
    return steps, tuple(found)


@dataclass(frozen=True, slots=True)
class _Place:
    """Size (height, width) of the input. `crop_share`: share of the shorter side that a crop keeps; 0: no crop."""

    size: tuple[int, int]
    crop_share: float


def _place(values: Mapping[str, Any]) -> _Place | None:
    """Return how an image becomes an input, None if no fixed size is stated."""
    resized, shortest = _resize(values)
    crop = _sides(values, "crop_size") if values.get("do_center_crop") else None
    percentage = values.get("crop_pct")
    if shortest and percentage is not None:  # ConvNextImageProcessor
        if shortest >= UNCROPPED_PX:
            return _Place((shortest, shortest), 0.0)
        return _Place((shortest, shortest), shortest / max(1, int(shortest / _share(percentage))))
    if crop:
        before = shortest or min(resized or crop)
        return _Place(crop, min(crop) / before)
    if resized:
        return _Place(resized, 0.0)
    return _Place((shortest, shortest), 1.0) if shortest else None


def _resize(values: Mapping[str, Any]) -> tuple[tuple[int, int] | None, int]:
    """Return the fixed size (height, width) and the shortest edge (0: none) of a resize."""
    size = values.get("size")
    if values.get("do_resize") is False or size is None:
        return None, 0
    if isinstance(size, dict) and "shortest_edge" in size:
        return None, _side(size["shortest_edge"], "size") if "longest_edge" not in size else 0
    if isinstance(size, int) and values.get("do_center_crop"):
        return None, _side(size, "size")
    return _sides(values, "size"), 0


def _sides(values: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    size = values.get(key)
    if isinstance(size, dict):
        if not {"height", "width"} <= size.keys():
            return None
        return _side(size["height"], key), _side(size["width"], key)
    return None if size is None else (_side(size, key), _side(size, key))


def _side(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= SIDE_LIMIT_PX:
        problem = f"must be 1 to {SIDE_LIMIT_PX} pixels, not {value!r:.80}"
        raise ConfigurationError(problem, file=PROCESSOR, key=key)
    return value


def _rescale(values: Mapping[str, Any]) -> float:
    if values.get("do_rescale") is False:
        return 1.0
    return _number(values.get("rescale_factor", RESCALE), "rescale_factor")


def _numbers(values: Mapping[str, Any], key: str, default: float) -> tuple[float, ...]:
    found = values.get(key)
    if not values.get("do_normalize") or found is None:
        return (default,)
    numbers = tuple(_number(each, key) for each in (found if isinstance(found, list) else [found]))
    if len(numbers) not in {1, 3} or (key == "image_std" and 0.0 in numbers):
        raise ConfigurationError("must be 1 or 3 numbers, for a deviation above 0", file=PROCESSOR, key=key)
    return numbers


def _number(value: Any, key: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= NUMBER_LIMIT:
        raise ConfigurationError(f"must be a number, not {value!r:.80}", file=PROCESSOR, key=key)
    return float(value)


def _filter(values: Mapping[str, Any]) -> str:
    """Return the name of the filter of the resize, "" if it has none here."""
    number = values.get("resample", BILINEAR)
    return FILTERS.get(number, "") if isinstance(number, int) else ""


def _share(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not CROP_SHARE_LIMIT <= value <= 1:
        problem = f"must be a share of {CROP_SHARE_LIMIT} to 1, not {value!r:.80}"
        raise ConfigurationError(problem, file=PROCESSOR, key="crop_pct")
    return float(value)


def _rounded(share: float) -> float:
    return float(f"{max(share, CROP_SHARE_LIMIT):.{SHARE_DIGITS}g}")
