"""Views of an image: parts of it, in its own pixels. Nothing is copied before a model needs the part. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateway.common.domain.tensor import Array

FAR = 1e9
"""Place outside of any image."""
TOO_MANY = "the image has more than {} tiles; make them larger"


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Part of a decoded `image` (Pillow, RGB, upright): the box, in pixels of the whole image.

    `corners` [4, 2]: the part is what lies between them, clockwise from the top left of what they show, made a
    rectangle. `box` is in the pixels of that rectangle then, which begins at 0, 0, or of the one that it is a part of.
    """

    image: Any
    box: tuple[float, float, float, float]
    corners: Array | None = None

    @property
    def size(self) -> tuple[float, float]:
        """Return width and height."""
        left, top, right, bottom = self.box
        return right - left, bottom - top

    @property
    def origin(self) -> tuple[float, float]:
        """Return the place of the part's top left corner in the image, or in the rectangle between corners."""
        return self.box[:2]

    @property
    def limits(self) -> tuple[float, float, float, float]:
        """Return the box in which parts of it may lie: the whole image, or what is between its corners."""
        if self.corners is not None:
            return self.box
        return (0.0, 0.0, float(self.image.width), float(self.image.height))


def whole(image: Any) -> View:
    """Return the view of all of an image."""
    return View(image, (0.0, 0.0, float(image.width), float(image.height)))


def crop(view: View, box: Array, factor: float = 1.0) -> View:
    """Return the part in a box (x1, y1, x2, y2) that is `factor` times as wide and high, inside of the image.

    It has whole pixels. At least one pixel remains, the nearest one for a box outside of the image or without a size. A
    place that is no number counts as 0. Boxes in a part between corners are in the pixels of that part.
    """
    left, top, right, bottom = view.limits
    x1, y1, x2, y2 = (min(FAR, max(-FAR, float(value))) if math.isfinite(value) else 0.0 for value in box)
    sides = list[float]()
    for low, high, least, most in ((x1, x2, left, right), (y1, y2, top, bottom)):
        middle, half = (low + high) / 2, abs(high - low) / 2 * factor
        begin, end = max(least, float(math.floor(middle - half))), min(most, float(math.ceil(middle + half)))
        if end - begin < 1.0:
            begin = max(least, min(begin, most - 1.0))
            end = begin + 1.0
        sides += [begin, end]
    return _part(view, (sides[0], sides[2], sides[1], sides[3]))


def warp(view: View, corners: Array) -> View:
    """Return what lies between four corners [4, 2] (x, y), which are in order around it.

    The first side is the one that is on top in the image.
    """
    limits = view.limits
    places = np.clip(np.nan_to_num(np.asarray(corners, np.float64)), limits[:2], limits[2:])
    following = np.roll(places, -1, axis=0)
    if np.sum(places[:, 0] * following[:, 1] - places[:, 1] * following[:, 0]) < 0:  # anticlockwise
        places = places[::-1]
    across, heights = (np.roll(places, -1, axis=0) - places).T[0], places[:, 1] + np.roll(places, -1, axis=0)[:, 1]
    leans = np.abs(np.roll(places, -1, axis=0) - places)
    tops = np.where((leans[:, 0] >= leans[:, 1]) & (across > 0), heights, np.inf)
    return _between(view, _in_image(view, np.roll(places, -int(np.argmin(tops)), axis=0)))


def align(view: View, points: Array, template: Array, size: tuple[int, int]) -> View:
    """Return the part of `size` (width, height) in which key points [n, 2] are as near as possible to a template's.

    The image is moved, turned and scaled, not mirrored: the sum of the squared distances is the least (Umeyama, 1991).
    Whole numbers are centres of pixels, as in OpenCV. Outside of the image, the part is black. A point that is no
    number counts as 0. Points that leave the scale open, as all in one place do, are moved only.
    """
    # The centre of the first pixel is at 0 for key points and the template, and at 0.5 in a view.
    known = _in_image(view, np.clip(np.nan_to_num(np.asarray(points, np.float64)), -FAR, FAR) + 0.5)
    plane = np.array([1, 1j])
    found, wanted = known @ plane, template @ plane
    apart = wanted - wanted.mean()
    with np.errstate(all="ignore"):
        ratio = 1.0 / (np.vdot(found - found.mean(), apart) / np.sum(np.abs(found - found.mean()) ** 2))
    if not abs(ratio) <= FAR:
        ratio = 1.0 + 0j
    right, bottom = size[0] - 0.5, size[1] - 0.5
    corners = np.array([-0.5 - 0.5j, right - 0.5j, right + bottom * 1j, -0.5 + bottom * 1j]) - wanted.mean()
    corners = found.mean() + ratio * corners
    box = (0.0, 0.0, float(size[0]), float(size[1]))
    return replace(view, box=box, corners=np.stack((corners.real, corners.imag), axis=1))


def turn(view: View, degrees: float) -> View:
    """Return a part turned clockwise by the nearest multiple of 90 degrees."""
    quarters = round(degrees / 90.0) % 4 if math.isfinite(degrees) else 0
    if not quarters:
        return view
    left, top, right, bottom = view.box
    own = np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)
    return _between(view, np.roll(_in_image(view, own), quarters, axis=0))


def _between(view: View, places: Array) -> View:
    """Return what lies between corners: top left, top right, bottom right, bottom left of it."""
    across = max(1.0, *(float(np.linalg.norm(places[b] - places[a])) for a, b in ((0, 1), (3, 2))))
    down = max(1.0, *(float(np.linalg.norm(places[b] - places[a])) for a, b in ((1, 2), (0, 3))))
    return replace(view, box=(0.0, 0.0, across, down), corners=places)


def tiles(view: View, size: tuple[int, int], overlap: float, most: int) -> list[View]:
    """Return the tiles of `size` (height, width) that cover a view, row by row; those at the ends are moved inwards.

    Neighbours share `overlap` of a side at least. A view that is smaller than a tile is one tile. Raises ValueError for
    more than `most` tiles.
    """
    left, top, right, bottom = view.box
    down, across = (
        _starts(begin, end, side, overlap, most)
        for begin, end, side in ((top, bottom, size[0]), (left, right, size[1]))
    )
    if len(down) * len(across) > most:
        raise ValueError(TOO_MANY.format(most))
    return [_part(view, (x, y, min(x + size[1], right), min(y + size[0], bottom))) for y in down for x in across]


def _starts(begin: float, end: float, side: int, overlap: float, most: int) -> list[float]:
    length = end - begin
    if length <= side:
        return [begin]
    count = math.ceil((length - side) / max(1.0, side * (1 - overlap))) + 1
    if count > most:
        raise ValueError(TOO_MANY.format(most))
    return [begin + math.floor((length - side) * place / (count - 1)) for place in range(count)]


def _part(view: View, box: tuple[float, float, float, float]) -> View:
    """Return the part of a view in a box."""
    if view.corners is None:
        return View(view.image, box)
    left, top, right, bottom = box
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    return View(view.image, box, _in_image(view, corners))


def _in_image(view: View, places: Array) -> Array:
    """Return places [n, 2] in a view as places in the whole image."""
    if view.corners is None:
        return places
    x, y = ((places - view.origin) / view.size).T[..., np.newaxis]
    top_left, top_right, bottom_right, bottom_left = view.corners
    inner: Array = (1 - y) * ((1 - x) * top_left + x * top_right) + y * ((1 - x) * bottom_left + x * bottom_right)
    return inner
