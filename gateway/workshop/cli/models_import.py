"""Action `edge-gateway models import SOURCE`: releases from models that were laid out for other servers and tools."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import mark, print_json, print_table, progress
from gateway.serving.cli.common import configured
from gateway.serving.config import Config, own_models_folder
from gateway.workshop.importing.collect import ImportSettings, collect, source_folder
from gateway.workshop.importing.imported import (
    ImportedModel,
    ImportedPipeline,
    ImportedSource,
    SkippedModel,
    check_name,
)
from gateway.workshop.importing.release_writer import check_names, pipeline_text, settled, write_releases
from gateway.workshop.importing.source import Documents
from gateway.workshop.importing.sources import choose_source

SETTINGS = ImportSettings()


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Result of an import: the kind of the source, its models, and the folders that were written."""

    kind: str
    source: ImportedSource
    written: Sequence[Path] = ()


def command(arguments: argparse.Namespace) -> int:
    """Import a source; return 1 if models are skipped without --skip, or none is left."""
    if arguments.dir is None:
        raise ConfigurationError("models import needs the source: edge-gateway models import SOURCE --into DIR")
    config = configured(arguments)
    path, into = Path(arguments.dir), (Path(arguments.into) if arguments.into else own_models_folder(config))
    documents = asyncio.run(_collected(path, config))
    kind = choose_source(documents, arguments.kind or "")
    source = _checked(renamed(kind.read(documents), arguments.name, arguments.version))
    check_names(source.releases, into)
    written = [] if arguments.dry_run else write_releases(source.releases, source_folder(path), into, str(path))
    report = ImportReport(kind.name, source, written)
    if arguments.json:
        print_json(_json(report))
    else:
        print(f"source: {report.kind}\n")
        rows = [
            (model.name, model.version, finding.outcome.value, finding.what, finding.text)
            for model in report.source.releases
            for finding in model.findings
        ]
        rows += [(each.name, each.version, f"{mark(False)} skipped", "", each.why) for each in report.source.skipped]
        print_table(("model", "version", "result", "what", "value or remedy"), rows)
        print()
        for folder in report.written:
            print(f"written: {folder}")
        print(f"next: edge-gateway models check {into}" if report.written else "nothing was written")
    return 0 if source.releases and (arguments.skip or not source.skipped) else 1


async def _collected(path: Path, config: Config) -> Documents:
    with progress() as bar:
        task = bar.add_task("reading", total=None)

        def report(model: str, place: int, count: int) -> None:
            bar.update(task, description=f"reading {model}", completed=place, total=count)

        return await collect(path, SETTINGS, config.trial, report)


def renamed(source: ImportedSource, name: str | None, version: str | None) -> ImportedSource:
    """Return the source with another name of its only model, or version of its only release.

    Raises ConfigurationError if it has several, or for words that are no names.
    """
    held = {"name": {model.name for model in source.releases}, "version": source.releases}
    for option, value in (("name", name), ("version", version)):
        if value is None:
            continue
        check_name(value, option, f"--{option}")
        if len(held[option]) != 1:
            problem = f"--{option} is for one {'model' if option == 'name' else 'release'}, but the source has"
            raise ConfigurationError(f"{problem} {len(held[option])}; import the folder of one alone")
    given: Any = {key: value for key, value in (("name", name), ("version", version)) if value}
    models = tuple(replace(model, **given) for model in source.models)
    return replace(source, models=models, pipelines=tuple(replace(each, **given) for each in source.pipelines))


def _checked(source: ImportedSource) -> ImportedSource:
    """Return the source with the models whose manifests are read; the others are skipped with the reason."""
    models, pipelines, skipped = list[ImportedModel](), list[ImportedPipeline](), list(source.skipped)
    for model in source.models:
        try:
            models.append(settled(model))
        except ConfigurationError as error:
            skipped.append(SkippedModel(model.name, model.version, str(error)))
    for pipeline in source.pipelines:
        try:
            pipeline_text(pipeline, "")
            pipelines.append(pipeline)
        except ConfigurationError as error:
            skipped.append(SkippedModel(pipeline.name, pipeline.version, str(error)))
    return ImportedSource(tuple(models), tuple(skipped), tuple(pipelines))


def _json(report: ImportReport) -> dict[str, Any]:
    return {
        "kind": report.kind,
        "written": [str(folder) for folder in report.written],
        "models": [_model_json(model) for model in report.source.releases],
        "skipped": [{"name": each.name, "version": each.version, "why": each.why} for each in report.source.skipped],
    }


def _model_json(model: ImportedModel | ImportedPipeline) -> dict[str, Any]:
    findings = [{"outcome": each.outcome.value, "what": each.what, "text": each.text} for each in model.findings]
    variants = [variant.name for variant in model.variants]
    return {"name": model.name, "version": model.version, "variants": variants, "findings": findings}
