"""Semantic segmentation: one class for each pixel of the original image, the share of each class, and its mask.

Formula: class = argmax over the logits (or probabilities) of a pixel. With `resize = "nearest"` the argmax is taken in
the model's output, and its pixels are spread over the original. With `bilinear` the logits are interpolated first, as
in the evaluation of DeepLab (arXiv:1706.05587) and SegFormer (arXiv:2105.15203): smoother borders, at a cost that grows
with classes and pixels. The share of a class is its part of the original's pixels, without padding.

Expected of the model: one output of a row, which covers the whole input: logits [c, h, w] (`CHW`) or [h, w, c] (`HWC`),
or numbers of classes [h, w] (`HW`). One channel is one class, the first label, where it reaches `threshold`; other
pixels have no class.

| option | type, default | meaning |
| --- | --- | --- |
| `output` | name | required if the model has several outputs |
| `layout` | `CHW`, `HWC`, `HW`; by shape | required if shape and labels do not tell it |
| `threshold` | number | one channel: 0.5 for probabilities, 0.0 for logits; required |
| `resize` | `nearest`, `bilinear`; `nearest` | how the output is spread over the original image |
| `ignored` | list of labels, `[]` | classes that are not listed, such as the background |
| `max_mask_pixels` | 1024 to 268,435,456; 1,048,576 | pixels of the mask; a larger original has a coarser one |

Document: `{"size": [height, width], "classes": [{"label", "class", "share", "mask": {"size", "counts"}}]}`, by
descending share. Masks are uncompressed run lengths of COCO, column by column (`serving.tasks.run_lengths`). Tensors:
`classes` INT32 [height, width] has −1 where there is no class, `shares` FP32 [c].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.tasks.detections import SCORE_DIGITS, label_of
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.image_input import image_input
from gateway.serving.tasks.mask_grid import MaskGrid, Neighbours, mask_grid, nearest, neighbours, read_mask_pixels
from gateway.serving.tasks.row_arrays import row_array, row_shape, unfit
from gateway.serving.tasks.run_lengths import class_runs, encode_classes

MASK_PIXELS = 1_048_576
CLASSES_LIMIT = 65_536
"""Most classes of a model without labels: numbers of 16 bits."""
BLOCK_VALUES = 262_144
"""Most logits that are interpolated at once: 1 MiB."""
THRESHOLD_LIMIT = 1e6
VALUE_LIMIT = 1e30
"""Largest magnitude of a logit: weighted means of such values are finite in FP32."""
NO_CLASS = -1
CHANNELS: dict[str, int | None] = {"CHW": 0, "HWC": 2, "HW": None}
"""Dimension of the classes by layout."""
LAYOUT_OF_TENSOR = {"NCHW": "CHW", "NHWC": "HWC"}


@dataclass(frozen=True, slots=True)
class SegmentationResult:
    """Classes [height, width] of one row, and the number of classes of the model."""

    labels: Sequence[str]
    ignored: frozenset[int]
    classes: Array
    count: int

    def document(self) -> dict[str, Any]:
        """Return the classes that occur, with their shares and masks."""
        size = list(self.classes.shape)
        listed = [
            {
                "label": label_of(self.labels, number),
                "class": number,
                "share": round(float(counts[1::2].sum()) / self.classes.size, SCORE_DIGITS),
                "mask": {"size": size, "counts": counts.tolist()},
            }
            for number, counts in encode_classes(self.classes)
            if number != NO_CLASS and number not in self.ignored
        ]
        return {"size": size, "classes": sorted(listed, key=lambda each: -each["share"])}

    def tensors(self) -> dict[str, Array]:
        """Return the arrays of `SemanticSegmentation.results`."""
        edges, numbers = class_runs(self.classes)
        known = numbers != NO_CLASS
        pixels = np.bincount(numbers[known], np.diff(edges)[known], minlength=self.count)
        return {"classes": self.classes, "shares": (pixels / self.classes.size).astype(np.float32)}


class SemanticSegmentation:
    """Task of models that give each pixel a class."""

    results = (TensorSpec("classes", Datatype.INT32, (-1, -1)), TensorSpec("shares", Datatype.FP32, (-1,)))
    """Class of each pixel, and the share of each class."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._image, self._labels = image_input(manifest), manifest.labels
        self._map = read_class_map(manifest, options)
        self._smooth = options.text("resize", "nearest", among=("nearest", "bilinear")) == "bilinear"
        ignored = options.texts("ignored", (), among=manifest.labels)
        self._ignored = frozenset(manifest.labels.index(label) for label in ignored)
        self._most_pixels = read_mask_pixels(options, MASK_PIXELS)
        if self._smooth and self._map.layout == "HW":
            options.refuse("resize", "numbers of classes cannot be interpolated; remove it")
        options.finish()

    def interpret(self, outputs: Tensors, frame: Frame | None) -> SegmentationResult:
        """Return the class of each pixel of one row."""
        values = self._map.values(outputs)
        height, width = values.shape[-2:]
        size = self._image.size_in(frame) or (width, height)
        frame = frame or Frame(round(size[0]), round(size[1]))
        grid = mask_grid(frame, size, min(1.0, self._most_pixels / (frame.width * frame.height)))
        classes = self._interpolated(values, grid) if self._smooth else self._spread(values, grid)
        count = len(self._labels) or (len(values) if values.ndim == 3 else 0)
        return SegmentationResult(self._labels, self._ignored, classes, count)

    def _spread(self, values: Array, grid: MaskGrid) -> Array:
        """Return the classes INT32 of the nearest pixels of the output."""
        classes = self._map.classes(values)
        rows = nearest(grid.row_places(0, grid.height, classes.shape[0]), classes.shape[0])
        columns = nearest(grid.column_places(0, grid.width, classes.shape[1]), classes.shape[1])
        return classes.take(columns, axis=1).take(rows, axis=0)

    def _interpolated(self, values: Array, grid: MaskGrid) -> Array:
        """Return the classes INT32 of interpolated logits, in blocks of rows that bound the memory.

        Where one class is the best of all four neighbours it is the best between them, too, since interpolation takes
        a weighted mean with weights from 0 to 1. Logits are interpolated at the other pixels only.
        """
        classes, coarse = np.empty((grid.height, grid.width), np.int32), self._map.classes(values)
        pixels = np.ascontiguousarray(values.transpose(1, 2, 0))  # the logits of one pixel are read at once
        columns = neighbours(grid.column_places(0, grid.width, values.shape[2]), values.shape[2])
        step = max(1, BLOCK_VALUES // (len(values) * grid.width))
        for first in range(0, grid.height, step):
            places = grid.row_places(first, min(first + step, grid.height), values.shape[1])
            rows = neighbours(places, values.shape[1])
            block, unclear = _best_of_neighbours(coarse, rows, columns)
            row, column = np.divmod(np.flatnonzero(unclear), unclear.shape[1])  # np.nonzero takes six times as long
            top, bottom, down = (each[row] for each in rows)
            left, right, along = (each[column] for each in columns)
            along, down = along[:, np.newaxis], down[:, np.newaxis]
            upper = pixels[top, left] * (1 - along) + pixels[top, right] * along
            lower = pixels[bottom, left] * (1 - along) + pixels[bottom, right] * along
            logits = np.asarray(upper * (1 - down) + lower * down)
            block[unclear] = self._map.classes(logits.T[:, np.newaxis])[0]
            classes[first : first + len(places)] = block
        return classes


def _best_of_neighbours(coarse: Array, rows: Neighbours, columns: Neighbours) -> tuple[Array, Array]:
    """Return the classes of the first neighbours [rows, columns], and where the others have another class."""
    block = coarse.take(rows[0], axis=0).take(columns[0], axis=1)
    unclear = np.zeros(block.shape, bool)
    for row, column in ((0, 1), (1, 0), (1, 1)):
        unclear |= coarse.take(rows[row], axis=0).take(columns[column], axis=1) != block
    return block, unclear


@dataclass(frozen=True, slots=True)
class ClassMap:
    """Output with the classes of pixels. `count` is the number of channels, 0 if it is open or there are none.

    Numbers of classes are below `classes_limit`.
    """

    name: str
    layout: str
    count: int
    threshold: float | None
    classes_limit: int

    def values(self, outputs: Tensors) -> Array:
        """Return the logits [c, h, w], or classes [h, w]. NaN and infinities become finite; NaN is the least value.

        Raises RequestError UNSUPPORTED for another shape.
        """
        array = row_array(outputs, self.name, 2 if self.layout == "HW" else 3)
        array = array.transpose(2, 0, 1) if self.layout == "HWC" else array
        if 0 in array.shape or (self.count and len(array) != self.count):
            raise unfit(self.name, array.shape, f"{self.count or 'some'} classes, rows and columns")
        if np.isfinite(array).all():
            return array
        return np.where(np.isnan(array), -VALUE_LIMIT, np.clip(array, -VALUE_LIMIT, VALUE_LIMIT))

    def classes(self, values: Array) -> Array:
        """Return the classes INT32 [h, w] of logits [c, h, w], or of numbers [h, w]."""
        if values.ndim == 2:
            known = (values >= 0) & (values < self.classes_limit)
            return np.where(known, values, NO_CLASS).astype(np.int32)
        if self.threshold is not None:
            return np.where(values[0] >= self.threshold, 0, NO_CLASS).astype(np.int32)
        return np.asarray(values.argmax(axis=0), np.int32)


def read_class_map(manifest: ModelManifest, options: Table) -> ClassMap:
    """Take the options of the output. Raises ConfigurationError that says what to write."""
    known = tuple(spec.name for spec in manifest.outputs)
    if "output" not in options and len(known) > 1:
        options.refuse("output", f'missing; write output = "NAME" with one of {", ".join(known)}')
    spec = manifest.output(options.text("output", known[0], among=known)) or manifest.outputs[0]
    shape = row_shape(spec, manifest, 3)
    layout = options.text("layout", among=tuple(CHANNELS)) if "layout" in options else _layout(spec, shape, manifest)
    if not layout:
        likely = "CHW or HWC" if len(shape) == 3 else "HW"
        found = f"output '{spec.name}' of shape {list(spec.shape)} with {len(manifest.labels)} labels"
        options.refuse("layout", f"{found} does not tell it; write layout = {likely}, or correct the labels")
    channel = CHANNELS[layout]
    count = 0 if channel is None or len(shape) != 3 else max(0, shape[channel])
    if count and manifest.labels and count != len(manifest.labels):
        options.refuse("layout", f"{layout} gives {count} classes, but the manifest has {len(manifest.labels)} labels")
    return ClassMap(spec.name, layout, count, _threshold(options, count), len(manifest.labels) or CLASSES_LIMIT)


def _threshold(options: Table, count: int) -> float | None:
    """Take the threshold, which an output of one channel needs."""
    if count == 1 and "threshold" not in options:
        options.refuse("threshold", "one channel needs it; write 0.5 for probabilities, 0.0 for logits")
    return options.number("threshold", low=-THRESHOLD_LIMIT, high=THRESHOLD_LIMIT) if count == 1 else None


def _layout(spec: TensorSpec, shape: tuple[int, ...], manifest: ModelManifest) -> str:
    """Return the layout that the tensor's own layout, its shape or the number of labels tells, else ""."""
    if len(shape) == 2 or (len(shape) == 3 and shape[0] == 1 and spec.datatype.dtype.kind in "iu"):
        return "HW"
    if len(shape) != 3 or spec.layout in LAYOUT_OF_TENSOR:
        return LAYOUT_OF_TENSOR.get(spec.layout, "") if len(shape) == 3 else ""
    wanted = len(manifest.labels)
    fit = [layout for layout in ("CHW", "HWC") if shape[CHANNELS[layout] or 0] == wanted]
    return fit[0] if len(fit) == 1 else ""
