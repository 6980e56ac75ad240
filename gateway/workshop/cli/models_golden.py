"""Verb `edge-gateway models golden DIR`: the golden set of a model or a pipeline, of samples and its own answers."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import ConfigurationError, RequestError, VariantError
from gateway.common.domain.manifest import Golden, ModelManifest, Tolerance
from gateway.common.domain.pipeline import IMAGE, PIPELINE, RUNTIME, Pipeline, read_pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Array, Tensors
from gateway.common.files.durable import write_file
from gateway.common.terminal.tables import print_facts, print_json
from gateway.serving import assembly
from gateway.serving.cli.common import clean_up_on_signals, configured, warn
from gateway.serving.cli.pipelines import check_pipeline, releases_near, served_here, served_manifest
from gateway.serving.config import Config, state_folder
from gateway.serving.domain.golden import GoldenSet, read_golden
from gateway.serving.pipelines.golden import compared, golden_answers
from gateway.serving.store.releases import read_text
from gateway.workshop.cli import models_quantize
from gateway.workshop.making.bounded_files import read_bounded
from gateway.workshop.making.data_files import PICTURES, data_files, read_samples
from gateway.workshop.making.manifest_edit import with_golden
from gateway.workshop.making.measures import Quality, tolerances
from gateway.workshop.making.quantize_files import link_file
from gateway.workshop.making.quantize_run import GOLDEN, write_golden
from gateway.workshop.making.settings import CalibrationSettings

SETTINGS = CalibrationSettings(golden_rows=32)
"""Limits of the samples of a pipeline. It runs them at each start, so that they are fewer than those of a model."""


def command(arguments: argparse.Namespace) -> int:
    """Write the golden set, and name it in the manifest or in the pipeline."""
    folder = Path(arguments.dir).resolve()
    if not (folder / PIPELINE).is_file():
        return models_quantize.command(arguments)
    clean_up_on_signals()
    config = configured(arguments)
    file = folder / PIPELINE
    text = read_text(file, config.library.manifest_limit_bytes)
    pipeline = read_pipeline(text, str(file))
    if arguments.annotations:
        raise ConfigurationError("is for models: the answers of a pipeline are its truth", key="--annotations")
    golden, rows = asyncio.run(_make(config, pipeline, folder, Path(arguments.calibration), arguments.seed))
    edited = with_golden(text, golden)
    if replace(read_pipeline(edited, str(file)), text=text) != replace(pipeline, golden=golden):
        raise ConfigurationError("its tables cannot be edited; write [golden] as a table of its own", file=str(file))
    write_file(file, edited.encode(), file.stat().st_mode & 0o777)
    if arguments.json:
        print_json({"folder": str(folder), "rows": rows, "golden": {"file": golden.file, "sha256": golden.sha256}})
    else:
        print_facts(
            [
                ("golden set", f"{folder / golden.file}, {rows} samples"),
                ("written", str(file)),
                ("next", f"edge-gateway models check {folder}"),
            ]
        )
    return 0


async def _make(config: Config, pipeline: Pipeline, folder: Path, data: Path, seed: int) -> tuple[Golden, int]:
    """Write the golden set of a pipeline; return it, and the number of its samples. Raises ConfigurationError."""
    release = Release(pipeline.name, pipeline.version, folder, "new", pipeline=replace(pipeline, golden=None))
    surveyed = await assembly.survey(config)
    with assembly.opened(config, surveyed, state_folder(None), warn) as loader:
        releases = await releases_near(config, release)

        async def manifest_of(model: Release) -> ModelManifest:
            return await served_manifest(loader, model, config.selection.objective)

        try:
            await check_pipeline(release, releases, manifest_of)  # tries all variants: the best ones answer
            async with served_here(config, loader, release, releases) as (engine, _):
                manifest = engine.describe(pipeline.name, pipeline.version)
                inputs, whole = _inputs(data, pipeline, manifest, seed), compared(manifest)
                answers = await golden_answers(whole, engine.submit, inputs, config.limits.max_batch_rows)
        except (VariantError, RequestError) as error:
            raise ConfigurationError(f"has no golden set: {error}", file=pipeline.file) from error
    with tempfile.TemporaryDirectory(prefix="edge-gateway-") as scratch:
        made = write_golden(GoldenSet(inputs, answers), whole, Path(scratch), SETTINGS)
        written = read_golden((Path(scratch) / GOLDEN).read_bytes(), whole, str(folder / GOLDEN))
        link_file(Path(scratch) / GOLDEN, folder / GOLDEN)
    rows = len(next(iter(written.inputs.values())))
    tolerance = pipeline.golden.tolerance if pipeline.golden else {RUNTIME: _tolerance(written.outputs, rows)}
    return replace(made, tolerance=tolerance), rows


def _tolerance(answers: Tensors, rows: int) -> Tolerance:
    """Return what other variants of its models must reach: one sample may differ, and numbers by a hundredth."""
    agreement = tolerances({RUNTIME: [Quality(1.0, 1.0, 0.0)]}, rows)[RUNTIME].agreement
    numbers = [array[np.isfinite(array)] for array in answers.values() if array.dtype.kind in "fiu"]
    means = [float(np.abs(each.astype(np.float64)).mean()) for each in numbers if each.size]
    return Tolerance(agreement, max(Tolerance().mean_abs, round(max(means, default=0.0) / 100, 3)))


def _inputs(data: Path, pipeline: Pipeline, manifest: ModelManifest, seed: int) -> dict[str, Array]:
    """Return samples as a golden set has them: images and texts as bytes. Raises ConfigurationError."""
    files, random = data_files(data, SETTINGS), np.random.default_rng(seed)
    if files[0].path.suffix.lower() in PICTURES:
        if [each.kind for each in pipeline.inputs] != [IMAGE]:
            problem = f"holds images, but the pipeline takes {', '.join(each.name for each in pipeline.inputs)}"
            raise ConfigurationError(f"{problem}; give .npz with an array for each", file=str(data))
        chosen = np.sort(random.permutation(len(files))[: SETTINGS.golden_rows])
        try:
            contents = [read_bounded(files[place].path, SETTINGS.file_limit_bytes) for place in chosen]
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot be read: {error}", file=str(data)) from error
        return {pipeline.inputs[0].name: np.array(contents)}
    samples = read_samples(data, manifest, SETTINGS, seed, lambda: None)
    samples = samples.taken(np.sort(random.permutation(len(samples))[: SETTINGS.golden_rows]))
    return {name: _stored(array) if array.dtype == object else array for name, array in samples.inputs.items()}


def _stored(array: Array) -> Array:
    texts = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
    return np.array(texts, "S").reshape(array.shape)
