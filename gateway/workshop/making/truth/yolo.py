"""Annotations of YOLO: a text file for each image, with a line for each object (docs.ultralytics.com/datasets).

A line has the number of the class, and shares 0..1 of the image's width and height: centre and size of a box; corners
of a polygon; or a box and points with x, y and, if the model has three values, visibility.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Array
from gateway.common.store.plain import read_plain
from gateway.serving.tasks.boxes import from_centres
from gateway.workshop.making.truth.image_set import IMAGES, TruthForm
from gateway.workshop.making.truth.kinds import TruthKind
from gateway.workshop.making.truth.placed_objects import PlacedObject, bounds
from gateway.workshop.making.truth.polygons import fill_polygons

LABELS = "labels"
"""Folder of annotations next to `images`."""
BOX_VALUES, CORNERS = 4, 4


def label_file(image: Path, folder: str = LABELS, suffix: str = ".txt") -> Path:
    """Return the file of an image's annotations: in `folder` next to the last `images`, else next to the image."""
    parts = list(image.parts)
    places = [place for place, part in enumerate(parts[:-1]) if part == IMAGES]
    if places:
        parts[places[-1]] = folder
    return Path(*parts).with_suffix(suffix)


def read_yolo(file: Path, form: TruthForm, size: tuple[int, int]) -> list[PlacedObject]:
    """Return the objects of an image of `size` (height, width). Raises ConfigurationError with the line."""
    try:
        text = read_plain(file, form.settings.label_file_bytes).decode("utf-8-sig", "replace")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=str(file)) from error
    placed = []
    for line, words in enumerate(map(str.split, text.splitlines()), 1):
        try:
            placed += [_placed(words, form, size)] if words else []
        except ValueError as error:
            raise ConfigurationError(str(error), file=str(file), line=line) from error
    return placed


def _placed(words: Sequence[str], form: TruthForm, size: tuple[int, int]) -> PlacedObject:
    numbers = np.array([float(word) for word in words])
    if not np.isfinite(numbers).all():
        raise ValueError("a value is not finite; correct it")
    number, values, known = int(numbers[0]), numbers[1:], len(form.labels)
    if number != numbers[0] or number < 0 or (known and number >= known):
        raise ValueError(f"class {words[0]:.20} is none of the model's {known}; correct it, or the model's labels")
    pixels = np.array([size[1], size[0]], np.float64)
    if form.kind is TruthKind.KEYPOINTS:
        points = form.points
        each = next((count for count in (3, 2) if len(values) == BOX_VALUES + count * points), 0)
        if not each:
            raise ValueError(f"{len(values)} values after the class are no box and {points} points of 2 or 3 values")
        found = values[BOX_VALUES:].reshape(points, each)
        is_visible = found[:, 2:] > 0 if each == 3 else (found > 0).any(axis=1, keepdims=True)
        places = np.concatenate((found[:, :2] * pixels, is_visible), axis=1)
        return PlacedObject(number, _box(values[:BOX_VALUES], pixels), points=places)
    if len(values) == BOX_VALUES:
        return PlacedObject(number, _box(values, pixels))
    if len(values) < 6 or len(values) % 2:
        raise ValueError(f"{len(values)} values after the class are neither a box (4) nor a polygon (6 or more)")
    polygon = values.reshape(-1, 2) * pixels
    corners = polygon if len(polygon) == CORNERS else None
    counts = fill_polygons([polygon], size) if form.kind is TruthKind.MASKS else None
    return PlacedObject(number, bounds(polygon), corners=corners, counts=counts)


def _box(values: Array, pixels: Array) -> Array:
    return np.asarray(from_centres(values[np.newaxis] * np.tile(pixels, 2))[0])
