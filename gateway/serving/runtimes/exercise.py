"""Exercise of a model without a golden set: generated inputs are tried until one is accepted. Runs in the child."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest, fits
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.runtimes.generate import InputKind, generated, samples
from gateway.serving.runtimes.settings import TrialSettings

CORRECT_SHAPE = "correct the shape in the manifest"
"""Remedy for an output whose declared shape is not that of its answers."""
Run = Callable[[Tensors], dict[str, Array]]
Begin = Callable[[str, str], None]
"""Callback before a generated input is run: its description and its name."""


@dataclass(frozen=True, slots=True)
class Exercised:
    """Result of an exercise: the number of the accepted sample, or None with the last refusal; and remarks."""

    index: int | None
    sample: InputKind | None
    refusal: str
    tried: int
    remarks: tuple[str, ...] = ()


def exercise(
    manifest: ModelManifest, run: Run, settings: TrialSettings, begin: Begin, left_out: Collection[str] = ()
) -> Exercised:
    """Try samples in order, except those in `left_out`, until one is accepted.

    The limits are `part_s` seconds and `exercise_samples` samples.

    If any were left out because they did not end, the last sample comes first: zeros in the smallest sizes.
    Raises VariantError if an answer contradicts a manifest that an author wrote.
    """
    end_s, refusal, tried = time.monotonic() + settings.part_s, "", 0
    numbered = list(enumerate(samples(manifest)))
    ordered = numbered[-1:] + numbered[:-1] if left_out else numbered
    for index, sample in ordered[: settings.exercise_samples]:
        if f"sample {index}" in left_out:
            continue
        words = f"running it on generated inputs, which a golden set would replace ({_words(sample)})"
        begin(words, f"sample {index}")
        tried += 1
        try:
            inputs = generated(manifest, sample)
            first, second = run(inputs), run(inputs)
        except (VariantError, MemoryError) as error:
            refusal = str(error)
        else:
            found = [
                f"output {spec.name!r} has shape {list(first[spec.name].shape)}, but {list(spec.shape)} is declared"
                for spec in manifest.outputs
                if not fits(first[spec.name].shape, spec.shape)
            ]
            if found and not manifest.inspected:
                raise VariantError(found[0], remedy=CORRECT_SHAPE)
            remarks = (*found, *_noticed(first, second))
            return Exercised(index, sample, "", tried, remarks)
        if time.monotonic() > end_s:
            break
    return Exercised(None, None, refusal, tried)


def _noticed(first: Tensors, second: Tensors) -> list[str]:
    remarks = []
    for name, answer in first.items():
        if answer.dtype.kind == "f" and not np.isfinite(answer).all():
            remarks.append(f"output {name!r} holds NaN or infinity for generated inputs")
        elif not np.array_equal(answer, second[name], equal_nan=answer.dtype.kind == "f"):
            remarks.append(f"output {name!r} differs between two runs on the same inputs")
    return remarks


def _words(sample: InputKind) -> str:
    kinds = "zeros" if sample.zeros else sample.integers
    return f"open sizes {sample.first}, {sample.size} and {sample.others}, {kinds}, {sample.texts}"
