"""Raw frames of cameras (NV12, I420, YUYV) to RGB or gray pixels. Pure functions.

Formula: R = E + a · V, G = E − b · U − c · V, B = E + d · U, where E is Y with its range expanded, and U and V are
signed. `limited` range has Y in 16..235 and U, V in 16..240, `full` range has 0..255. Source: ITU-R BT.601-7 (2.5) and
BT.709-6 (3): Kr = 0.299 and Kb = 0.114, or 0.2126 and 0.0722; a = 2(1 − Kr), d = 2(1 − Kb), c = a·Kr/Kg, b = d·Kb/Kg.
The layout of the formats: V4L2, V4L2_PIX_FMT_NV12, V4L2_PIX_FMT_YUV420 (I420) and V4L2_PIX_FMT_YUYV.

Chroma samples are repeated for the 2 or 4 pixels they belong to, as OpenCV does; their position between the pixels is
not interpolated. Rows have no padding: a driver's stride must be removed by the sender.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Array

_FRACTION_BITS = 5
"""Bits after the point: with 6, the sum of the largest luma and chroma terms of BT.709 would overflow 16 bits."""
_KR_KB = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
_VERTICAL_STEP = {"nv12": 2, "i420": 2, "yuyv": 1}
"""Rows of pixels for each row of chroma samples."""


class Planes(NamedTuple):
    """Planes of one frame: luma [height, width]; u and v have its sides, or halves of them. All uint8."""

    luma: Array
    u: Array
    v: Array


class _Terms(NamedTuple):
    """Terms of R, G and B for each value of Y, U and V, as fixed-point int16 [256]."""

    luma: Array
    red_v: Array
    green_u: Array
    green_v: Array
    blue_u: Array


def frame_bytes(form: str, height: int, width: int) -> int:
    """Return the size of a frame of an even number of rows and columns."""
    return height * width * (3 if _VERTICAL_STEP[form] == 2 else 4) // 2


def split_planes(content: bytes | memoryview, form: str, size: tuple[int, int], where: str = "the frame") -> Planes:
    """Return the planes of a frame of `size` (height, width), both even. `form` is nv12, i420 or yuyv.

    `where` names the frame in errors. Raises RequestError INVALID if `content` has another number of bytes.
    """
    height, width = size
    wanted = frame_bytes(form, height, width)
    if len(content) != wanted:
        problem = f"{where} has {len(content)} bytes, but a frame of {width} by {height} pixels in {form} has {wanted}"
        raise RequestError(Fault.INVALID, f"{problem}; send rows without padding, or correct `frame` in the manifest")
    samples = np.frombuffer(content, np.uint8)
    if form == "yuyv":
        packed = samples.reshape(height, width // 2, 4)
        return Planes(packed[:, :, ::2].reshape(height, width), packed[:, :, 1], packed[:, :, 3])
    luma, chroma = samples[: height * width].reshape(size), samples[height * width :]
    if form == "nv12":
        pairs = chroma.reshape(height // 2, width // 2, 2)
        return Planes(luma, pairs[:, :, 0], pairs[:, :, 1])
    u, v = chroma.reshape(2, height // 2, width // 2)
    return Planes(luma, u, v)


def to_rgb(planes: Planes, matrix: str = "bt601", color_range: str = "limited") -> Array:
    """Return pixels [height, width, 3] (R, G, B), uint8. `matrix` is bt601 or bt709, `color_range` limited or full."""
    terms = _terms(matrix, color_range)
    height, width = planes.luma.shape
    rows, columns = height // planes.u.shape[0], width // planes.u.shape[1]
    luma = terms.luma[planes.luma].reshape(height // rows, rows, width // columns, columns)
    pixels = np.empty((*luma.shape, 3), np.uint8)
    chroma = (
        terms.red_v[planes.v],
        terms.green_u[planes.u] + terms.green_v[planes.v],
        terms.blue_u[planes.u],
    )
    for channel, difference in enumerate(chroma):
        total = luma + difference[:, np.newaxis, :, np.newaxis]
        total >>= _FRACTION_BITS
        pixels[..., channel] = total.clip(0, 255)
    return pixels.reshape(height, width, 3)


def to_gray(planes: Planes, color_range: str = "limited") -> Array:
    """Return the luma [height, width], uint8, with its range expanded to 0..255."""
    values: Array = (_terms("bt601", color_range).luma >> _FRACTION_BITS).clip(0, 255).astype(np.uint8)
    return np.asarray(values[planes.luma])


@lru_cache(maxsize=4)  # two matrices, two ranges
def _terms(matrix: str, color_range: str) -> _Terms:
    kr, kb = _KR_KB[matrix]
    kg = 1.0 - kr - kb
    luma_scale, luma_offset, chroma_scale = (255 / 219, 16, 255 / 224) if color_range == "limited" else (1.0, 0, 1.0)
    values = np.arange(256)
    chroma = (values - 128) * chroma_scale
    red, blue = 2.0 * (1.0 - kr), 2.0 * (1.0 - kb)
    return _Terms(
        luma=_fixed((values - luma_offset) * luma_scale + 0.5),  # the half rounds the sum, which is cut off
        red_v=_fixed(chroma * red),
        green_u=_fixed(-chroma * blue * kb / kg),
        green_v=_fixed(-chroma * red * kr / kg),
        blue_u=_fixed(chroma * blue),
    )


def _fixed(values: Array) -> Array:
    return np.asarray(np.rint(values * (1 << _FRACTION_BITS)), np.int16)
