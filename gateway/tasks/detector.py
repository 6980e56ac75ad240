"""Part that all tasks with boxes share: head, bounds and coordinates of one model, from outputs to candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gateway.domain.document import Table
from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Tensors
from gateway.tasks.candidates import BoxCandidates
from gateway.tasks.detection_limits import DetectionLimits, read_limits
from gateway.tasks.frame import Frame
from gateway.tasks.image_input import ImageInput, image_input

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
    """Detection by one model. `normalised`: coordinates are in 0..1 of the input."""

    labels: Sequence[str]
    image: ImageInput
    limits: DetectionLimits
    head: DetectionHead
    normalised: bool

    def detect(self, outputs: Tensors) -> BoxCandidates:
        """Return the detections of one row in the head's coordinates, at most `max_detections`."""
        with np.errstate(invalid="ignore", over="ignore"):  # such values never become detections
            candidates = self.head.decode(outputs, self.limits).accepted(self.limits)
        if self.head.suppressed:
            return candidates.select(np.arange(min(len(candidates.boxes), self.limits.max_detections)))
        return candidates.suppressed(self.limits)

    def detect_in_pixels(self, outputs: Tensors, frame: Frame | None) -> BoxCandidates:
        """Return the detections of one row in pixels of the input. Raises as `ImageInput.pixels`."""
        found = self.detect(outputs)
        return found.in_pixels(self.image, frame) if self.normalised else found


def read_detector(
    manifest: ModelManifest, options: Table, read_head: Callable[[ModelManifest, Table], DetectionHead]
) -> Detector:
    """Take the options that all tasks with boxes have. Raises ConfigurationError (table, key)."""
    limits, head = read_limits(options, manifest.labels), read_head(manifest, options)
    coordinates = options.text("coordinates", head.coordinates, among=COORDINATES)
    return Detector(manifest.labels, image_input(manifest), limits, head, coordinates == "normalised")
