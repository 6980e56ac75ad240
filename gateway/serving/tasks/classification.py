"""Classification: scores of classes to labels, for one label per row or for several.

Kinds: `image-classification`, `time-series-classification`, `audio-classification`, `keyword-spotting`,
`tabular-classification`, `text-classification`.

Formula: s = pool(activation((x − zero_point) · scale)). Activations: softmax exp(x − max) / Σ exp(x − max), or the
logistic sigmoid 1 / (1 + exp(−x)). Classes are ranked by score; of equal scores the lower class comes first. A class is
listed if its score reaches its threshold. A row with NaN has no order, so none of its classes is listed.

Expected of the model: one numeric output with the classes on its last axis; dimensions of size 1 do not matter. With
`pool`, the axes before it (for example frames of a recording, as YAMNet gives them) are reduced. One score with two
labels is the probability of the second label, as binary classifiers of Keras give it.

scikit-learn models converted by skl2onnx have the outputs `label` (INT64 or BYTES) and `probabilities` (FP32). Set
`output = "probabilities"`. If the label is not always the class of the highest probability (support vector machines),
set `label_output = "label"` too; the manifest's labels are then the classifier's `classes_` as text. The default form
of `probabilities`, ZipMap, is a sequence of maps, which is served as FP32 [rows, classes], in the order of `classes_`.
Source: documentation of skl2onnx, "Probabilities as a vector or as a ZipMap".

| option | type, default | meaning |
| --- | --- | --- |
| `output` | text | output with the scores; required if the model has several numeric outputs |
| `activation` | `none`, `softmax`, `sigmoid`; `none` | function that makes probabilities of the output |
| `multi_label` | flag, true with `sigmoid` | a row may have any number of labels |
| `top_k` | 1 to 1,000; 5 | most classes that are listed |
| `threshold` | number; 0.5 if `multi_label`, else none | least score of a listed class |
| `thresholds` | table of label = number | least scores of single classes |
| `pool` | `none`, `mean`, `max`; `none` | reduction of the axes before the classes |
| `scale`, `zero_point` | number, 1.0; number, 0.0 | scale of quantised scores |
| `label_output` | text | output in which the model names the class itself |

Document: `{"classes": [{"label", "class", "score"}]}`, best first. If a row has one label, also `label` and `score` of
the first listed class; both are null if none is listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.domain.decimals import decimals
from gateway.serving.domain.postprocess import softmax
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.row_outputs import RowOutput, finite, read_output, to_fp32

TOP_K_LIMIT = 1_000
"""Most classes that a result lists."""
SCORE_LIMIT = 1e30
"""Largest magnitude of thresholds and of the scale."""
LABELS = frozenset({Datatype.BYTES, Datatype.INT32, Datatype.INT64})
"""Datatypes in which a model may name a class."""


@dataclass(frozen=True, slots=True)
class ClassificationResult:
    """Listed classes of one row, best first: `classes` [k] with their `scores` [k] and `labels`."""

    classes: Array
    scores: Array
    labels: tuple[str, ...]
    multi_label: bool

    def document(self) -> dict[str, Any]:
        """Return the listed classes; for one label per row also that label and its score."""
        rows = zip(self.labels, self.classes.tolist(), map(finite, decimals(to_fp32(self.scores))), strict=True)
        listed = [{"label": label, "class": index, "score": score} for label, index, score in rows]
        if self.multi_label:
            return {"classes": listed}
        best = listed[0] if listed else {"label": None, "score": None}
        return {"label": best["label"], "score": best["score"], "classes": listed}

    def tensors(self) -> dict[str, Array]:
        """Return the arrays `class` [k], `score` [k] and `label` [k] (BYTES)."""
        names = np.empty(len(self.labels), object)
        names[:] = [label.encode() for label in self.labels]
        return {"class": self.classes.astype(np.int64), "score": to_fp32(self.scores), "label": names}


class Classification:
    """Task of classifiers. Raises ConfigurationError if the output and the labels do not fit each other."""

    results = (
        TensorSpec("class", Datatype.INT64, (-1,)),
        TensorSpec("score", Datatype.FP32, (-1,)),
        TensorSpec("label", Datatype.BYTES, (-1,)),
    )
    """Listed classes of a row, best first."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._output = read_output(manifest, options)
        self._named = read_output(manifest, options, "label_output", LABELS) if "label_output" in options else None
        self._width = _width(self._output, manifest.labels, options)
        self._labels = manifest.labels or tuple(map(str, range(self._width)))
        self._activation = options.text("activation", "none", among=tuple(ACTIVATIONS))
        self._multi_label = options.flag("multi_label", self._activation == "sigmoid" and not self._is_binary)
        self._pool = options.text("pool", "none", among=("none", "mean", "max"))
        self._scale = options.number("scale", 1.0, low=-SCORE_LIMIT, high=SCORE_LIMIT)
        self._zero_point = options.number("zero_point", 0.0, low=-SCORE_LIMIT, high=SCORE_LIMIT)
        self._top_k = options.integer("top_k", 5, low=1, high=TOP_K_LIMIT)
        self._thresholds = _read_thresholds(options, self._labels, 0.5 if self._multi_label else -math.inf)
        self._check(manifest, options)
        options.finish()

    def interpret(self, outputs: Tensors, frame: Frame | None) -> ClassificationResult:
        """Return the listed classes of one row. `frame` is not used: a class has no place in an image."""
        scores = self._scores(self._output.values(outputs))
        first = None if self._named is None else self._class_named(self._named.values(outputs))
        listed = rank(scores, self._thresholds, first)[: self._top_k]
        labels = tuple(self._labels[index] for index in listed.tolist())
        return ClassificationResult(listed, scores[listed], labels, self._multi_label)

    @property
    def _is_binary(self) -> bool:
        """Return True if one score decides between two labels."""
        return self._width == 1 and len(self._labels) == 2

    def _check(self, manifest: ModelManifest, options: Table) -> None:
        """Refuse options that contradict the output or each other."""
        if self._pool == "none" and len(self._output.sizes) > 1:
            options.refuse("pool", f"output '{self._output.name}' has several axes; set pool to mean or max")
        if self._activation == "softmax" and self._width == 1:
            options.refuse("activation", "softmax of one score is always 1; set sigmoid or none")
        if self._width == 1 and not self._is_binary and not self._multi_label:
            options.refuse("output", f"'{self._output.name}' has one score: name two labels, or set multi_label")
        declared = manifest.output(self._output.name)
        if self._activation != "none" and declared and declared.postprocess:
            options.refuse(
                "activation", f"output '{declared.name}' has postprocess = \"{declared.postprocess}\" already"
            )
        if self._multi_label and (self._is_binary or self._named):
            options.refuse("multi_label", "needs one score for each label, and no label_output")
        if self._named and not manifest.labels:
            options.refuse("label_output", "needs the manifest's labels, in the order of the scores")

    def _scores(self, values: Array) -> Array:
        """Return the scores [classes] as FP64."""
        count, rest = divmod(values.size, self._width)
        if rest or not count or (count > 1 and self._pool == "none"):
            problem = f"output '{self._output.name}' of the model has shape {list(values.shape)} in one row"
            raise RequestError(Fault.UNSUPPORTED, f"{problem}, which are no scores of {self._width} classes")
        frames = values.astype(np.float64).reshape(count, self._width)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinite scores: the row may have no label
            scores = ACTIVATIONS[self._activation]((frames - self._zero_point) * self._scale)
            pooled: Array = scores.max(axis=0) if self._pool == "max" else scores.mean(axis=0)
        return np.array([1.0 - pooled[0], pooled[0]]) if self._is_binary else pooled

    def _class_named(self, label: Array) -> int:
        """Return the class that the model names. Raises RequestError UNSUPPORTED for an unknown label."""
        only = label.ravel()[0]
        text = only.decode("utf-8", "replace") if isinstance(only, bytes) else str(only)
        if text not in self._labels:
            raise RequestError(
                Fault.UNSUPPORTED, f"the model names the class {text!r:.80}, which the labels do not have"
            )
        return self._labels.index(text)


def sigmoid(scores: Array) -> Array:
    """Return the logistic function of FP64 scores; it does not overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -scores)))


def rank(scores: Array, thresholds: Array, first: int | None = None) -> Array:
    """Return the classes [k] whose scores [classes] reach their thresholds, best first; none if a score is NaN.

    `first` is a class that comes before all others, whatever its score.
    """
    if np.isnan(scores).any():
        return np.empty(0, np.intp)
    order = np.argsort(-scores, kind="stable")
    if first is not None:
        order = np.concatenate(([first], order[order != first]))
    return np.asarray(order[(scores >= thresholds)[order]])


def _width(output: RowOutput, labels: tuple[str, ...], options: Table) -> int:
    """Return the number of scores on the last axis. Raises ConfigurationError if the labels do not fit it."""
    width = output.sizes[-1] if output.sizes else 1
    if width == ROWS:
        width = len(labels)
    if (labels and width not in {len(labels), 1}) or (width == 1 and len(labels) > 2):
        options.refuse("output", f"'{output.name}' has {width} scores, but the manifest has {len(labels)} labels")
    if width < 1:
        options.refuse("output", f"the number of scores of '{output.name}' is open; the manifest needs labels")
    return width


def _read_thresholds(options: Table, labels: tuple[str, ...], default: float) -> Array:
    """Take the thresholds [classes] from `threshold` and `thresholds`."""
    least = options.number("threshold", low=-SCORE_LIMIT, high=SCORE_LIMIT) if "threshold" in options else default
    thresholds, single = np.full(len(labels), least), options.table("thresholds")
    for label in single.remaining() if single else ():
        if single is not None:
            if label not in labels:
                single.refuse(label, "is no label of the manifest")
            places = [place for place, name in enumerate(labels) if name == label]  # ImageNet has two cranes
            thresholds[places] = single.number(label, low=-SCORE_LIMIT, high=SCORE_LIMIT)
    return thresholds


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {"none": np.asarray, "softmax": softmax, "sigmoid": sigmoid}
"""Function by the name of the option `activation`, on FP64 scores [frames, classes]."""
