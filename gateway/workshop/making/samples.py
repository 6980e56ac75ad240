"""Samples of a model's inputs, and their division into calibration and held-out ones. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec, Variant, fits
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.frame import Frame
from gateway.workshop.making.settings import CalibrationSettings

SHARES = frozenset({"labels", "agreement", "verdicts"})
"""Kinds of accuracy that are a share of samples."""


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples of a model: arrays [samples, …] by the manifest's names, and the class of each (None: not known).

    `digest` is of the data from which they were read. `found` is the number of samples there. `frames` are the places
    of images. `truth` is what each sample is in terms of the task, if that is no class; None: not known. `remarks` are
    facts about it for people.
    """

    inputs: Mapping[str, Array]
    labels: Array | None
    digest: str
    found: int
    frames: tuple[Frame, ...] = ()
    truth: tuple[Any, ...] | None = None
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def taken(self, indices: Array) -> SampleSet:
        """Return the samples with these indices."""
        return replace(
            self,
            inputs={name: array[indices] for name, array in self.inputs.items()},
            labels=None if self.labels is None else self.labels[indices],
            frames=tuple(self.frames[index] for index in indices) if self.frames else (),
            truth=None if self.truth is None else tuple(self.truth[index] for index in indices),
        )


def sample_shape(manifest: ModelManifest, spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of one sample of an input: without the dimension of rows if there is one."""
    return spec.shape[1:] if manifest.batched else spec.shape


def with_defaults(inputs: Mapping[str, Array], manifest: ModelManifest) -> dict[str, Array]:
    """Return the samples with those of the inputs that are not there, which have a default in the manifest."""
    count = len(next(iter(inputs.values()))) if inputs else 1
    missing = [spec for spec in manifest.inputs if spec.name not in inputs]
    shapes = {spec.name: [max(size, 1) for size in sample_shape(manifest, spec)] for spec in missing}
    filled = {spec.name: np.full((count, *shapes[spec.name]), spec.default, spec.datatype.dtype) for spec in missing}
    return {**inputs, **filled}


def shape_problem(manifest: ModelManifest, spec: TensorSpec, array: Array) -> str:
    """Return why an array [samples, …] does not hold samples of an input, or ""."""
    wanted = sample_shape(manifest, spec)
    if array.ndim and fits(array.shape[1:], wanted):
        return "" if len(array) else f"array {spec.name!r} has no samples"
    return (
        f"array {spec.name!r} has the shape {list(array.shape)}, but samples of this input are "
        f"{['samples', *wanted]}; give one row for each sample"
    ).replace("'samples'", "samples")


def read_limit(manifest: ModelManifest, settings: CalibrationSettings) -> int:
    """Return the most samples that are read: by their number, and by the memory that they take."""
    sizes = [
        spec.datatype.dtype.itemsize * math.prod(max(size, 1) for size in sample_shape(manifest, spec))
        for spec in manifest.inputs
    ]
    most = settings.calibration_rows + settings.heldout_rows
    return max(2, min(most, settings.samples_bytes // max(1, sum(sizes))))


def divided(samples: SampleSet, settings: CalibrationSettings, seed: int) -> tuple[SampleSet, SampleSet]:
    """Return the calibration samples and the held-out ones, drawn with `seed`. One sample alone is both."""
    order = np.random.default_rng(seed).permutation(len(samples))
    if len(samples) == 1:
        return samples, samples
    heldout = max(1, min(settings.heldout_rows, int(len(samples) * settings.heldout_share)))
    rest = order[heldout:][: settings.calibration_rows]
    return samples.taken(np.sort(rest)), samples.taken(np.sort(order[:heldout]))


def read_remarks(samples: SampleSet, settings: CalibrationSettings) -> list[str]:
    """Return what is to be told of samples that are not read because they would take too much memory."""
    if len(samples) == samples.found or len(samples) >= settings.calibration_rows + settings.heldout_rows:
        return []
    words = f"more would take more than {settings.samples_bytes} bytes of memory"
    return [f"{len(samples)} of {samples.found} samples are read: {words}"]


def few_samples_remarks(calibration: int, heldout: int, basis: str, settings: CalibrationSettings) -> list[str]:
    """Return what follows from few samples, for people. `basis` is the name of what accuracy is."""
    remarks = []
    if calibration < settings.few_calibration_rows:
        remarks.append(
            f"ranges are taken from {calibration} samples; values that none of them shows are cut off on a device: "
            f"give {settings.few_calibration_rows} or more for calibration"
        )
    if heldout < settings.few_heldout_rows and basis in SHARES:
        remarks.append(
            f"accuracy is measured on {heldout} samples, so one of them is {100 / heldout:.1f} %: a loss below that "
            "cannot be seen"
        )
    elif heldout < settings.few_heldout_rows and basis != "similarity":
        remarks.append(f"accuracy is measured on {heldout} samples: a few of them decide it")
    return remarks


def label_indices(names: Sequence[str], labels: Sequence[str]) -> Array:
    """Return the index of each name among the model's labels; without labels, names are numbers or sorted.

    Raises ValueError with a name that is no label.
    """
    if not labels and all(name.isascii() and name.isdecimal() for name in names):
        return np.array([int(name) for name in names], np.int64)
    known = list(labels) or sorted(set(names))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        listed = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
        raise ValueError(
            f"the label {unknown!r:.80} is none of the model's labels ({listed}); rename it, or correct labels"
        )
    return np.array([known.index(name) for name in names], np.int64)


def own_runs(manifest: ModelManifest, variant: Variant, samples: SampleSet) -> Iterator[tuple[str, Array]]:
    """Yield the variant's own name of each input with its array [runs, …] in the variant's own layout and shape.

    Each run is one sample, with a dimension of rows if the manifest has one.
    """
    for spec in manifest.inputs:
        array, binding = samples.inputs[spec.name], variant.binding(spec.name)
        if manifest.batched:
            array = array[:, np.newaxis]
        if spec.layout and binding.layout and spec.layout != binding.layout:
            axes = [spec.layout.index(axis) for axis in binding.layout]
            array = array.transpose([0, *(axis + 1 for axis in axes)])
        if binding.shape is not None:  # one sample has one row
            array = array.reshape(len(array), *(1 if side == ROWS else side for side in binding.shape))
        yield binding.name, np.ascontiguousarray(array)


def joined_samples(parts: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the samples of several files behind each other. Raises ValueError if their sizes differ."""
    found = list(parts)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
