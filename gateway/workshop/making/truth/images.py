"""Truth of images: annotations are found next to them, or where the author says, and read in their form."""

from __future__ import annotations

from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest
from gateway.workshop.making.settings import CalibrationSettings
from gateway.workshop.making.truth.cells import read_cells
from gateway.workshop.making.truth.class_maps import read_class_map
from gateway.workshop.making.truth.image_set import IMAGES, FoundTruth, ImageSet, TruthForm, truth_form
from gateway.workshop.making.truth.kinds import OBJECTS, TruthKind
from gateway.workshop.making.truth.label_table import TABLES, read_label_table
from gateway.workshop.making.truth.object_files import read_object_files
from gateway.workshop.making.truth.yolo import label_file

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
