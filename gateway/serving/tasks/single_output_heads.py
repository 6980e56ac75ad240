"""Heads of one output, mostly those of YOLO: arrays to candidates, and the shapes by which the heads are told apart.

| head | output of a row | score of a class |
| --- | --- | --- |
| `yolov5` | [n, 5 + c + e]: centre x, y, width, height, objectness, classes, extras | objectness · class |
| `yolox` | as `yolov5`; centre in sides of its cell from the cell's corner, log of the size in them | as `yolov5` |
| `yolov8` | [4 + c + e, n]: centre x, y, width, height, classes, extras | class |
| `end-to-end` | [n, 6 + e]: x1, y1, x2, y2, score, class, extras; suppressed by the model | score |
| `detr` | [n, 4 + c]: centre x, y, width, height in 0..1, classes | class |

c is the number of classes, e the number of extras: coefficients of masks, values of keypoints. Only the best class of
a box counts, as in the `predict` mode of Ultralytics. Classes have their sigmoid already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.boxes import from_centres
from gateway.serving.tasks.candidates import BoxCandidates
from gateway.serving.tasks.cell_grid import YOLOX_MAPS, cell_grid
from gateway.serving.tasks.detection_limits import DetectionLimits
from gateway.serving.tasks.image_input import image_input
from gateway.serving.tasks.query_heads import best_pairs
from gateway.serving.tasks.row_arrays import row_array, row_shape, unfit

BLOCK_COLUMNS = 256
"""Boxes whose best class is looked for at once."""
HeadDecoder = Callable[[Array, int, DetectionLimits], BoxCandidates]
"""Function of output, extras and limits."""


def decode_yolov8(output: Array, extras: int, limits: DetectionLimits) -> BoxCandidates:
    """Return the candidates of an output [4 + c + e, n].

    The maximum over the classes runs along rows as they lie in memory. A transposed copy takes ten times as long
    (tests/performance/tasks.py).
    """
    end = len(output) - extras
    scores = output[4:end]
    best = scores.max(axis=0)
    chosen = limits.choose(best)
    # 1000 columns of 80 classes at once took 0.40 ms, in blocks 0.11 ms. The likely reason is that malloc takes
    # the large copy from the system each time: there were 174 page faults per call before, and none after.
    parts = [chosen[first : first + BLOCK_COLUMNS] for first in range(0, len(chosen), BLOCK_COLUMNS)]
    return BoxCandidates(
        from_centres(output[:4, chosen].T),
        best[chosen],
        np.concatenate([np.empty(0, np.intp), *(scores[:, part].argmax(axis=0) for part in parts)]),
        output[end:, chosen].T.astype(np.float64),
    )


def decode_yolov5(output: Array, extras: int, limits: DetectionLimits) -> BoxCandidates:
    """Return the candidates of an output [n, 5 + c + e].

    No class score exceeds 1. Rows whose objectness is below the threshold are therefore not read further.
    """
    end = output.shape[1] - extras
    rows = output[output[:, 4] >= limits.lowest_score]
    scores = rows[:, 5:end].max(axis=1) * rows[:, 4]
    chosen = limits.choose(scores)
    rows = rows[chosen]
    return BoxCandidates(
        from_centres(rows), scores[chosen], rows[:, 5:end].argmax(axis=1), rows[:, end:].astype(np.float64)
    )


def from_cells(rows: Array, cells: Array) -> Array:
    """Return rows of YOLOX as rows of YOLOv5. `cells` [n, 3] are the corner and the side of each cell in pixels."""
    corners, sides = cells[:, :2], cells[:, 2:]
    return np.concatenate((rows[:, :2] * sides + corners, np.exp(rows[:, 2:4]) * sides, rows[:, 4:]), axis=1)


def decode_end_to_end(output: Array, extras: int, limits: DetectionLimits) -> BoxCandidates:
    """Return the candidates of an output [n, 6 + e]."""
    chosen = limits.choose(output[:, 4])
    rows = output[chosen].astype(np.float64)
    return BoxCandidates(rows[:, :4], output[chosen, 4], class_numbers(rows[:, 5]), rows[:, 6:])


def decode_queries(output: Array, extras: int, limits: DetectionLimits) -> BoxCandidates:
    """Return the candidates of an output [n, 4 + c], without extras."""
    return best_pairs(output[:, :4], output[:, 4 : output.shape[1] - extras], limits)


def class_numbers(values: Array) -> Array:
    """Return classes that a model gives as floats [n] as integers. What is no number of 31 bits becomes −1.

    They are rounded: quantised outputs hold 2.998 for 3.
    """
    known = np.abs(values) < 2**31 - 1
    return np.rint(np.where(known, values, -1.0)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class HeadForm:
    """Form of a head's output: `fixed` columns without classes; `has_classes`: one column for each class as well.

    Columns are the first dimension if `columns_first`.
    """

    decode: HeadDecoder
    fixed: int
    has_classes: bool = True
    columns_first: bool = False
    suppressed: bool = False
    coordinates: str = "pixels"

    def columns(self, classes: int, extras: int) -> int:
        """Return the number of columns for `classes` classes."""
        return self.fixed + extras + (classes if self.has_classes else 0)

    def shape_text(self, classes: int, extras: int) -> str:
        """Return the shape of the output, for error messages."""
        text = str(self.columns(classes, extras)) if classes or not self.has_classes else f"{self.fixed + extras} + c"
        return f"[{text}, n]" if self.columns_first else f"[n, {text}]"


HEAD_FORMS: Mapping[str, HeadForm] = {
    "yolov5": HeadForm(decode_yolov5, 5),
    "yolox": HeadForm(decode_yolov5, 5),
    "yolov8": HeadForm(decode_yolov8, 4, columns_first=True),
    "end-to-end": HeadForm(decode_end_to_end, 6, has_classes=False, suppressed=True),
    "detr": HeadForm(decode_queries, 4, suppressed=True, coordinates="normalised"),
}


@dataclass(frozen=True, slots=True)
class SingleOutputHead:
    """Head of the output called `output`, with `extras` further columns. `classes` 0: as many as the output has.

    `cells`: those to which boxes are relative (YOLOX); None: boxes are not.
    """

    output: str
    form: HeadForm
    classes: int
    extras: int
    cells: Array | None = None

    @property
    def coordinates(self) -> str:
        """Return the unit of the boxes: pixels of the input, or normalised."""
        return self.form.coordinates

    @property
    def suppressed(self) -> bool:
        """Return True if the model suppresses boxes itself."""
        return self.form.suppressed

    def decode(self, outputs: Tensors, limits: DetectionLimits) -> BoxCandidates:
        """Return the candidates of one row. Raises RequestError UNSUPPORTED for an output of another shape."""
        array = row_array(outputs, self.output, 2)
        columns = array.shape[0 if self.form.columns_first else 1]
        least = self.form.columns(self.classes or 1, self.extras)
        exact = bool(self.classes) or not self.form.has_classes
        if columns < least or (exact and columns != least):
            raise unfit(self.output, array.shape, self.form.shape_text(self.classes, self.extras))
        if self.cells is not None:
            if len(array) != len(self.cells):
                raise unfit(self.output, array.shape, f"[{len(self.cells)}, {columns}]")
            likely = array[:, 4] >= limits.lowest_score
            array = from_cells(array[likely], self.cells[likely])
        return self.form.decode(array, self.extras, limits)


def matches(form: HeadForm, shape: tuple[int, ...], classes: int, extras: int) -> int:
    """Return 2 if the declared shape [2 dimensions] is of `form`, 1 if its open dimensions leave it possible, else 0.

    Without labels (`classes` 0) a model has more boxes than columns.
    """
    columns, boxes = (shape[0], shape[1]) if form.columns_first else (shape[1], shape[0])
    if columns == ROWS:
        return 1
    if classes or not form.has_classes:
        return 2 if columns == form.columns(classes, extras) else 0
    return 2 if columns >= form.columns(1, extras) and (boxes == ROWS or columns < boxes) else 0


def head_fit(spec: TensorSpec, manifest: ModelManifest, head: str, extras: int) -> int:
    """Return how well the declared shape of an output fits a head, as `matches` does."""
    shape = row_shape(spec, manifest, 2)
    return matches(HEAD_FORMS[head], shape, len(manifest.labels), extras) if len(shape) == 2 else 0


def single_output_head(
    spec: TensorSpec, manifest: ModelManifest, options: Table, *, head: str, among: tuple[str, ...], extras: int = 0
) -> SingleOutputHead:
    """Return the head of `spec`: `head`, or the only one of `among` that its shape fits if `head` is empty.

    Raises ConfigurationError that says what to write.
    """
    among = (head,) if head else among
    classes = len(manifest.labels)
    fits = {name: head_fit(spec, manifest, name, extras) for name in among}
    likely = [name for name in among if fits[name] and fits[name] == max(fits.values())]
    found = f"output '{spec.name}' of shape {list(spec.shape)} with {classes} labels"
    if not likely:
        forms = ", ".join(f"{name} {HEAD_FORMS[name].shape_text(classes, extras)}" for name in among)
        options.refuse("head", f"{found} fits no head ({forms} per row); correct the labels, or name another head")
    if len(likely) > 1:
        choice = " or ".join(f'head = "{name}"' for name in likely)
        options.refuse("head", f"{found} can be {' or '.join(likely)}; write {choice}")
    cells, size = None, image_input(manifest).size
    if likely == ["yolox"]:
        if size is None:
            options.refuse("head", "yolox needs the size of the input; declare it in the manifest")
        cells = cell_grid(size, YOLOX_MAPS)
    return SingleOutputHead(spec.name, HEAD_FORMS[likely[0]], classes, extras, cells)
