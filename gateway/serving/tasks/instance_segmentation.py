"""Instance segmentation: boxes with label, score and a mask in the original image.

Formula (YOLACT, arXiv:1904.02689, as in YOLOv5-seg 7.0 and YOLOv8-seg, Ultralytics 8.3): the mask of a detection is
sigmoid(Σ coefficient · prototype) > `mask_threshold`. The logits are interpolated at the pixels of the original image
and cut to the box, which is `process_mask_native` of Ultralytics. Boxes, scores and suppression are those of
`object-detection`, with the same options; the heads are `yolov5` [n, 5 + c + e], `yolov8` [4 + c + e, n] and
`end-to-end` [n, 6 + e], e coefficients (mostly 32).

Expected of the model: two outputs, one with the boxes and coefficients, one with the prototypes [e, h, w] or [h, w, e]
of a row, which cover the whole input. Without a `layout` of that output, the smaller of its outer dimensions is e.

| option | type, default | meaning |
| --- | --- | --- |
| `mask_threshold` | 0.01 to 0.99, 0.5 | probability from which on a pixel belongs to the mask |
| `max_mask_pixels` | 1024 to 268,435,456; 8,388,608 | most pixels of all boxes together |
| `head`, `coordinates`, thresholds, bounds | | as for `object-detection` |

If the boxes hold more than `max_mask_pixels`, all masks of the image are made in a coarser grid, which covers the
image too: `size` tells it.

Document: `{"detections": [{"label", "class", "score", "box", "mask": {"size": [height, width], "counts": [...]}}]}`.
Masks are uncompressed run lengths of COCO, column by column (`serving.tasks.run_lengths`). Tensors: `mask_counts` holds
the counts of all masks; those of mask i are `mask_counts[mask_offsets[i] : mask_offsets[i + 1]]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.tasks.candidates import placed
from gateway.serving.tasks.detections import DETECTION_TENSORS, DetectionResult
from gateway.serving.tasks.detector import DetectionHead, read_detector
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.mask_grid import MaskGrid, exceeds, mask_grid, read_mask_pixels
from gateway.serving.tasks.row_arrays import row_array, row_shape, unfit
from gateway.serving.tasks.run_lengths import encode_region
from gateway.serving.tasks.single_output_heads import single_output_head

HEADS = ("yolov5", "yolov8", "end-to-end")
MASK_PIXELS = 8_388_608
CHANNEL_DIMENSIONS: Mapping[str, int] = {"NCHW": 0, "NHWC": 2}
"""Dimension of the prototypes in one row, by the layout that the manifest declares."""
PROTOTYPE_STRIDE_PX = 4
"""Pixels of the input per prototype pixel, for an input of open size: that of YOLOv5-seg and YOLOv8-seg."""


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """Detections of one row with their masks: counts of each, in a mask of `size` (height, width)."""

    detections: DetectionResult
    size: tuple[int, int]
    counts: Sequence[Array]

    def document(self) -> dict[str, Any]:
        """Return the detections with their masks."""
        pairs = zip(self.detections.entries(), self.counts, strict=True)
        size = list(self.size)
        return {"detections": [{**entry, "mask": {"size": size, "counts": each.tolist()}} for entry, each in pairs]}

    def tensors(self) -> dict[str, Array]:
        """Return the arrays of `InstanceSegmentation.results`."""
        lengths = [len(each) for each in self.counts]
        return {
            **self.detections.tensors(),
            "mask_size": np.array(self.size, np.int32),
            "mask_counts": np.concatenate((*self.counts, np.empty(0, np.int64))).astype(np.int32),
            "mask_offsets": np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        }


class InstanceSegmentation:
    """Task of detectors with coefficients and prototypes of masks."""

    results = (
        *DETECTION_TENSORS,
        TensorSpec("mask_size", Datatype.INT32, (2,)),
        TensorSpec("mask_counts", Datatype.INT32, (-1,)),
        TensorSpec("mask_offsets", Datatype.INT32, (-1,)),
    )
    """Detections of a row, best first, and the run lengths of their masks."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._prototypes = prototype_output(manifest, options)
        self._detector = read_detector(manifest, options, self._read_head)
        probability = options.number("mask_threshold", 0.5, low=0.01, high=0.99)
        self._least_logit = math.log(probability / (1 - probability))
        self._most_pixels = read_mask_pixels(options, MASK_PIXELS)
        options.finish()

    def interpret(self, outputs: Tensors, frame: Frame | None) -> InstanceResult:
        """Return the detections of one row with their masks, best first."""
        prototypes = self._prototypes.values(outputs)
        _, height, width = prototypes.shape
        size = self._detector.image.size_in(frame) or (width * PROTOTYPE_STRIDE_PX, height * PROTOTYPE_STRIDE_PX)
        frame = frame or Frame(round(size[0]), round(size[1]))
        found = placed(self._detector.detect(outputs, frame), frame)
        # The grid of the masks has the original's pixels, or fewer if the boxes hold too many of them.
        pixels = float(np.prod(found.boxes[:, 2:] - found.boxes[:, :2], axis=1).sum())
        grid = mask_grid(frame, size, min(1.0, self._most_pixels / max(pixels, 1.0)))
        counts = [
            self._counts(box, values, prototypes, grid) for box, values in zip(found.boxes, found.extras, strict=True)
        ]
        return InstanceResult(DetectionResult(self._detector.labels, found), (grid.height, grid.width), counts)

    def _read_head(self, manifest: ModelManifest, options: Table) -> DetectionHead:
        head = options.text("head", among=HEADS) if "head" in options else ""
        output = next(spec for spec in manifest.outputs if spec.name != self._prototypes.name)
        return single_output_head(output, manifest, options, head=head, among=HEADS, extras=self._prototypes.count)

    def _counts(self, box: Array, coefficients: Array, prototypes: Array, grid: MaskGrid) -> Array:
        """Return the run lengths of the mask of one box, whose pixels have their centre inside the box."""
        scales = [grid.width / grid.frame.width, grid.height / grid.frame.height] * 2
        left, top, right, bottom = np.ceil(box * scales - 0.5).astype(int).tolist()
        columns = grid.column_places(left, right, prototypes.shape[2])
        rows = grid.row_places(top, bottom, prototypes.shape[1])
        region = _region(coefficients.astype(prototypes.dtype), prototypes, rows, columns, self._least_logit)
        return encode_region(region, left, top, (grid.height, grid.width))


def _region(coefficients: Array, prototypes: Array, rows: Array, columns: Array, least: float) -> Array:
    """Return where a mask's logits at `rows` and `columns` exceed `least`, from the prototypes' part that they need."""
    if not len(rows) or not len(columns):
        return np.empty((len(rows), len(columns)), bool)
    (top, bottom), (left, right) = _needed(rows, prototypes.shape[1]), _needed(columns, prototypes.shape[2])
    part = prototypes[:, top:bottom, left:right]
    with np.errstate(invalid="ignore", over="ignore"):  # NaN is not in the mask
        logits = (coefficients @ part.reshape(len(part), -1)).reshape(part.shape[1:])
        return exceeds(logits, rows - top, columns - left, least)


def _needed(places: Array, count: int) -> tuple[int, int]:
    """Return the range of pixels that interpolation at ascending places reads."""
    first = min(max(math.floor(places[0]), 0), count - 1)
    return first, min(max(math.floor(places[-1]) + 2, first + 1), count)


@dataclass(frozen=True, slots=True)
class PrototypeOutput:
    """Output with `count` prototypes per row, in its first dimension or in its last one."""

    name: str
    count: int
    channels_last: bool

    def values(self, outputs: Tensors) -> Array:
        """Return the prototypes [count, h, w]. Raises RequestError UNSUPPORTED for an output of another shape."""
        array = row_array(outputs, self.name, 3)
        array = array.transpose(2, 0, 1) if self.channels_last else array
        if len(array) != self.count or 0 in array.shape:
            raise unfit(self.name, array.shape, f"{self.count} prototypes of masks")
        return array


def prototype_output(manifest: ModelManifest, options: Table) -> PrototypeOutput:
    """Return the only output of three dimensions per row. Raises ConfigurationError if it is not known."""
    shapes = {spec.name: row_shape(spec, manifest, 3) for spec in manifest.outputs}
    found = [name for name, shape in shapes.items() if len(shape) == 3]
    if len(manifest.outputs) != 2 or len(found) != 1:
        options.refuse(
            "kind",
            "needs a model with two outputs: boxes with coefficients [rows, …, …], and prototypes of four dimensions",
        )
    spec = next(each for each in manifest.outputs if each.name == found[0])
    shape = shapes[spec.name]
    known = [size for size in (shape[0], shape[2]) if size != ROWS]
    if spec.layout in CHANNEL_DIMENSIONS:
        known = [shape[CHANNEL_DIMENSIONS[spec.layout]]]
    if not known or ROWS in known:
        options.refuse(
            "kind", f"output '{spec.name}' of shape {list(shape)} per row does not tell the number of prototypes"
        )
    last = spec.layout == "NHWC" or (spec.layout != "NCHW" and shape[0] != min(known))
    return PrototypeOutput(spec.name, min(known), channels_last=last)
