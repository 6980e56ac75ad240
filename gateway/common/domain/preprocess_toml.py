"""Strict reader of a manifest's `[input.preprocess]`: encoded images and raw frames of cameras.

Source: docs/pages/reference/manifest.md.
"""

from __future__ import annotations

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import FRAME_FORMATS, IMAGE_FORMATS, ROWS, Preprocess, TensorSpec
from gateway.common.domain.tensor import Datatype

IMAGE_SIDE_LIMIT_PX = 16384
FACTOR_LIMIT = 1e6
"""Largest `scale` and `std`; the least `std` is its reciprocal."""
CROP_SHARE_LIMIT = 0.01
RESAMPLES = ("nearest", "bilinear", "bicubic", "lanczos", "box")
"""Filters of Pillow, which all take every pixel into account when they make an image smaller, but `nearest`."""
_OF_FITS = {"pad_value": "letterbox", "align": "letterbox", "crop_share": "crop"}
"""Keys that are for one fit only."""
_OF_FRAMES = ("frame", "color_matrix", "color_range")


def read_preprocess(table: Table | None) -> Preprocess | None:
    """Take `[input.preprocess]`. Raises ConfigurationError for unknown keys and for values that contradict."""
    if table is None:
        return None
    for_frames, for_images = [key for key in _OF_FRAMES if key in table], "orientation" in table
    fits = {key: fit for key, fit in _OF_FITS.items() if key in table}
    preprocess = Preprocess(
        decode=table.texts("decode", among=(*IMAGE_FORMATS, *FRAME_FORMATS)),
        color=table.text("color", "rgb", among=("rgb", "bgr", "gray")),
        resize=_size(table, "resize"),
        fit=table.text("fit", "stretch", among=("stretch", "letterbox", "crop")),
        scale=table.number("scale", 1.0, low=-FACTOR_LIMIT, high=FACTOR_LIMIT),
        mean=table.numbers("mean", (0.0,)),
        std=table.numbers("std", (1.0,)),
        pad_value=table.integer("pad_value", 0, low=0, high=255),
        align=table.text("align", "center", among=("center", "top-left")),
        crop_share=table.number("crop_share", 1.0, low=CROP_SHARE_LIMIT, high=1.0),
        resample=table.text("resample", "bilinear", among=RESAMPLES),
        frame=_size(table, "frame"),
        color_matrix=table.text("color_matrix", "bt601", among=("bt601", "bt709")),
        color_range=table.text("color_range", "limited", among=("limited", "full")),
        orientation=table.text("orientation", "upright", among=("upright", "stored")),
    )
    _check_numbers(table, preprocess)
    if for_images and not set(preprocess.decode).isdisjoint(FRAME_FORMATS):
        table.refuse("orientation", f"is for {' and '.join(IMAGE_FORMATS)}; a raw frame has no EXIF data")
    for key, fit in fits.items():
        if preprocess.fit != fit:
            table.refuse(key, f'is for fit = "{fit}"; write that, or remove it')
    raw = [name for name in preprocess.decode if name in FRAME_FORMATS]
    if not preprocess.decode:
        table.refuse("decode", f"names no format; name one or more of {', '.join((*IMAGE_FORMATS, *FRAME_FORMATS))}")
    if raw and len(preprocess.decode) > 1:
        table.refuse("decode", f"{raw[0]} must be the only format: a raw frame has no header that tells it apart")
    if for_frames and not raw:
        table.refuse(for_frames[0], f"is for raw frames; decode names none of {', '.join(FRAME_FORMATS)}")
    if raw and preprocess.frame is None:
        table.refuse("frame", f"missing; raw frames ({raw[0]}) have no header: name their [height, width]")
    if preprocess.frame and any(side % 2 for side in preprocess.frame):
        table.refuse("frame", f"must be even numbers of pixels, not {list(preprocess.frame)}")
    table.finish()
    return preprocess


def check_image_input(table: Table, spec: TensorSpec, preprocess: Preprocess) -> None:
    """Check the shape: [rows, channels, height, width] or, with layout NHWC, [rows, height, width, channels].

    Raises ConfigurationError for a shape, layout or datatype that images do not fit.
    """
    if spec.datatype in {Datatype.BYTES, Datatype.BOOL} or spec.layout not in {"", "NCHW", "NHWC"}:
        table.refuse("preprocess", "images need a numeric input of layout NCHW or NHWC")
    height, width = preprocess.resize or preprocess.frame or (ROWS, ROWS)
    sizes = (height, width, preprocess.channels) if spec.layout == "NHWC" else (preprocess.channels, height, width)
    if len(spec.shape) != 4 or any(-1 not in {s, w} and s != w for s, w in zip(spec.shape[1:], sizes, strict=True)):
        table.refuse("shape", f"preprocess gives images of {list(sizes)}, which {list(spec.shape)} does not take")


def _check_numbers(table: Table, preprocess: Preprocess) -> None:
    for key, numbers in (("mean", preprocess.mean), ("std", preprocess.std)):
        if len(numbers) not in {1, preprocess.channels}:
            table.refuse(key, f"must hold 1 or {preprocess.channels} numbers, not {len(numbers)}")
    if not all(1 / FACTOR_LIMIT <= number <= FACTOR_LIMIT for number in preprocess.std):
        table.refuse("std", f"must hold numbers between {1 / FACTOR_LIMIT:g} and {FACTOR_LIMIT:g}")


def _size(table: Table, key: str) -> tuple[int, int] | None:
    if key not in table:
        return None
    size = table.integers(key)
    if len(size) != 2 or not all(0 < side <= IMAGE_SIDE_LIMIT_PX for side in size):
        table.refuse(key, f"must be [height, width] of 1 to {IMAGE_SIDE_LIMIT_PX} pixels, not {list(size)}")
    return size[0], size[1]
