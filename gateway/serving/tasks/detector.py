"""Part that all tasks with boxes share: head, bounds and coordinates of one model, from outputs to candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Tensors
from gateway.serving.tasks.candidates import BoxCandidates, OverlapMeasure, box_overlaps
from gateway.serving.tasks.detection_limits import DetectionLimits, read_limits
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.image_input import ImageInput, image_input

COORDINATES = ("pixels", "normalised")


class DetectionHead(Protocol):
    """Outputs of a row to candidates. `suppressed`: the model leaves no duplicates of a box."""

    @property
    def suppressed(self) -> bool: ...

    @property
    def coordinates(self) -> str: ...

    def decode(self, outputs: Tensors, limits: DetectionLimits) -> BoxCandidates:
        """Return the candidates of one row, best first, in the head's coordinates."""


@dataclass(frozen=True, slots=True)
class Detector:
    """Detection by one model. `normalised`: the head's coordinates are in 0..1 of the input."""

    labels: Sequence[str]
    image: ImageInput
    limits: DetectionLimits
    head: DetectionHead
    normalised: bool
    measure: OverlapMeasure

    def detect(self, outputs: Tensors, frame: Frame | None) -> BoxCandidates:
        """Return the detections of one row in pixels of the input, at most `max_detections`.

        Raises RequestError UNSUPPORTED for outputs that are not as declared, and as `ImageInput.pixels`.
        """
        with np.errstate(invalid="ignore", over="ignore"):  # such values never become detections
            found = self.head.decode(outputs, self.limits).accepted(self.limits)
        if self.normalised:
            found = found.in_pixels(self.image, frame)
        if self.head.suppressed:
            return found.select(np.arange(min(len(found.boxes), self.limits.max_detections)))
        return found.suppressed(self.limits, self.measure)


def read_detector(
    manifest: ModelManifest,
    options: Table,
    read_head: Callable[[ModelManifest, Table], DetectionHead],
    measure: OverlapMeasure = box_overlaps,
) -> Detector:
    """Take the options that all tasks with boxes have. Raises ConfigurationError (table, key)."""
    limits, head = read_limits(options, manifest.labels), read_head(manifest, options)
    coordinates = options.text("coordinates", head.coordinates, among=COORDINATES)
    return Detector(manifest.labels, image_input(manifest), limits, head, coordinates == "normalised", measure)
