"""Truth of images: annotations are found next to them, or where the author says, and read in their form."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Array
from gateway.common.store.plain import read_plain
from gateway.serving.engine.orientation import orientation_of, upright
from gateway.serving.engine.settings import EngineSettings
from gateway.workshop.making.metrics.average_precision import Objects
from gateway.workshop.making.metrics.class_iou import NO_CLASS, NOT_JUDGED, ClassRuns
from gateway.workshop.making.settings import CalibrationSettings
from gateway.workshop.making.truth.cells import read_cells
from gateway.workshop.making.truth.coco import CocoFile, place_objects, read_coco
from gateway.workshop.making.truth.image_set import IMAGES, FoundTruth, ImageSet, TruthForm, truth_form
from gateway.workshop.making.truth.kinds import OBJECTS, TruthKind
from gateway.workshop.making.truth.label_table import TABLES, read_label_table
from gateway.workshop.making.truth.placed_objects import PlacedObject, as_objects
from gateway.workshop.making.truth.yolo import label_file, read_yolo


def read_object_files(images: ImageSet, form: TruthForm) -> FoundTruth:
    """Return the objects of each image. Raises ConfigurationError with the file and what to do."""
    found = FoundTruth()
    names, listing = {image.name for image in images.every}, list[CocoFile]()
    for path in images.named((".json",)) or _json_files(images, form):
        coco = read_coco(path, form.settings.annotations_bytes)
        if coco is not None and names & coco.by_name.keys():
            listing.append(coco)
        else:
            found.remarks.append(f"{path} lists none of the images as COCO does: it is not used")
    files = listing
    if files:
        _read_coco(files, images, form, found)
    elif images.annotations is None or images.annotations.is_dir():
        _read_yolo(images, form, found)
    return found


def _json_files(images: ImageSet, form: TruthForm) -> list[Path]:
    """Return the JSON files next to the images. Raises ConfigurationError if there are too many."""
    folders, limit = [] if images.annotations else images.folders(), form.settings.annotation_files
    found = [path for folder in folders[:limit] for path in sorted(folder.glob("*.json")) if path.is_file()]
    if len(found) > limit:
        problem = f"has more than {limit} .json files next to the images; name one with --annotations"
        raise ConfigurationError(problem, file=str(images.data))
    return found


def _read_coco(files: Sequence[CocoFile], images: ImageSet, form: TruthForm, found: FoundTruth) -> None:
    names = {image.name for image in images.every}
    classes = [_coco_classes(coco, form, found) for coco in files]
    for coco in files:
        found.tell_absent([name for name in coco.images.values() if PurePosixPath(name).name not in names], coco.path)
    found.items, unknown = [], []
    for image, size in zip(images.paths, images.sizes, strict=True):
        place = _listing(files, image)
        if place is None:
            found.items.append(None)
            unknown.append(image)
            continue
        coco, number = files[place[0]], place[1]
        objects = place_objects(coco, number, form.kind, classes[place[0]], size)
        found.items.append(_objects(objects, size, form, coco.path))
    found.tell_unknown(unknown, files[0].path if len(files) == 1 else files[0].path.parent)


def _listing(files: Sequence[CocoFile], image: Path) -> tuple[int, int] | None:
    """Return the place of the file that lists an image, and its id there. Raises ConfigurationError if several do."""
    numbers = [(place, number) for place, coco in enumerate(files) if (number := coco.id_of(image)) is not None]
    if len(numbers) > 1:
        listed = " and ".join(files[place].path.name for place, _ in numbers[:3])
        problem = f"{listed} both list {image.name!r:.80}; name one of them with --annotations"
        raise ConfigurationError(problem, file=str(files[numbers[0][0]].path.parent))
    return numbers[0] if numbers else None


def _coco_classes(coco: CocoFile, form: TruthForm, found: FoundTruth) -> dict[int, int]:
    """Return the model's class of each category: by its name or, without labels, in the order of ids."""
    if not form.labels:
        remark = (
            f"the model has no labels: its classes are the categories of {coco.path.name} in the order of their ids"
        )
        found.remarks.append(remark)
        return {number: place for place, number in enumerate(sorted(coco.categories))}
    classes = {number: form.labels.index(name) for number, name in coco.categories.items() if name in form.labels}
    unknown = sorted({coco.categories[number] for number in coco.used if number not in classes})
    if unknown and not coco.used & classes.keys():
        problem = f"its categories ({_some(unknown)}) are none of the model's labels ({_some(form.labels)})"
        raise ConfigurationError(f"{problem}; rename them, or correct labels", file=str(coco.path))
    if unknown:
        found.remarks.append(
            f"{coco.path.name} has objects of categories that are no labels of the model ({_some(unknown)}): they are "
            "left out; rename them if the model finds them"
        )
    return classes


def _read_yolo(images: ImageSet, form: TruthForm, found: FoundTruth) -> None:
    folder = images.annotations
    files = [label_file(image) if folder is None else folder / f"{image.stem}.txt" for image in images.paths]
    if not any(file.is_file() for file in files):
        return
    found.items, missing = [], 0
    for file, size in zip(files, images.sizes, strict=True):
        is_there = file.is_file()
        missing += not is_there
        found.items.append(_objects(read_yolo(file, form, size) if is_there else [], size, form, file))
    if missing:
        remark = f"{missing} images have no .txt file in {files[0].parent}: they count as images without objects"
        found.remarks.append(remark)


def _objects(placed: Sequence[PlacedObject], size: tuple[int, int], form: TruthForm, file: Path) -> Objects:
    try:
        return as_objects(form.kind, placed, size, form.points)
    except ValueError as error:
        raise ConfigurationError(f"{error}", file=str(file)) from error


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


MASKS = "masks"
"""Folder of masks next to `images`, or in the folder of the images."""


def read_image_truth(images: ImageSet, manifest: ModelManifest, settings: CalibrationSettings) -> FoundTruth:
    """Return the truth of images. Raises ConfigurationError with the file and what to do."""
    form = truth_form(manifest, settings)
    if images.annotations is not None and not images.annotations.exists():
        raise ConfigurationError("does not exist; name the annotations, or leave it out", file=str(images.annotations))
    if form.kind in OBJECTS:
        found = read_object_files(images, form)
    elif form.kind is TruthKind.CLASS_MAPS:
        found = _read_class_maps(images, form)
    else:
        found = _read_table(images, manifest, form)
    if images.annotations is not None and found.items is None:
        problem = f"has no {form.kind.value or 'truth'} of these images in a known form (docs/pages/howto/own-model.md)"
        raise ConfigurationError(problem, file=str(images.annotations))
    return found


def _read_table(images: ImageSet, manifest: ModelManifest, form: TruthForm) -> FoundTruth:
    """Return what a row of `labels.csv` says of each image."""
    tables = [] if images.annotations else [folder / name for folder in images.folders() for name in TABLES]
    file = next((path for path in images.named((".csv", ".tsv")) or tables if path.is_file()), None)
    if file is None or form.kind is TruthKind.NONE:
        return FoundTruth()
    table, found = read_label_table(file, manifest, form.settings.annotations_bytes), FoundTruth()
    found.tell_absent(table.absent(images.every), file)
    cells = [table.cells(image) for image in images.paths]
    known = [each for each in cells if each is not None]
    unknown = [image for image, each in zip(images.paths, cells, strict=True) if each is None]
    if not known or (unknown and form.kind is TruthKind.CLASSES):
        problem = f"has no row for {unknown[0].name!r:.80} and {len(unknown) - 1} others; write one for each image"
        raise ConfigurationError(problem, file=str(table.path))
    found.tell_unknown(unknown, table.path)
    try:
        read = [each[0] for each in known] if form.kind is TruthKind.CLASSES else read_cells(form.kind, known)
    except ValueError as error:
        raise ConfigurationError(f"{error}", file=str(table.path)) from error
    items = iter(read)
    found.items = [None if each is None else next(items) for each in cells]
    return found


def _read_class_maps(images: ImageSet, form: TruthForm) -> FoundTruth:
    """Return the classes of the pixels of each image."""
    found, files = FoundTruth(), [_mask_file(image, images.annotations) for image in images.paths]
    missing = [image for image, file in zip(images.paths, files, strict=True) if not file.is_file()]
    if len(missing) == len(files):
        return found
    found.tell_unknown(missing, files[0].parent)
    found.items = [
        read_class_map(file, len(form.labels), size, form.orientation) if file.is_file() else None
        for file, size in zip(files, images.sizes, strict=True)
    ]
    return found


def _mask_file(image: Path, folder: Path | None) -> Path:
    if folder is not None:
        return folder / f"{image.stem}.png"
    if IMAGES in image.parts[:-1]:
        return label_file(image, MASKS, ".png")
    return image.parent / MASKS / f"{image.stem}.png"


VOID = 255
"""Number of pixels that are not judged, as in PASCAL VOC and Cityscapes."""
_MODES = frozenset({"1", "L", "P", "I", "I;16"})


def read_class_map(file: Path, classes: int, size: tuple[int, int], orientation: str) -> ClassRuns:
    """Return the classes of an image of `size` (height, width) that is read in an `orientation`, as the mask is.

    `classes` is the model's number of them (0: not known). For one class, 0 is none, and every other number is it.
    Raises ConfigurationError.
    """
    try:
        numbers = _numbers(read_plain(file, EngineSettings().image_bytes), size, orientation)
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigurationError(f"is no mask of classes: {error}", file=str(file)) from error
    return ClassRuns.of(_judged(numbers, classes, file))


def _numbers(content: bytes, size: tuple[int, int], orientation: str) -> Array:
    """Return the numbers of the pixels. Raises ValueError, OSError, SyntaxError."""
    from PIL import Image

    image: Image.Image = Image.open(io.BytesIO(content), formats=("PNG",))
    image.load()  # EXIF data may follow the pixels
    if orientation == "upright":
        image = upright(image, orientation_of(image))
    if image.size != size[::-1]:
        raise ValueError(f"it has {image.size[0]} x {image.size[1]} pixels, its image {size[1]} x {size[0]}")
    if image.mode not in _MODES:
        problem = f"its pixels are colours ({image.mode}), not numbers of classes"
        raise ValueError(f"{problem}; write a PNG of one channel, or with a palette")
    return np.asarray(image).astype(np.int64)


def _judged(numbers: Array, classes: int, file: Path) -> Array:
    if classes == 1:
        return np.where(numbers > 0, 0, NO_CLASS)
    largest = int(numbers[numbers != VOID].max(initial=0))
    if classes and largest >= classes:
        problem = f"has the class {largest}, but the model has {classes} (255 is not judged); number them as its labels"
        raise ConfigurationError(problem, file=str(file))
    return np.where(numbers == VOID, NOT_JUDGED, numbers)
