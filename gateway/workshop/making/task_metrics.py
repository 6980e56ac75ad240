"""Accuracy in terms of each task: what is compared, how, and what it is called. Pure functions.

What is compared are the tensors of results that a task makes when it serves. An accuracy is in 0..1, and higher is
better, so that `max_accuracy_loss` bounds its loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.embedding import unit
from gateway.serving.tasks.forecasting import MEDIAN
from gateway.workshop.making.metrics.average_precision import Objects, Shapes, mean_average_precision
from gateway.workshop.making.metrics.boxes import Boxes, areas
from gateway.workshop.making.metrics.class_iou import ClassRuns, mean_iou
from gateway.workshop.making.metrics.deviation import explained_deviation, mean_absolute_error
from gateway.workshop.making.metrics.masks import Masks
from gateway.workshop.making.metrics.points import AREA_OF_BOX, PointShapes
from gateway.workshop.making.metrics.polygons import Polygons
from gateway.workshop.making.metrics.roc_auc import AnomalyVerdict, roc_auc
from gateway.workshop.making.metrics.text_errors import character_error_rate, word_error_rate
from gateway.workshop.making.truth.kinds import TruthKind

LEAST_POINT_SCORE = 0.5
"""Score from which on a point that was found counts as visible, where it is what others are compared with."""


def found_boxes(found: Tensors) -> Objects:
    """Return the objects with their boxes."""
    return _objects(found, Boxes(found["boxes"].astype(np.float64)))


def found_polygons(found: Tensors) -> Objects:
    """Return the objects with the corners of their oriented boxes."""
    return _objects(found, Polygons(found["corners"].astype(np.float64)))


def found_masks(found: Tensors) -> Objects:
    """Return the objects with their masks."""
    height, width = found["mask_size"].tolist()
    parts = [found["mask_counts"][start:end] for start, end in pairwise(found["mask_offsets"].tolist())]
    return _objects(found, Masks((height, width), parts))


def found_points(found: Tensors) -> Objects:
    """Return the objects with their points, in pixels."""
    points, boxes = found["keypoints"].astype(np.float64), found["boxes"].astype(np.float64)
    has_scores = points.shape[2] > 2
    visible = points[..., 2] >= LEAST_POINT_SCORE if has_scores else np.ones(points.shape[:2], bool)
    return _objects(found, PointShapes(points[..., :2], visible, AREA_OF_BOX * areas(boxes), boxes))


def _objects(found: Tensors, shapes: Shapes) -> Objects:
    classes = found["classes"]
    return Objects(classes, found["scores"].astype(np.float64), np.zeros(len(classes), bool), shapes)


Options = Mapping[str, Any]
Items = Sequence[Any]
REFERENCE = "{reference}"
"""Place of the reference's name in the words of a metric."""
SAME = "share of samples with the"


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy in 0..1, NaN if the samples do not define it, and other figures for people, by name."""

    accuracy: float
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskMetric:
    """Measure of a task: `name` is for programs, `words` are for people.

    `read` makes of a result's tensors, with the options of the task, what `score` compares: found ones, expected ones.
    """

    name: str
    words: str
    read: Callable[[Tensors, Options], Any]
    score: Callable[[Items, Items], Score]


def task_metric(kind: TruthKind, *, against_reference: bool) -> TaskMetric | None:
    """Return the metric of a task with this kind of truth; None if only a reference's results can be its truth.

    `against_reference`: what is expected are results of the float variant, not annotations.
    """
    metric = _METRICS.get(kind)
    if not against_reference:
        return metric
    return _AGAINST_REFERENCE.get(kind) or (metric and replace(metric, words=f"{metric.words} against {REFERENCE}"))


def _classes(found: Tensors, _: Options) -> tuple[int, ...]:
    return tuple(found["class"].tolist())


def _right_classes(found: Items, expected: Items) -> Score:
    return Score(_share(mine[:1] == theirs[:1] for mine, theirs in zip(found, expected, strict=True)))


def _objects_score(found: Items, expected: Items) -> Score:
    return Score(mean_average_precision(found, expected))


def _class_runs(found: Tensors, _: Options) -> ClassRuns:
    return ClassRuns.of(found["classes"])


def _class_runs_score(found: Items, expected: Items) -> Score:
    return Score(mean_iou(found, expected))


def _text(found: Tensors, _: Options) -> str:
    return str(found["text"][0].decode())


def _text_score(found: Items, expected: Items) -> Score:
    right = _share(mine == theirs for mine, theirs in zip(found, expected, strict=True))
    errors = character_error_rate(found, expected)
    figures = {"word error rate": word_error_rate(found, expected), "exact texts": right}
    return Score(math.nan if math.isnan(errors) else max(0.0, 1.0 - errors), figures)


def _verdict(found: Tensors, options: Options) -> AnomalyVerdict:
    sign = -1.0 if options.get("anomalous") == "below" else 1.0
    return AnomalyVerdict(sign * float(found["score"][0]), bool(found["anomalous"][0]))


def _auc_score(found: Items, expected: Items) -> Score:
    flags = np.array([each.is_anomalous for each in expected])
    same = _same_verdicts(found, expected).accuracy
    return Score(roc_auc(np.array([each.score for each in found]), flags), {"right verdicts": same})


def _same_verdicts(found: Items, expected: Items) -> Score:
    pairs = zip(found, expected, strict=True)
    return Score(_share(mine.is_anomalous == theirs.is_anomalous for mine, theirs in pairs))


def _values(found: Tensors, _: Options) -> Array:
    return found["values"][np.newaxis]


def _forecast(found: Tensors, options: Options) -> Array:
    """Return the forecast [steps, channels]: its median, or the quantile next to it."""
    values, quantiles = found["forecast"], options.get("quantiles", ())
    if not quantiles:
        return values
    return np.asarray(values[..., min(range(len(quantiles)), key=lambda place: abs(quantiles[place] - MEDIAN))])


def _values_score(found: Items, expected: Items) -> Score:
    mine, theirs = np.concatenate(found), np.concatenate(expected)
    return Score(max(0.0, explained_deviation(mine, theirs)), {"MAE": mean_absolute_error(mine, theirs)})


def _vector(found: Tensors, _: Options) -> Array:
    return found["embedding"].astype(np.float64)


def _cosine_score(found: Items, expected: Items) -> Score:
    cosines = (unit(np.stack(found)) * unit(np.stack(expected))).sum(axis=1)
    return Score(float(np.nan_to_num(cosines, nan=0.0).mean().clip(0.0, 1.0)))


def _share(flags: Any) -> float:
    return float(np.mean(list(flags)))


_METRICS: Mapping[TruthKind, TaskMetric] = {
    TruthKind.CLASSES: TaskMetric("labels", "share of right classes", _classes, _right_classes),
    TruthKind.BOXES: TaskMetric("map-50", "mAP at IoU 0.5", lambda f, _: found_boxes(f), _objects_score),
    TruthKind.ORIENTED: TaskMetric("map-50", "mAP at IoU 0.5", lambda f, _: found_polygons(f), _objects_score),
    TruthKind.MASKS: TaskMetric("map-50", "mAP at IoU 0.5", lambda f, _: found_masks(f), _objects_score),
    TruthKind.KEYPOINTS: TaskMetric("map-50", "mAP at OKS 0.5", lambda f, _: found_points(f), _objects_score),
    TruthKind.CLASS_MAPS: TaskMetric("mean-iou", "mean IoU", _class_runs, _class_runs_score),
    TruthKind.TEXTS: TaskMetric("characters", "1 less the character error rate", _text, _text_score),
    TruthKind.FLAGS: TaskMetric("auc", "AUC", _verdict, _auc_score),
    TruthKind.VALUES: TaskMetric("deviation", "explained deviation (D²)", _values, _values_score),
    TruthKind.FORECASTS: TaskMetric("deviation", "explained deviation (D²)", _forecast, _values_score),
}
_AGAINST_REFERENCE: Mapping[TruthKind, TaskMetric] = {
    TruthKind.CLASSES: TaskMetric("agreement", f"{SAME} class of {REFERENCE}", _classes, _right_classes),
    TruthKind.FLAGS: TaskMetric("verdicts", f"{SAME} verdict of {REFERENCE}", _verdict, _same_verdicts),
    TruthKind.NONE: TaskMetric("cosine", f"mean cosine similarity with {REFERENCE}", _vector, _cosine_score),
}
