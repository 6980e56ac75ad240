"""Version of a model written from a draft: files are copied, tried, and described by a manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.manifest import ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Array
from gateway.common.domain.verdict import SessionBudget, Verdict
from gateway.common.store.settings import LibrarySettings
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.exercise import CORRECT_SHAPE
from gateway.serving.runtimes.generate import generated, samples
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import try_variant
from gateway.serving.store.references import read_artifact
from gateway.serving.store.releases import MANIFEST, read_version
from gateway.serving.store.staging import copy_file, staged_folder, write_text
from gateway.workshop.making.draft import ManifestDraft, with_task_table
from gateway.workshop.making.manifest_text import manifest_text
from gateway.workshop.making.model_file import ModelFile
from gateway.workshop.making.tensor_guesses import guess_postprocess, guess_rows, guess_threshold, rows_first
from gateway.workshop.making.wishes import ASSUMED, INFERRED

OBSERVED_ROWS = 4
"""Rows that are run to see what the scores of a model are."""
OBSERVED_TASKS = ("text-recognition", "semantic-segmentation")
"""Tasks other than classification whose options depend on the kind of scores."""
Stage = Callable[[str], None]
"""Function that is told what is done now."""


@dataclass(frozen=True, slots=True)
class CreatedModel:
    """Version that was written, with the result of the trial of each variant, by name.

    `lacking` says what its task lacks to give results; "": it gives them, or there is no task.
    """

    folder: Path
    manifest: ModelManifest
    verdicts: dict[str, Verdict]
    notes: dict[str, str]
    lacking: str


async def create_model(
    draft: ManifestDraft, models: Path, trial: TrialSettings, library: LibrarySettings, stage: Stage
) -> CreatedModel:
    """Write the version that `draft` describes to the model directory `models`, or nothing.

    Raises ConfigurationError if the version exists, or if a variant does not run here; OSError.
    """
    target = models / draft.manifest.name / draft.manifest.version
    with staged_folder(target) as folder:
        check_space(draft.files, folder)
        pairs = zip(draft.manifest.variants, draft.files, strict=True)
        manifest = replace(draft.manifest, variants=tuple(_copied(*pair, folder, stage) for pair in pairs))
        verdicts = {each.name: await _tried(manifest, each, folder, trial, stage) for each in manifest.variants}
        manifest, notes, lacking = _observed(manifest, draft, folder, verdicts)
        write_text(manifest_text(manifest, notes), folder / MANIFEST)
        if problem := read_version(manifest.name, manifest.version, folder, library).problem:
            raise ConfigurationError(problem, file=str(target))
    return CreatedModel(target, manifest, verdicts, notes, lacking)


def check_space(files: Sequence[ModelFile], folder: Path) -> None:
    """Check that the disk of `folder` has room for copies. Raises ConfigurationError."""
    paths = [file.path.parent / name for file in files for name in (file.path.name, *file.others)]
    paths += [path for file in files for path in file.adapters]
    needed, free = sum(path.stat().st_size for path in paths), shutil.disk_usage(folder).free
    if needed > free:
        problem = f"the files have {needed} bytes, but the disk has {free} left; free space, or name another --models"
        raise ConfigurationError(problem, file=str(folder.parent))


def _copied(variant: Variant, file: ModelFile, folder: Path, stage: Stage) -> Variant:
    stage(f"copying {file.path.name}")
    copies = {f"{variant.name}/{name}": file.path.parent / name for name in (file.path.name, *file.others)}
    adapters = {path.stem: f"{variant.name}/adapters/{path.name}" for path in file.adapters}
    copies |= dict(zip(adapters.values(), file.adapters, strict=True))
    for name, path in copies.items():
        copy_file(path, folder / name)
    artifacts = tuple(read_artifact(folder, name) for name in copies)
    return replace(variant, artifacts=artifacts, adapters=adapters)


async def _tried(
    manifest: ModelManifest, variant: Variant, folder: Path, trial: TrialSettings, stage: Stage
) -> Verdict:
    """Return the verdict of a trial in a child process. Raises ConfigurationError if the variant fails it."""
    stage(f"trying {variant.name}")
    budget = SessionBudget(threads=os.cpu_count() or 1)
    verdict = await try_variant(manifest, variant, folder, budget, trial)
    if not verdict.passed:
        problem = f"{_failure(verdict.reason)}; nothing was written"
        raise ConfigurationError(problem, file=variant.artifacts[0].path)
    return verdict


def _failure(reason: str) -> str:
    """Return what a trial found; there is no manifest yet in which an author could correct a shape."""
    if not reason.endswith(CORRECT_SHAPE):
        return f"does not run here: {reason}"
    found = reason.removesuffix(CORRECT_SHAPE).rstrip("; ")
    return f"declares other shapes than its answers have: {found}; export it again, or serve the file bare"


def _observed(
    manifest: ModelManifest, draft: ManifestDraft, folder: Path, verdicts: dict[str, Verdict]
) -> tuple[ModelManifest, dict[str, str], str]:
    """Return the manifest and its comments with what runs showed: rows that affect each other, kind of scores.

    The text says what the table of the task lacks; "": it is complete, or there is no task.
    """
    notes, seen = dict(draft.notes), dict[str, Any]()
    if reason := _dependence(draft, verdicts):
        notes["batch"] = f"{INFERRED}: {reason}"
        manifest = replace(manifest, batch=False)
    spec, sample = _scores(manifest, draft), verdicts[manifest.variants[0].name].sample
    if spec is not None and sample is not None:
        observation = observed_scores(manifest, spec, _answers(manifest, folder, sample, spec))
        manifest, seen = observation.manifest, dict(observation.options)
        notes |= observation.notes
    manifest, lacking = with_task_table(manifest, draft.proposal, seen)
    if lacking:
        notes["task"] = f"{notes['task']}\n{tensors_only(lacking)}"
    return manifest, notes, lacking


def tensors_only(lacking: str) -> str:
    """Return what follows for the author from a table `[task]` that lacks something."""
    remedy = "name it by --set KEY=VALUE, or write the table [task] (docs/pages/reference/tasks.md)"
    return f"only tensors are served: {lacking}; {remedy}"


def _dependence(draft: ManifestDraft, verdicts: dict[str, Verdict]) -> str:
    """Return why the first dimension cannot count rows, or "".

    Files with one row run several one after the other, so that these cannot affect each other. Rows that merely were
    not proved independent count as rows: the gateway joins nothing then.
    """
    if not all(guess_rows(rows_first(file.signature)).open for file in draft.files):
        return ""
    proofs = [verdict.joining for verdict in verdicts.values() if verdict.joining is not None]
    return next((each.difference for each in proofs if each.difference), "")


def _scores(manifest: ModelManifest, draft: ManifestDraft) -> TensorSpec | None:
    """Return the output with scores, or numbers of classes, whose kind a run shows, or None."""
    if manifest.task == "object-detection":
        return manifest.output(str(draft.proposal.options.get("classes_output", "")))
    if not manifest.task.endswith("classification") and manifest.task not in OBSERVED_TASKS:
        return None
    if name := str(draft.proposal.options.get("scores", "")):
        return manifest.output(name)
    floats = [spec for spec in manifest.outputs if spec.datatype.dtype.kind == "f"]
    return floats[0] if len(floats) == 1 else None


def _answers(manifest: ModelManifest, folder: Path, sample: int, spec: TensorSpec) -> Array:
    """Run rows like the `sample` that the trial accepted, and return their scores."""
    kind, variant = next(islice(samples(manifest), sample, sample + 1)), manifest.variants[0]
    try:
        session = get_runtime(variant.runtime).open(manifest, variant, folder, SessionBudget())
        try:
            rows = [session.run(generated(manifest, kind, row))[spec.name].copy() for row in range(OBSERVED_ROWS)]
        finally:
            session.close()
    except VariantError as error:
        raise ConfigurationError(str(error), file=variant.artifacts[0].path) from error
    return np.concatenate(rows, axis=0)


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
