"""Truth of images that is objects: files of COCO, or a file of YOLO for each image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.making.metrics.average_precision import Objects
from gateway.workshop.making.truth.coco import CocoFile, place_objects, read_coco
from gateway.workshop.making.truth.image_set import FoundTruth, ImageSet, TruthForm
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
