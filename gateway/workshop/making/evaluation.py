"""Evaluation of variants on samples: in terms of the model's task if it has one, else by its tensors. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateway.common.domain.errors import RequestError, VariantError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.domain.golden import GoldenSet, is_one_run
from gateway.serving.tasks.catalog import task_of
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.task import Task
from gateway.workshop.making.measures import Quality, basis_of, quality
from gateway.workshop.making.samples import SampleSet
from gateway.workshop.making.task_metrics import REFERENCE, Score, TaskMetric, task_metric
from gateway.workshop.making.truth.kinds import TruthKind, truth_kind

TENSOR_WORDS: Mapping[str, str] = {
    "labels": "share of right classes",
    "agreement": f"share of samples with the class of {REFERENCE}",
    "similarity": f"1 less the relative difference from {REFERENCE}",
}
"""Meaning of accuracy by tensors, by what `basis_of` returns."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Meaning of accuracy: its name for programs, words for people, and the number of samples that were judged."""

    name: str
    words: str
    samples: int

    @property
    def described(self) -> str:
        """Return the words with the number of samples."""
        return f"{self.words}, {self.samples} held-out sample{'' if self.samples == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """Comparison of the results that a task makes of outputs, with what is expected of each sample (None: not known).

    `inputs` are those of the samples, `frames` the places of their images, or none.
    """

    task: Task
    metric: TaskMetric
    options: Mapping[str, Any]
    inputs: Tensors
    frames: Sequence[Frame] = ()
    expected: Sequence[Any] = ()

    def score(self, outputs: Tensors) -> Score:
        """Return the accuracy of a variant's outputs. Raises VariantError for outputs that the task does not know."""
        judged = [place for place, each in enumerate(self.expected) if each is not None]
        return self.metric.score(self.results(outputs, judged), [self.expected[place] for place in judged])

    def results(self, outputs: Tensors, chosen: Sequence[int]) -> list[Any]:
        """Return what the metric compares of some samples; results are made as in serving. Raises VariantError."""
        own = dict(outputs) | {name: self.inputs[name] for name in getattr(self.task, "inputs", ())}
        rows = ({name: np.asarray(array[place]) for name, array in own.items()} for place in chosen)
        return [self._result(row, place) for row, place in zip(rows, chosen, strict=True)]

    def _result(self, outputs: Mapping[str, Array], place: int) -> Any:
        try:
            result = self.task.interpret(outputs, self.frames[place] if self.frames else None)
        except RequestError as error:
            raise VariantError(error.message) from error
        return self.metric.read(result.tensors(), self.options)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Samples on which variants are measured: their inputs with the reference's outputs, and the terms of the task."""

    golden: GoldenSet
    basis: Basis
    terms: TaskTerms | None = None

    def quality(self, answers: Tensors) -> Quality:
        """Return the quality of a variant's answers to the inputs. Raises VariantError."""
        found = quality(self.golden, answers)
        if self.terms is None:
            return found
        score = self.terms.score(answers)
        return replace(found, accuracy=score.accuracy, figures=score.figures)


def make_evaluation(
    manifest: ModelManifest, golden: GoldenSet, samples: SampleSet | None, reference: str
) -> tuple[Evaluation, list[str]]:
    """Return how variants are measured, and remarks for people.

    `golden` has the inputs of samples with the answers of `reference`. `samples` has their truth and the places of
    images; None: they are an author's golden set. Without a truth that defines the metric, the results of the reference
    are the truth; if they do not define it either, tensors are compared. Raises VariantError.
    """
    terms = _terms(manifest, golden, samples)
    if terms is None:
        return _by_tensors(golden, reference), []
    kind, remarks = truth_kind(manifest), list[str]()
    metric, truth = task_metric(kind, against_reference=False), _truth(kind, golden, samples)
    if metric is not None and any(each is not None for each in truth):
        by_truth = replace(terms, metric=metric, expected=truth)
        if not math.isnan(by_truth.score(golden.outputs).accuracy):
            return Evaluation(golden, _basis_by_truth(kind, by_truth), by_truth), []
        remarks.append(
            f"the {kind.value} of the held-out samples do not define {metric.words} (all are alike, or there are "
            f"none): accuracy is measured against {reference}"
        )
    everything = terms.results(golden.outputs, range(_count(golden)))
    by_reference = replace(terms, expected=everything)
    if not math.isnan(by_reference.score(golden.outputs).accuracy):
        basis = Basis(terms.metric.name, terms.metric.words.replace(REFERENCE, reference), len(everything))
        return Evaluation(golden, basis, by_reference), remarks
    remarks.append(
        f"{reference} finds nothing in the held-out samples with which others could be compared: accuracy is the "
        "similarity of tensors; give samples in which there is something to find"
    )
    return _by_tensors(GoldenSet(golden.inputs, golden.outputs), reference), remarks


def _terms(manifest: ModelManifest, golden: GoldenSet, samples: SampleSet | None) -> TaskTerms | None:
    """Return the terms of comparison with a reference; None without a task, or for a golden set that is one run."""
    task, metric = task_of(manifest), task_metric(truth_kind(manifest), against_reference=True)
    if task is None or metric is None or is_one_run(manifest, golden):
        return None
    frames = samples.frames if samples else ()
    return TaskTerms(task, metric, manifest.task_options or {}, golden.inputs, frames)


def _truth(kind: TruthKind, golden: GoldenSet, samples: SampleSet | None) -> Sequence[Any]:
    """Return what is known of each sample; labels of a golden set are classes."""
    if samples is not None and samples.truth is not None:
        return samples.truth
    if kind is not TruthKind.CLASSES or golden.label is None:
        return []
    return [(label,) for label in golden.label.tolist()]


def _basis_by_truth(kind: TruthKind, terms: TaskTerms) -> Basis:
    text = {TruthKind.CLASSES: "", TruthKind.FORECASTS: f", {kind.value}"}.get(kind, f", annotated {kind.value}")
    return Basis(terms.metric.name, f"{terms.metric.words}{text}", sum(each is not None for each in terms.expected))


def _by_tensors(golden: GoldenSet, reference: str) -> Evaluation:
    name = basis_of(golden)
    return Evaluation(golden, Basis(name, TENSOR_WORDS[name].replace(REFERENCE, reference), _count(golden)))


def _count(golden: GoldenSet) -> int:
    return len(next(iter(golden.inputs.values())))
