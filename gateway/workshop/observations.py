"""Options of a task and postprocessing that the scores of some runs show. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.domain.manifest import ModelManifest, TensorSpec
from gateway.domain.tensor import Array
from gateway.workshop.tensor_guesses import guess_postprocess, guess_threshold
from gateway.workshop.wishes import ASSUMED, INFERRED


@dataclass(frozen=True, slots=True)
class Observation:
    """Manifest with what was seen, options of its task, and the comments on both."""

    manifest: ModelManifest
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def observed_scores(manifest: ModelManifest, spec: TensorSpec, scores: Array) -> Observation:
    """Return what `scores` of the output `spec` show: classifiers get a postprocess, other tasks an option.

    Of a detector they are the numbers of classes.
    """
    if manifest.task == "object-detection":
        return _first_class(manifest, scores)
    if manifest.task == "semantic-segmentation":
        return _one_class(manifest, spec, scores)
    postprocess, why = guess_postprocess(scores)
    if manifest.task == "text-recognition":
        options = {"activation": postprocess} if postprocess else {}
        return Observation(manifest, options, {"task.activation": f"{INFERRED}: {why}"})
    outputs = tuple(replace(each, postprocess=postprocess) if each is spec else each for each in manifest.outputs)
    notes = {f"output.{spec.name}.postprocess": f"{INFERRED}: {why}"}
    return Observation(replace(manifest, outputs=outputs), {}, notes)


def _first_class(manifest: ModelManifest, numbers: Array) -> Observation:
    """Return that classes are numbered from 1 if no number is 0: TensorFlow's models keep 0 for the background."""
    if not numbers.size or numbers.min() < 1:
        return Observation(manifest)
    is_last = numbers.max() == len(manifest.labels)
    why = f"classes of runs have the numbers {numbers.min():g} to {numbers.max():g}"
    return Observation(manifest, {"first_class": 1}, {"task.first_class": f"{INFERRED if is_last else ASSUMED}: {why}"})


def _one_class(manifest: ModelManifest, spec: TensorSpec, scores: Array) -> Observation:
    """Return the threshold of a map with one channel; a map with several has a best class."""
    if "C" not in spec.layout or spec.shape[spec.layout.index("C")] != 1:
        return Observation(manifest)
    threshold, why = guess_threshold(scores)
    return Observation(manifest, {"threshold": threshold}, {"task.threshold": f"{ASSUMED}: {why}"})
