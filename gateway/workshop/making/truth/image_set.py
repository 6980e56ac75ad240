"""Images whose truth is looked for, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.common.domain.manifest import ModelManifest
from gateway.workshop.making.settings import CalibrationSettings
from gateway.workshop.making.truth.kinds import TruthKind, truth_kind

IMAGES = "images"
"""Name of a folder of images that has folders of annotations next to it."""


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images that were read, with their sizes (height, width); `every` are all images of `data`.

    `annotations` is the file or folder that the author names (None: next to the images).
    """

    paths: Sequence[Path]
    sizes: Sequence[tuple[int, int]]
    every: Sequence[Path]
    data: Path
    annotations: Path | None = None

    def named(self, suffixes: Sequence[str]) -> list[Path]:
        """Return the file that the author names, if it has one of these suffixes."""
        path = self.annotations
        return [path] if path is not None and path.suffix.lower() in suffixes else []

    def folders(self) -> list[Path]:
        """Return the folders where files of annotations may be: of the data, above `images`, `annotations` in them."""
        root = self.data if self.data.is_dir() else self.data.parent
        roots = [root, root.parent] if root.name == IMAGES else [root]
        own = list(dict.fromkeys(path.parent for path in self.every))
        return list(dict.fromkeys([*roots, *(each / "annotations" for each in roots), *own]))


@dataclass(frozen=True, slots=True)
class TruthForm:
    """Form of a model's truth: its kind, labels, number of key points, the limits of files, orientation of images."""

    kind: TruthKind
    labels: tuple[str, ...]
    points: int
    settings: CalibrationSettings
    orientation: str = ""


@dataclass(slots=True)
class FoundTruth:
    """Truth of each image (None: not known), or None without annotations; what else is to be told."""

    items: list[Any] | None = None
    remarks: list[str] = field(default_factory=list)

    def tell_absent(self, names: Sequence[str], file: Path) -> None:
        """Add a remark on images that the annotations name and the data do not have."""
        if names:
            remark = f"{file.name} has {len(names)} images that are not in the data, such as {names[0]!r:.80}"
            self.remarks.append(f"{remark}: they are not used")

    def tell_unknown(self, images: Sequence[Path], place: Path) -> None:
        """Add a remark on images without an annotation."""
        if images:
            remark = f"{len(images)} images have no annotation in {place}, such as {images[0].name!r:.80}"
            self.remarks.append(f"{remark}: accuracy is not measured on them")


def truth_form(manifest: ModelManifest, settings: CalibrationSettings) -> TruthForm:
    """Return the form of a model's truth."""
    points = len((manifest.task_options or {}).get("keypoints", ()))
    return TruthForm(truth_kind(manifest), manifest.labels, points, settings, manifest.orientation)
