"""Verb `edge-gateway models quantize DIR`: variants in fewer bits, calibrated, measured, and kept if they are good.

`edge-gateway models golden DIR` makes no variant, only a golden set, also of a pipeline.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.common.domain.errors import ConfigurationError, RequestError, VariantError
from gateway.common.domain.manifest import ModelManifest, Tolerance
from gateway.common.domain.pipeline import PIPELINE, RUNTIME, Pipeline, keeps_state
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release
from gateway.common.files.durable import write_file
from gateway.common.terminal.tables import mark, print_facts, print_json, print_table, progress
from gateway.serving import assembly
from gateway.serving.cli.common import clean_up_on_signals, configured, warn
from gateway.serving.cli.pipelines import check_pipeline, releases_near, served_here, served_manifest
from gateway.serving.config import Config, site_profiles_folder, state_folder
from gateway.serving.domain.golden import GoldenSet, read_golden
from gateway.serving.hardware.processor import read_cpu
from gateway.serving.hardware.profiles import load_profiles, profiles_folder
from gateway.serving.hardware.tree import Tree
from gateway.serving.pipelines.golden import compared, golden_answers, judged, stored
from gateway.serving.store.library import scan_version
from gateway.serving.store.releases import MANIFEST, read_text
from gateway.workshop.making.data_files import data_files, read_samples
from gateway.workshop.making.input_scale import scaling_remarks
from gateway.workshop.making.manifest_edit import with_golden
from gateway.workshop.making.measures import SPARE_FACTOR, Quality, tolerances
from gateway.workshop.making.model_file import read_graph
from gateway.workshop.making.plot import Point, draw_svg, time_words
from gateway.workshop.making.quantize_files import check_tools, link_file, read_record
from gateway.workshop.making.quantize_plan import make_plan, wanted_by
from gateway.workshop.making.quantize_results import QuantizeResult, VariantResult
from gateway.workshop.making.quantize_run import GOLDEN, QuantizeJob, quantize_model, write_golden
from gateway.workshop.making.samples import SampleSet, divided, few_samples_remarks, read_remarks
from gateway.workshop.making.settings import CalibrationSettings

SETTINGS = CalibrationSettings()
PIPELINE_SETTINGS = replace(SETTINGS, calibration_rows=0, heldout_rows=32)
"""Limits of the samples of a pipeline: its golden set runs at each start."""


def command(arguments: argparse.Namespace) -> int:
    """Make the variants and print what they are worth; return 1 if none of them is good."""
    clean_up_on_signals()
    config = configured(arguments)
    folder, plot = Path(arguments.dir).resolve(), _plot_file(arguments.plot)
    is_golden = arguments.action == "golden"
    if is_golden and (folder / PIPELINE).is_file():
        return asyncio.run(_golden(config, folder, Path(arguments.calibration), as_json=arguments.json))
    manifest, record = _manifest(folder, config), read_record(folder)
    only = [name.strip() for text in arguments.only or () for name in text.split(",")]
    features = read_cpu(Tree(Path("/"), config.hardware)).features
    plan = make_plan(manifest, _wanted(config), only, record.made, features)
    if is_golden:
        plan = replace(plan, tasks=(), kept=manifest.variants, remarks=())
        if manifest.golden:
            record = replace(record, golden=(*record.golden, manifest.golden.sha256))
    check_tools(kind for kind, _ in plan.tasks)
    if not plan.tasks and not is_golden:
        raise ConfigurationError(f"there is nothing to make: {'; '.join(plan.remarks)}", file=str(folder))
    annotations = Path(arguments.annotations) if arguments.annotations else None
    samples = _read(Path(arguments.calibration), manifest, arguments.seed, annotations)
    calibration, heldout = (samples, samples) if is_golden else divided(samples, SETTINGS, arguments.seed)
    max_loss = manifest.max_accuracy_loss if arguments.max_loss is None else arguments.max_loss
    job = QuantizeJob(folder, manifest, plan, record, calibration, max_loss, arguments.seed)
    result = asyncio.run(_quantize(job, heldout, config))
    graph = read_graph(folder / plan.reference.artifacts[0].path, plan.reference.runtime)
    remarks = [
        *plan.remarks,
        *read_remarks(samples, SETTINGS),
        *scaling_remarks(graph, samples.inputs),
        *result.remarks,
    ]
    ranged = SETTINGS.few_calibration_rows if is_golden else len(calibration)
    remarks += few_samples_remarks(ranged, result.basis.samples, result.basis.name, SETTINGS)
    remarks += [f"{name} could not be made: {reason}" for name, reason in result.failures.items()]
    remarks += _never_chosen(result, manifest)
    if plot:
        plot.write_text(draw_svg(_points(result), f"{manifest.name} {manifest.version}", result.basis.described))
    _report(result, samples, calibration, remarks, Path(arguments.dir), as_json=arguments.json)
    return 0 if is_golden or any(each.is_kept for each in _new(result, plan.kept)) else 1


async def _golden(config: Config, folder: Path, data: Path, *, as_json: bool) -> int:
    """Write the golden set of a pipeline, of samples and its own answers. Raises ConfigurationError."""
    file = folder / PIPELINE
    text = read_text(file, config.library.manifest_limit_bytes)
    pipeline = read_pipeline(text, str(file))
    release = Release(pipeline.name, pipeline.version, folder, "new", pipeline=replace(pipeline, golden=None))
    surveyed = await assembly.survey(config)
    with assembly.opened(config, surveyed, state_folder(None), warn) as loader:
        releases, objective = await releases_near(config, release), config.selection.objective
        try:  # the check tries all variants: the best ones answer
            manifest_of = partial(served_manifest, loader, objective=objective)
            await check_pipeline(release, releases, manifest_of, config.pipelines)
            async with served_here(config, loader, release, releases) as (engine, _):
                manifest = compared(engine.describe(pipeline.name, pipeline.version))
                in_order = keeps_state(manifest)  # its rows are frames of one stream
                samples = read_samples(data, manifest, PIPELINE_SETTINGS, 0, lambda: None, in_order=in_order).inputs
                inputs = {name: stored(array) for name, array in samples.items()}
                most = config.limits.max_batch_rows
                answers = await golden_answers(manifest, engine.submit, inputs, most)
                again = await golden_answers(manifest, engine.submit, inputs, most)
        except (VariantError, RequestError) as error:
            raise ConfigurationError(f"has no golden set: {error}", file=str(file)) from error
    with TemporaryDirectory(prefix="edge-gateway-") as scratch:
        staged = Path(scratch)
        made = write_golden(GoldenSet(inputs, answers), manifest, staged, PIPELINE_SETTINGS)
        written = read_golden((staged / GOLDEN).read_bytes(), manifest, str(folder / GOLDEN))
        rows = len(next(iter(written.inputs.values())))
        given = pipeline.golden.tolerance if pipeline.golden else {}
        usual = tolerances({RUNTIME: [Quality(1.0, 1.0, Tolerance().mean_abs / SPARE_FACTOR)]}, rows)
        golden = replace(made, tolerance=given or usual)
        second = {name: array[:rows] for name, array in again.items()}
        found = judged(manifest, written, second, golden.tolerance.get(RUNTIME, Tolerance()))
        if not found.passed:
            raise ConfigurationError(f"has no golden set: asked twice, it {found.words}", file=str(file))
        edited = with_golden(text, golden)
        if not _reads_as(edited, replace(pipeline, golden=golden)):
            raise ConfigurationError("its tables cannot be edited; write [golden] as a table", file=str(file))
        link_file(staged / GOLDEN, folder / GOLDEN)
    write_file(file, edited.encode(), file.stat().st_mode & 0o777)
    if as_json:
        print_json({"folder": str(folder), "rows": rows, "golden": {"file": golden.file, "sha256": golden.sha256}})
    else:
        print_facts([("samples", str(rows)), ("written", str(file)), ("next", f"edge-gateway models check {folder}")])
    return 0


def _reads_as(edited: str, pipeline: Pipeline) -> bool:
    """Return True if a text is that of a pipeline. Of dotted keys it is not: [golden] is written twice then."""
    try:
        return replace(read_pipeline(edited, pipeline.file), text=pipeline.text) == pipeline
    except ConfigurationError:
        return False


def _plot_file(name: str | None) -> Path | None:
    if name is not None and not name.endswith(".svg"):
        raise ConfigurationError("--plot writes SVG; name a file that ends in .svg", file=name)
    return Path(name) if name else None


def _manifest(folder: Path, config: Config) -> ModelManifest:
    """Return the manifest of the version in `folder`. Raises ConfigurationError."""
    if not (folder / MANIFEST).is_file():
        problem = f"holds no {MANIFEST}; name a version's folder, or make one: edge-gateway models new FILE"
        if (folder / PIPELINE).is_file():
            problem = "is a pipeline: quantize its models, then make its golden set: edge-gateway models golden DIR"
        raise ConfigurationError(problem, file=str(folder))
    release = scan_version(folder, config.library)
    if release.manifest is None:
        raise ConfigurationError(release.problem)
    return release.manifest


def _wanted(config: Config) -> frozenset[tuple[str, str]]:
    own = site_profiles_folder(config)
    return wanted_by((*load_profiles(profiles_folder()), *(load_profiles(own) if own else ())))


def _read(data: Path, manifest: ModelManifest, seed: int, annotations: Path | None) -> SampleSet:
    with progress() as bar:
        task = bar.add_task("reading samples", total=len(data_files(data, SETTINGS)))
        return read_samples(data, manifest, SETTINGS, seed, lambda: bar.advance(task), annotations=annotations)


async def _quantize(job: QuantizeJob, heldout: SampleSet, config: Config) -> QuantizeResult:
    with progress() as bar:
        task = bar.add_task("quantizing", total=2 * len(job.plan.tasks) + len(job.plan.kept))

        def stage(text: str) -> None:
            bar.update(task, advance=1, description=text)

        return await quantize_model(job, heldout, SETTINGS, config.trial, stage)


def _new(result: QuantizeResult, own: Sequence[Any]) -> list[VariantResult]:
    names = {variant.name for variant in own}
    return [each for each in result.results if each.variant.name not in names]


def _never_chosen(result: QuantizeResult, manifest: ModelManifest) -> list[str]:
    """Return a remark on variants that a device will not choose, because `max_accuracy_loss` is smaller than here."""
    best = max((each.quality.accuracy for each in result.results if each.quality), default=0.0)
    limit = manifest.max_accuracy_loss
    lossy = [r.variant.name for r in result.results if r.is_kept and r.quality and best - r.quality.accuracy > limit]
    words = f"more is lost than max_accuracy_loss = {limit:g} of the manifest, which must be raised for it to serve"
    return [f"{', '.join(lossy)}: {words}"] if lossy else []


def _points(result: QuantizeResult) -> list[Point]:
    return [
        Point(r.variant.name, r.variant.runtime, r.p50_us, r.quality.accuracy, r.size_bytes, r.is_kept)
        for r in result.results
        if r.quality and r.p50_us
    ]


def _report(
    result: QuantizeResult,
    samples: SampleSet,
    calibration: SampleSet,
    remarks: Sequence[str],
    folder: Path,
    *,
    as_json: bool,
) -> None:
    if as_json:
        data = {"found": samples.found, "calibration": len(calibration), "heldout": result.basis.samples}
        variants = [_variant_json(each) for each in result.results]
        document: dict[str, Any] = {"accuracy_is": result.basis.name, "accuracy_words": result.basis.described}
        document |= {"reference": result.reference, "variants": variants}
        print_json({"folder": str(folder), "samples": data, **document, "remarks": list(remarks)})
        return
    best = max((each.quality.accuracy for each in result.results if each.quality), default=0.0)
    figures = list(dict.fromkeys(name for r in result.results if r.quality for name in r.quality.figures))
    print_table(
        ("variant", "accuracy", "loss", *figures, "run", "size", "kept", "note"),
        [_row(each, best, figures) for each in result.results],
    )
    print()
    facts = [("accuracy", result.basis.described)]
    ranged = "" if calibration is samples else f", ranges taken from {len(calibration)}"
    facts += [("samples", f"{samples.found} found{ranged}")]
    facts += [("written", str(folder / MANIFEST))]
    print_facts(facts)
    for remark in remarks:
        warn(remark)


def _row(each: VariantResult, best: float, figures: Sequence[str]) -> tuple[str, ...]:
    accuracy = f"{each.quality.accuracy:.4f}" if each.quality else ""
    loss = f"{best - each.quality.accuracy:.4f}" if each.quality else ""
    took = time_words(each.p50_us) if each.p50_us else ""
    others = [f"{each.quality.figures[name]:.4g}" if each.quality else "" for name in figures]
    return each.variant.name, accuracy, loss, *others, took, f"{each.size_bytes:,}", mark(each.is_kept), each.note


def _variant_json(each: VariantResult) -> dict[str, Any]:
    found = each.quality
    return {
        "name": each.variant.name,
        "runtime": each.variant.runtime,
        "precision": each.variant.precision,
        "accuracy": found.accuracy if found else None,
        "figures": {name: value if math.isfinite(value) else None for name, value in found.figures.items()}
        if found
        else {},
        "agreement": found.agreement if found else None,
        "mean_abs": found.mean_abs if found else None,
        "p50_us": each.p50_us,
        "bytes": each.size_bytes,
        "kept": each.is_kept,
        "note": each.note,
    }
