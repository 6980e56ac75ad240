"""Annotations of COCO: one JSON file with images, categories and objects (https://cocodataset.org/#format-data)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Array
from gateway.common.store.plain import read_plain
from gateway.workshop.making.truth.kinds import TruthKind
from gateway.workshop.making.truth.placed_objects import PlacedObject
from gateway.workshop.making.truth.polygons import fill_polygons, read_counts

LISTS = ("images", "categories", "annotations")
"""Lists that a file of objects has."""


@dataclass(frozen=True, slots=True)
class CocoFile:
    """Content of a file: names of images and of categories by id, objects by the id of their image.

    `by_name` are the ids of images by the last part of their name, `used` the categories of objects, `sizes` the
    (height, width) of images as far as they are listed.
    """

    path: Path
    images: Mapping[int, str]
    categories: Mapping[int, str]
    objects: Mapping[int, Sequence[Mapping[str, Any]]]
    by_name: Mapping[str, Sequence[int]]
    used: frozenset[int]
    sizes: Mapping[int, tuple[int, int]]

    def id_of(self, image: Path) -> int | None:
        """Return the id of an image: by the end of its path if several images have its name; None if it is not listed.

        Raises ConfigurationError if several fit.
        """
        found = self.by_name.get(image.name, ())
        if len(found) > 1:
            place = image.as_posix()
            found = [number for number in found if place.endswith(f"/{self.images[number].removeprefix('./')}")]
        if len(found) > 1:
            problem = f"lists {image.name!r:.80} more than once; give each image a file_name of its own"
            raise ConfigurationError(problem, file=str(self.path))
        return found[0] if found else None


def read_coco(path: Path, limit_bytes: int) -> CocoFile | None:
    """Return the content of a JSON file, None if it has no objects of images. Raises ConfigurationError."""
    try:
        found = json.loads(read_plain(path, limit_bytes))
        if not isinstance(found, Mapping) or not all(isinstance(found.get(key), list) for key in LISTS):
            return None
        return _content(path, found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"is no COCO file: {_words(error)}; export it again, or name another one with --annotations"
        raise ConfigurationError(problem, file=str(path)) from error


def _content(path: Path, found: Mapping[str, Any]) -> CocoFile:
    images = {int(each["id"]): str(each["file_name"]) for each in found["images"]}
    categories = {int(each["id"]): str(each["name"]) for each in found["categories"]}
    objects, by_name = dict[int, list[Mapping[str, Any]]](), dict[str, list[int]]()
    for number, name in images.items():
        by_name.setdefault(PurePosixPath(name).name, []).append(number)
    for each in found["annotations"]:
        _check_reference(each, "image", int(each["image_id"]), images)
        _check_reference(each, "category", int(each["category_id"]), categories)
        objects.setdefault(int(each["image_id"]), []).append(each)
    used = frozenset(int(each["category_id"]) for each in found["annotations"])
    sized = (each for each in found["images"] if each.get("height") and each.get("width"))
    sizes = {int(each["id"]): (int(each["height"]), int(each["width"])) for each in sized}
    return CocoFile(path, images, categories, objects, by_name, used, sizes)


def _check_reference(each: Mapping[str, Any], what: str, number: int, known: Mapping[int, str]) -> None:
    if number not in known:
        raise ValueError(f"annotation {each.get('id')} has the {what} {number}, which is not listed")


def place_objects(
    found: CocoFile, image: int, kind: TruthKind, classes: Mapping[int, int], size: tuple[int, int]
) -> list[PlacedObject]:
    """Return the objects of an image of `size` (height, width); `classes` are the model's by category.

    Raises ConfigurationError with the annotation.
    """
    if found.sizes.get(image, size) == size[::-1] != size:
        problem = f"{found.images[image]!r:.80} is annotated as stored, before its EXIF orientation turns it"
        remedy = 'annotate the upright image, or declare orientation = "stored" in [input.preprocess]'
        raise ConfigurationError(f"{problem}; {remedy}", file=str(found.path))
    placed = []
    for each in found.objects.get(image, ()):
        number = classes.get(int(each["category_id"]))
        if number is None:
            continue
        try:
            placed.append(_placed(each, kind, number, size))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"annotation {each.get('id')}: {_words(error)}; correct it"
            raise ConfigurationError(problem, file=str(found.path)) from error
    return placed


def _placed(each: Mapping[str, Any], kind: TruthKind, number: int, size: tuple[int, int]) -> PlacedObject:
    x, y, width, height = map(float, each["bbox"])
    box, is_crowd = np.array([x, y, x + width, y + height]), bool(each.get("iscrowd", 0))
    area, shape = float(each.get("area") or 0.0), each.get("segmentation")
    match kind:
        case TruthKind.MASKS:
            counts = None if not shape else _mask(shape, size)
            return PlacedObject(number, box, is_crowd, counts=counts, area=area)
        case TruthKind.ORIENTED:
            corners = _polygon(shape[0]) if isinstance(shape, list) and len(shape) == 1 else np.empty((0, 2))
            return PlacedObject(number, box, is_crowd, corners=corners if len(corners) == 4 else None, area=area)
        case TruthKind.KEYPOINTS:
            points = np.array(each["keypoints"], np.float64).reshape(-1, 3) if "keypoints" in each else None
            return PlacedObject(number, box, is_crowd, points=points, area=area)
        case _:
            return PlacedObject(number, box, is_crowd, area=area)


def _mask(shape: Any, size: tuple[int, int]) -> Array:
    if isinstance(shape, Mapping):
        if tuple(map(int, shape["size"])) != size:
            raise ValueError(f"its mask has the size {list(shape['size'])}, the image {list(size)} (height, width)")
        return read_counts(shape["counts"], size)
    return fill_polygons([_polygon(each) for each in shape], size)


def _polygon(numbers: Any) -> Array:
    points = np.array(numbers, np.float64).reshape(-1, 2)
    if len(points) < 3 or not np.isfinite(points).all():
        raise ValueError("a polygon needs three points or more")
    return points


def _words(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
