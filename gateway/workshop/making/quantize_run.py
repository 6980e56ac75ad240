"""Quantization of a release: variants are made, tried and measured on held-out samples; the good ones are kept."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import Golden, ModelManifest, Tolerance, Variant
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.tensor import Array, Tensors
from gateway.common.domain.verdict import SessionBudget, Verdict
from gateway.serving.domain.golden import GoldenSet, first_rows, read_golden
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.measure import answered
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import try_variant
from gateway.serving.store.references import read_artifact
from gateway.serving.store.releases import MANIFEST
from gateway.workshop.making.choices import VariantKind
from gateway.workshop.making.evaluation import Evaluation, make_evaluation
from gateway.workshop.making.manifest_edit import accuracy_note, edited
from gateway.workshop.making.measures import Quality, quality, tolerances
from gateway.workshop.making.quantize_files import (
    CACHE,
    FILES,
    QuantizeRecord,
    ReleaseEdit,
    ToolError,
    forget_others,
    link_file,
    make_variant,
    publish,
    scratch,
    store_runs,
    variant_key,
)
from gateway.workshop.making.quantize_plan import QuantizePlan
from gateway.workshop.making.quantize_results import QuantizeResult, VariantResult, decide
from gateway.workshop.making.quantizer_child import QuantizerJob
from gateway.workshop.making.samples import SampleSet
from gateway.workshop.making.settings import CalibrationSettings

GOLDEN = "golden.npz"


def author_golden(manifest: ModelManifest, made: Collection[str]) -> Golden | None:
    """Return the golden set of the author; None if there is none, or if it is one of those that were `made` before."""
    golden = manifest.golden
    return golden if golden is not None and golden.sha256 not in made else None


def write_golden(golden: GoldenSet, manifest: ModelManifest, folder: Path, settings: CalibrationSettings) -> Golden:
    """Write the first rows of a golden set to `folder`. Raises OSError."""
    rows = golden_rows(golden, settings)
    part = first_rows(golden, manifest, rows)
    content = io.BytesIO()
    arrays: dict[str, Array] = {f"input.{name}": array for name, array in part.inputs.items()}
    arrays |= {f"output.{name}": array for name, array in part.outputs.items()}
    arrays |= {} if golden.label is None else {"label": golden.label[:rows]}
    stored = {key: array.astype("S") if array.dtype.hasobject else array for key, array in arrays.items()}
    np.savez_compressed(content, **stored)  # type: ignore[arg-type]
    (folder / GOLDEN).write_bytes(content.getvalue())
    return Golden(GOLDEN, hashlib.sha256(content.getvalue()).hexdigest())


def golden_rows(golden: GoldenSet, settings: CalibrationSettings) -> int:
    """Return how many rows a golden set keeps: by their number, and by their size."""
    arrays = [*golden.inputs.values(), *golden.outputs.values()]
    row_bytes = sum(array.nbytes // max(1, len(array)) for array in arrays)
    rows = min(settings.golden_rows, settings.golden_bytes // max(1, row_bytes), len(arrays[0]))
    return max(1, rows)


ANY = Tolerance(agreement=0.0, mean_abs=1e9)
"""Tolerance of trials here: they measure the time of a run, and quality is decided afterwards."""
Stage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class QuantizeJob:
    """Release to quantize: its folder and manifest, what to make, and the calibration samples."""

    folder: Path
    manifest: ModelManifest
    plan: QuantizePlan
    record: QuantizeRecord
    calibration: SampleSet
    max_loss: float
    seed: int


class QuantizeRun:
    """Run of one job; `staged` is a folder with the files of all variants."""

    def __init__(
        self, job: QuantizeJob, settings: CalibrationSettings, trial: TrialSettings, staged: Path, stage: Stage
    ) -> None:
        self._job, self._settings, self._trial, self._staged, self._stage = job, settings, trial, staged, stage
        self._reference = job.plan.reference
        self._notes: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._cached: list[str] = []
        self._remarks: list[str] = []

    async def run(self, heldout: SampleSet) -> QuantizeResult:
        """Make, try and measure the variants, and replace the manifest.

        Raises ConfigurationError if the reference does not run here, OSError.
        """
        job = self._job
        own = list(job.plan.kept)
        made = [each for kind, source in job.plan.tasks if (each := await self._made(kind, source)) is not None]
        for variant in own:  # afterwards: onnx refuses external data that have several links
            for artifact in variant.artifacts:
                link_file(job.folder / artifact.path, self._staged / artifact.path)
        authors = author_golden(job.manifest, job.record.golden)
        measured_on = None if authors and heldout.truth is None else heldout
        golden = await self._golden(heldout) if measured_on or authors is None else self._authors(authors)
        content = authors or write_golden(golden, job.manifest, self._staged, self._settings)
        if authors:
            link_file(job.folder / authors.file, self._staged / authors.file)
        evaluation, remarks = self._evaluation(golden, measured_on)
        measured = [await self._measured(variant, evaluation, content) for variant in (*own, *made)]
        sources = {kind.name: source for kind, source in job.plan.tasks}
        results = decide(measured, {each.name: sources[each.name] for each in made}, job.max_loss)
        manifest = self._manifest(results, content, golden_rows(golden, self._settings))
        notes = {f"variant.{each.variant.name}.accuracy": accuracy_note(evaluation.basis) for each in results}
        if not job.plan.tasks:  # accuracies are what their author measured
            manifest, notes = replace(manifest, variants=job.manifest.variants), {}
        self._publish(manifest, notes, made)
        basis, failures = evaluation.basis, self._failures
        return QuantizeResult(
            tuple(results),
            self._reference.name,
            basis,
            failures,
            manifest,
            (*heldout.remarks, *remarks, *self._remarks),
        )

    async def _made(self, kind: VariantKind, source: Variant) -> Variant | None:
        """Return a variant whose files are in the folder of this run; None if its tool failed."""
        job = self._job
        self._stage(f"making {kind.name}")
        key = variant_key(kind, source, job.manifest, job.calibration, job.seed)
        place = job.folder / CACHE / f"{kind.name}-{key[:16]}"
        runs = store_runs(job.manifest, source, job.calibration, self._staged / f"runs-{source.name}")
        file = str(job.folder / source.artifacts[0].path)
        try:
            was_there = await make_variant(QuantizerJob(kind.name, file, FILES[kind.runtime], runs, job.seed), place)
        except ToolError as error:
            self._failures[kind.name] = str(error)
            return None
        self._cached.append(place.name)
        self._notes[kind.name] = "made before from the same data" if was_there else f"made from {source.name}"
        names = sorted((file.name for file in place.iterdir()), key=lambda name: name != FILES[kind.runtime])
        for name in names:
            link_file(place / name, self._staged / kind.name / name)
        artifacts = tuple(read_artifact(self._staged, f"{kind.name}/{name}") for name in names)
        accelerators = RUNTIMES[kind.runtime].accelerators if not kind.needs else (CPU,)
        return Variant(
            kind.name, kind.runtime, kind.precision, artifacts, accelerators, needs=kind.needs, bind=source.bind
        )

    def _authors(self, golden: Golden) -> GoldenSet:
        """Return the author's own golden set."""
        file = self._job.folder / golden.file
        return read_golden(file.read_bytes(), self._job.manifest, str(file))

    async def _golden(self, samples: SampleSet) -> GoldenSet:
        """Return samples with the reference's answers."""
        manifest = replace(self._job.manifest, golden=None)
        verdict = await self._tried(manifest, self._reference)
        if not verdict.passed:
            raise ConfigurationError(f"does not run here: {verdict.reason}", file=self._reference.artifacts[0].path)
        inputs = GoldenSet(samples.inputs, {}, samples.labels)
        try:
            answers = self._answers(manifest, self._reference, inputs)
        except VariantError as error:
            problem = f"does not run on the samples: {error}"
            raise ConfigurationError(problem, file=self._reference.artifacts[0].path) from error
        return GoldenSet(samples.inputs, answers, samples.labels)

    def _evaluation(self, golden: GoldenSet, samples: SampleSet | None) -> tuple[Evaluation, list[str]]:
        try:
            return make_evaluation(self._job.manifest, golden, samples, self._reference.name)
        except VariantError as error:
            problem = f"gives outputs that its task does not know: {error}; correct [task] in the manifest"
            raise ConfigurationError(problem, file=self._reference.artifacts[0].path) from error

    async def _measured(self, variant: Variant, evaluation: Evaluation, content: Golden) -> VariantResult:
        """Return the quality and the time of a variant. A variant runs in this process after a trial in a child."""
        self._stage(f"measuring {variant.name}")
        manifest = replace(self._job.manifest, golden=replace(content, tolerance=dict.fromkeys(RUNTIMES, ANY)))
        verdict = await self._tried(manifest, variant)
        if not verdict.passed:
            return VariantResult(variant, None, None, False, f"does not run here: {verdict.reason}")
        p50_us = verdict.measured.run_us if verdict.measured else None
        if verdict.measured and (disturbed := verdict.measured.disturbed):
            self._remarks.append(f"{variant.name}: measured while the machine was busy ({disturbed})")
        try:
            answers = self._answers(manifest, variant, evaluation.golden)
            found, kept = evaluation.quality(answers), self._golden_quality(evaluation.golden, answers)
        except VariantError as error:
            return VariantResult(variant, None, p50_us, False, f"does not run here: {error}")
        note = self._notes.get(variant.name, "the release's own")
        return VariantResult(variant, found, p50_us, True, note, kept)

    def _golden_quality(self, golden: GoldenSet, answers: Tensors) -> Quality:
        """Return the quality on those samples that the golden set keeps."""
        part = first_rows(golden, self._job.manifest, golden_rows(golden, self._settings))
        return quality(part, {name: answers[name][: len(array)] for name, array in part.outputs.items()})

    async def _tried(self, manifest: ModelManifest, variant: Variant) -> Verdict:
        budget = SessionBudget(threads=os.cpu_count() or 1)
        return await try_variant(manifest, variant, self._staged, budget, self._trial)

    def _answers(self, manifest: ModelManifest, variant: Variant, golden: GoldenSet) -> dict[str, Array]:
        """Return a variant's finished outputs for the inputs of a golden set. Raises VariantError."""
        session = get_runtime(variant.runtime).open(manifest, variant, self._staged, SessionBudget())
        try:
            return answered(manifest, session, golden, self._settings.work_rows)
        finally:
            session.close()

    def _manifest(self, results: Sequence[VariantResult], content: Golden, rows: int) -> ModelManifest:
        """Return the manifest with the kept variants, their accuracy, and the golden set with its tolerances."""
        kept = [each for each in results if each.is_kept]
        variants = tuple(
            replace(each.variant, accuracy=round(each.quality.accuracy, 4)) if each.quality else each.variant
            for each in kept
        )
        if content == self._job.manifest.golden:
            return replace(self._job.manifest, variants=variants)
        by_runtime: dict[str, list[Quality]] = {}
        for each in kept:
            if each.golden:
                by_runtime.setdefault(each.variant.runtime, []).append(each.golden)
        return replace(
            self._job.manifest, variants=variants, golden=replace(content, tolerance=tolerances(by_runtime, rows))
        )

    def _publish(self, manifest: ModelManifest, notes: dict[str, str], made: Iterable[Variant]) -> None:
        job = self._job
        text = edited((job.folder / MANIFEST).read_text(), manifest, notes, str(job.folder / MANIFEST))
        names = {variant.name for variant in manifest.variants}
        new = [variant for variant in made if variant.name in names]
        paths = [artifact.path for variant in new for artifact in variant.artifacts]
        golden = manifest.golden.sha256 if manifest.golden else ""
        is_ours = golden != (job.manifest.golden.sha256 if job.manifest.golden else "") or golden in job.record.golden
        record = QuantizeRecord(
            tuple({*job.record.golden, golden}) if is_ours else job.record.golden,
            tuple(sorted({variant.name for variant in new} | (set(job.record.made) & names))),
        )
        dropped = tuple(name for name in job.record.made if name not in names)
        paths += [GOLDEN] if is_ours else []
        publish(job.folder, ReleaseEdit(self._staged, tuple(paths), text, record, dropped))
        if job.plan.tasks:
            forget_others(job.folder, [*self._cached, self._staged.name])


async def quantize_model(
    job: QuantizeJob, heldout: SampleSet, settings: CalibrationSettings, trial: TrialSettings, stage: Stage
) -> QuantizeResult:
    """Make, try and measure the variants of a job, and replace the release's manifest.

    Variants that are ready when this is interrupted are kept for the next time. Raises ConfigurationError if the
    reference does not run here or the manifest cannot be edited, OSError.
    """
    with scratch(job.folder) as staged:
        return await QuantizeRun(job, settings, trial, staged, stage).run(heldout)
