"""Conversion of decoded frames to the form that a model takes, with PyAV."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Array
from gateway.serving.frontends.cameras.forms import FrameForm
from gateway.serving.frontends.cameras.settings import FeedSettings

if TYPE_CHECKING:
    import av

MATRICES = {1: "bt709", 5: "bt601", 6: "bt601"}
RANGES = {1: "limited", 2: "full"}
"""Colours of a decoded frame, as FFmpeg numbers them (ITU-T H.273): others are unknown, and taken for the model's."""
MATRIX_NAMES = {"bt601": "ITU601", "bt709": "ITU709"}
RANGE_NAMES = {"limited": "MPEG", "full": "JPEG"}
"""PyAV's names of what a manifest declares."""


@dataclass(frozen=True, slots=True)
class PreparedFrame:
    """Frame as it is sent. `image`: the frame in whose pixels the result is."""

    content: bytes
    shape: list[int]
    image: av.VideoFrame


def masked(frame: av.VideoFrame, masks: Sequence[Sequence[float]], settings: FeedSettings) -> av.VideoFrame:
    """Return a frame whose pixels within polygons (shares of the picture) are black. Raises RequestError TOO_LARGE."""
    if not masks:
        return frame
    import av

    _check_pixels(frame, settings)
    pixels = frame.to_ndarray(format="rgb24")
    pixels[_covered(tuple(map(tuple, masks)), frame.width, frame.height)] = 0
    return av.VideoFrame.from_ndarray(pixels, "rgb24")


@lru_cache(maxsize=2)
def _covered(masks: tuple[tuple[float, ...], ...], width: int, height: int) -> Array:
    """Return which pixels [height, width] lie within polygons, or are touched by their borders."""
    import numpy as np
    from PIL import Image, ImageDraw

    image = Image.new("1", (width, height))
    for mask in masks:
        corners = [(x * width - 0.5, y * height - 0.5) for x, y in zip(mask[::2], mask[1::2], strict=True)]
        ImageDraw.Draw(image).polygon(corners, fill=1)
        ImageDraw.Draw(image).line([*corners, corners[0]], fill=1, width=3)  # rather a pixel too many than one too few
    return np.asarray(image, bool)


def picture(image: av.VideoFrame, entries: Sequence[Mapping[str, Any]], settings: FeedSettings) -> bytes:
    """Return a frame as JPEG, with boxes and labels of `entries` drawn into it."""
    from gateway.serving.tasks.drawing import draw

    shown, content = image.to_image().convert("RGB"), io.BytesIO()
    (draw({"detections": entries}, shown) if entries else shown).save(content, "jpeg", quality=settings.jpeg_quality)
    return content.getvalue()


def prepare(frame: av.VideoFrame, form: FrameForm, settings: FeedSettings) -> PreparedFrame:
    """Return a frame in the form of a model. Raises RequestError TOO_LARGE."""
    _check_pixels(frame, settings)
    try:
        sent = _converted(frame, form)
    except (ValueError, OSError) as error:  # a pixel format or size that FFmpeg does not convert
        raise RequestError(
            Fault.INVALID, f"a frame of {frame.format.name} cannot be converted to {form}: {error}"
        ) from None
    content = _compressed(sent, form.image, settings) if form.image else _planar(sent, form).tobytes()
    if len(content) > settings.frame_bytes:
        raise _too_large(frame, f"has {len(content)} bytes as {form}, at most {settings.frame_bytes} are sent")
    return PreparedFrame(content, form.shape(sent.width, sent.height), sent)


def _converted(frame: av.VideoFrame, form: FrameForm) -> av.VideoFrame:
    """Return the frame in pixel format, size and colours of the form; itself if it has them."""
    width, height = form.size or (frame.width, frame.height)
    matrix, color_range = _colours(frame, form)
    same = (frame.format.name, frame.width, frame.height) == (form.pixels, width, height)
    if same and matrix is None and color_range is None:
        return frame
    return frame.reformat(width, height, form.pixels, dst_colorspace=matrix, dst_color_range=color_range)


def _colours(frame: av.VideoFrame, form: FrameForm) -> tuple[str | None, str | None]:
    """Return matrix and range to convert to, by PyAV's names; None: they stay as they are."""
    if not form.matrix:
        return None, None
    is_other_matrix = frame.format.is_rgb or MATRICES.get(frame.colorspace, form.matrix) != form.matrix
    is_other_range = frame.format.is_rgb or RANGES.get(frame.color_range, form.color_range) != form.color_range
    return (
        MATRIX_NAMES[form.matrix] if is_other_matrix else None,
        RANGE_NAMES[form.color_range] if is_other_range else None,
    )


def _planar(frame: av.VideoFrame, form: FrameForm) -> Array:
    """Return the samples of a frame without padding, in the order of the form."""
    samples: Array = frame.to_ndarray()
    if form.layout == "NCHW" and samples.ndim == 3:
        return samples.transpose(2, 0, 1)
    return samples


def _compressed(frame: av.VideoFrame, image: str, settings: FeedSettings) -> bytes:
    content = io.BytesIO()
    options = {"quality": settings.jpeg_quality} if image == "jpeg" else {"compress_level": 1}
    frame.to_image().save(content, image, **options)
    return content.getvalue()


def _check_pixels(frame: av.VideoFrame, settings: FeedSettings) -> None:
    if frame.width * frame.height > settings.frame_pixels:
        raise _too_large(frame, f"has more than {settings.frame_pixels} pixels")


def _too_large(frame: av.VideoFrame, problem: str) -> RequestError:
    return RequestError(
        Fault.TOO_LARGE,
        f"a frame of {frame.width} by {frame.height} pixels {problem}; let the camera send smaller ones",
    )
