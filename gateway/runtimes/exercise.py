"""Exercise of a model without a golden set: generated inputs are tried until one is accepted. Runs in the child."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from gateway.domain.errors import VariantError
from gateway.domain.manifest import ModelManifest, fits
from gateway.domain.tensor import Array, Tensors
from gateway.runtimes.generate import Sample, generated, samples
from gateway.runtimes.settings import TrialSettings

Run = Callable[[Tensors], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Exercised:
    """Outcome: the number of the accepted sample, or None and the reason of the last refusal; what was noticed."""

    index: int | None
    sample: Sample | None
    refusal: str
    tried: int
    remarks: tuple[str, ...] = ()


def exercise(manifest: ModelManifest, run: Run, settings: TrialSettings, enter: Callable[[str], None]) -> Exercised:
    """Try samples in order, for `exercise_s` seconds and `exercise_samples` samples at most.

    Raises VariantError where an answer contradicts a manifest that an author wrote.
    """
    end_s, refusal, tried = time.monotonic() + settings.exercise_s, "", 0
    for index, sample in enumerate(islice(samples(manifest), settings.exercise_samples)):
        enter(f"running it on generated inputs, which a golden set would replace ({_words(sample)})")
        tried += 1
        try:
            inputs = generated(manifest, sample)
            first, second = run(inputs), run(inputs)
        except (VariantError, MemoryError) as error:
            refusal = str(error)
        else:
            remarks = (*_misfits(manifest, first), *_noticed(first, second))
            return Exercised(index, sample, "", tried, remarks)
        if time.monotonic() > end_s:
            break
    return Exercised(None, None, refusal, tried)


def _misfits(manifest: ModelManifest, answers: Tensors) -> list[str]:
    """Return a remark for each output whose shape the model file does not announce."""
    found = [
        f"output {spec.name!r} has shape {list(answers[spec.name].shape)}, but {list(spec.shape)} is declared"
        for spec in manifest.outputs
        if not fits(answers[spec.name].shape, spec.shape)
    ]
    if found and not manifest.inspected:
        raise VariantError(found[0], remedy="correct the shape in the manifest")
    return found


def _noticed(first: Tensors, second: Tensors) -> list[str]:
    remarks = []
    for name, answer in first.items():
        if answer.dtype.kind == "f" and not np.isfinite(answer).all():
            remarks.append(f"output {name!r} holds NaN or infinity for generated inputs")
        elif not np.array_equal(answer, second[name], equal_nan=answer.dtype.kind == "f"):
            remarks.append(f"output {name!r} differs between two runs on the same inputs")
    return remarks


def _words(sample: Sample) -> str:
    return f"open sizes {sample.first}, {sample.size} and {sample.others}, {sample.integers}, {sample.texts}"
