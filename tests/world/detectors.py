"""Detections of a real model, compared with those of its package's own code: `python -m tests.world.detectors`.

The model is nudenet's (YOLOv8n with 18 classes, 320 × 320), the images are photographs of scikit-image; `make
test-world` installs both. The package pads to a square on the right and below, suppresses with OpenCV across classes,
and rounds boxes down to whole pixels. Each image, its mirror image and its upper half are compared, with the scores as
they are and with their fourth root, so that many more boxes pass the threshold. Exit code 1 if a detection differs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.object_detection import ObjectDetection
from tests.simulators.daemon import ROOT
from tests.simulators.vision_models import options, vision_model

PACKAGES = ROOT / ".venv" / "world"
PHOTOGRAPHS = ("astronaut", "camera", "chelsea", "coffee", "rocket")
SIDE_PX = 320
SCORE_TOLERANCE = 1e-5
PIXEL_TOLERANCES = np.array([1.01, 1.01, 2.01, 2.01])
"""The package rounds left, top, width and height down: right and bottom are sums of two of them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One image: detections of both, and those of the package that ours do not contain, or the other way round."""

    image: str
    detections: int
    differences: list[str]


class Packaged:
    """Model, labels and postprocessing of the package nudenet."""

    def __init__(self, packages: Path) -> None:
        sys.path.insert(0, str(packages))
        self._module = importlib.import_module("nudenet.nudenet")
        self._detector = self._module.NudeDetector()
        self.labels: list[str] = getattr(self._module, "__labels")  # its name would be mangled here

    def run(self, image: Array) -> tuple[Array, tuple[Any, ...]]:
        """Return the output [1, 22, n], and the other arguments of the package's postprocessing."""
        blob, x_ratio, y_ratio, x_pad, y_pad, width, height = self._module._read_image(image, SIDE_PX)
        (output,) = self._detector.onnx_session.run(None, {"images": blob})
        return output, (x_pad, y_pad, x_ratio, y_ratio, width, height, SIDE_PX, SIDE_PX)

    def detect(self, output: Array, place: tuple[Any, ...]) -> list[tuple[str, float, Array]]:
        """Return label, score and box x1, y1, x2, y2 of each detection."""
        found = self._module._postprocess([output], *place)
        return [(each["class"], each["score"], _corners(each["box"])) for each in found]


def _corners(box: list[int]) -> Array:
    return np.array([box[0], box[1], box[0] + box[2], box[1] + box[3]], float)


def images(packages: Path) -> Iterator[tuple[str, Array]]:
    """Yield each photograph (BGR), its mirror image, and its upper half at twice the size."""
    for name in PHOTOGRAPHS:
        (file,) = (packages / "skimage" / "data").glob(f"{name}.*")
        image = cv2.imread(str(file), cv2.IMREAD_COLOR)
        yield name, image
        yield f"{name}, mirrored", np.ascontiguousarray(image[:, ::-1])
        yield f"{name}, upper half", cv2.resize(image[: len(image) // 2], None, fx=2, fy=2)


def compare(packages: Path) -> Iterator[Comparison]:
    """Yield the comparison of each image, as it is and with more detections."""
    packaged = Packaged(packages)
    model = vision_model({"output0": (4 + len(packaged.labels), -1)}, packaged.labels, (SIDE_PX, SIDE_PX))
    task = ObjectDetection(model, options("class_agnostic = true\nscore_threshold = 0.25\niou_threshold = 0.45"))
    for name, image in images(packages):
        output, place = packaged.run(image)
        many = output.copy()
        many[:, 4:] **= 0.25
        for what, values in ((name, output), (f"{name}, fourth root of scores", many)):
            height, width = image.shape[:2]
            scale = SIDE_PX / max(width, height)
            result = task.interpret({"output0": values[0]}, Frame(width, height, scale, scale)).document()
            ours = [(each["label"], each["score"], np.array(each["box"])) for each in result["detections"]]
            theirs = packaged.detect(values, place)
            yield Comparison(what, len(theirs), differences(ours, theirs, (width, height)))


def differences(ours: list[Any], theirs: list[Any], size: tuple[int, int]) -> list[str]:
    """Return what one side found and the other did not, by label, score and box."""
    missing = [f"only here: {one}" for one in ours if not any(same(one, other, size) for other in theirs)]
    return missing + [f"only there: {other}" for other in theirs if not any(same(one, other, size) for one in ours)]


def same(one: tuple[str, float, Array], other: tuple[str, float, Array], size: tuple[int, int]) -> bool:
    """Return True if both are one detection.

    A box that leaves the image on the left or above keeps its width or height in the package, so that only the other
    sides are compared.
    """
    (label, score, box), (other_label, other_score, other_box) = one, other
    compared = np.abs(box - np.minimum(other_box, [*size, *size])) <= PIXEL_TOLERANCES
    cut = box[:2] == 0
    compared[2:] |= cut
    return label == other_label and abs(score - other_score) <= SCORE_TOLERANCE and bool(compared.all())


def main() -> int:
    """Print one line per image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="folder of the installed packages")
    failed = False
    for comparison in compare(parser.parse_args().packages):
        failed |= bool(comparison.differences)
        print(f"{comparison.image}: {comparison.detections} detections, {len(comparison.differences)} differences")
        print(*(f"  {each}" for each in comparison.differences), sep="\n", end="\n" if comparison.differences else "")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
