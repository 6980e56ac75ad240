"""Pipelines as commands show them: whether their models on disk fit, and what their steps cost."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError, RequestError, VariantError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.pipeline import Pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.routing import newest_version
from gateway.common.domain.selection import Candidate, choose, settled, untried
from gateway.common.domain.statistics import Placement
from gateway.common.files.durable import write_file
from gateway.common.terminal.tables import print_json, print_lines, print_table
from gateway.serving import assembly
from gateway.serving.cli.http_client import GatewayClient
from gateway.serving.cli.pipeline_svg import draw_pipeline
from gateway.serving.cli.remote import model_path, read_object
from gateway.serving.cli.running import LOCAL_TIMEOUT_S, RunningGateway, find_running, sentences, served_json
from gateway.serving.config import Config
from gateway.serving.engine.engine import Engine
from gateway.serving.engine.loader import Loader
from gateway.serving.model_sources import releases_here
from gateway.serving.pipelines.plan import plan
from gateway.serving.pipelines.python_steps import refuse_python
from gateway.serving.pipelines.settings import PipelineSettings
from gateway.serving.pipelines.target import read_gallery
from gateway.serving.store.library import scan
from gateway.serving.tasks.interpreter import interpreter_of

SVG_MODE = 0o644
Document = dict[str, Any]
ManifestOf = Callable[[Release], Awaitable[ModelManifest]]
"""Function that returns a model's manifest as callers see it. Raises VariantError and RequestError."""


async def check_pipeline(
    release: Release, releases: Sequence[Release], manifest_of: ManifestOf, settings: PipelineSettings
) -> ModelManifest:
    """Return what callers see of a pipeline whose models are among `releases`.

    Raises VariantError, RequestError and ConfigurationError if it would be refused.
    """
    known = dict[tuple[str, str], ModelManifest]()

    async def checked(release: Release, pipeline: Pipeline, above: tuple[str, ...]) -> ModelManifest:
        if release.name in above:
            raise ConfigurationError("runs itself, by a pipeline that it runs", file=pipeline.file)
        refuse_python(pipeline, settings)
        for name, version in pipeline.models:
            if (name, version) not in known:
                found = _found(releases, name, version)
                deeper = found.pipeline and checked(found, found.pipeline, (*above, release.name))
                known[name, version] = await (deeper or manifest_of(found))
        galleries = {file: await asyncio.to_thread(read_gallery, release.folder / file) for file in pipeline.galleries}
        return plan(pipeline, lambda *named: known[named], galleries.__getitem__).manifest

    if release.pipeline is None:
        raise VariantError(release.problem or "is no pipeline")
    return await checked(release, release.pipeline, ())


async def served_manifest(
    loader: Loader, release: Release, objective: str, known: Sequence[Candidate] = ()
) -> ModelManifest:
    """Return a model's manifest as callers see it; try variants without a verdict (`known`: candidates that were)."""
    manifest = await loader.manifest(release)
    candidates = known or loader.candidates(manifest)
    tried = [await loader.prove(release, manifest, one) if one in untried(candidates) else one for one in candidates]
    return described(manifest, choose(tried, objective))


def described(manifest: ModelManifest, chosen: Candidate | None) -> ModelManifest:
    """Return a model's manifest as callers see it when the chosen variant serves."""
    served = settled(manifest, chosen.verdict if chosen else None)
    interpreter = interpreter_of(served)
    return interpreter.described if interpreter else served


def with_models(release: Release, releases: Sequence[Release]) -> list[Release]:
    """Return a release and, of a pipeline, those that it runs, as far as they are among `releases`."""
    found, left = list[Release](), [release]
    while left:
        one = left.pop()
        if one not in found:
            found.append(one)
            named = one.pipeline.models if one.pipeline else ()
            left += [each for each in releases if any(each.name == name for name, _ in named)]
    return found


def _found(releases: Sequence[Release], name: str, version: str) -> Release:
    """Return a model's release on disk: of a version, else of the newest. Raises VariantError."""
    own = {one.version: one for one in releases if one.name == name and not one.problem}
    if (chosen := version or newest_version(own)) in own:
        return own[chosen]
    refused = [one.problem for one in releases if one.name == name and one.version in {version, one.version}]
    wanted = f"{name} version {version}" if version else name
    raise VariantError(f"the model {wanted}, which it runs, is not there{': ' if refused else ''}{'; '.join(refused)}")


async def releases_near(config: Config, release: Release, known: Sequence[Release] = ()) -> list[Release]:
    """Return what a pipeline may run: releases that are `known`, those in the folder of its model, the configured."""
    found = list(known)
    if (release.folder.parent.name, release.folder.name) == (release.name, release.version):
        found += [one for one in scan(release.folder.parent.parent, config.library) if one not in found]
    with suppress(ConfigurationError):  # there is no model directory
        found += [one for one in await releases_here(config) if one.name not in {each.name for each in found}]
    return found


@asynccontextmanager
async def served_here(
    config: Config, loader: Loader, release: Release, releases: Sequence[Release]
) -> AsyncIterator[tuple[Engine, Placement]]:
    """Serve a pipeline with its models in this process. Raises VariantError with the reason if it is refused."""
    engine, repository = assembly.serving(config, loader)
    try:
        await repository.synchronise(with_models(release, releases))
        named = release.name, release.version
        (standing,) = (one for one in repository.standings() if (one.model, one.version) == named)
        if standing.placement is None:
            raise VariantError(standing.reason)
        yield engine, standing.placement
    finally:
        await repository.close()


def running_steps(arguments: argparse.Namespace, model: str, version: str) -> Document | None:
    """Return the document of a pipeline's steps from the running gateway; None if it does not serve one."""
    found = find_running(arguments)
    if isinstance(found, str):
        return None
    with GatewayClient(*found, LOCAL_TIMEOUT_S) as client:
        try:
            return read_object(*client.exchange("GET", f"{model_path(model, version)}/steps"))
        except RequestError:
            return None


def show_pipeline(
    document: Document, problem: str | None, running: RunningGateway, arguments: argparse.Namespace, *, signed: bool
) -> int:
    """Print, and draw into `--svg`, a pipeline with what its steps cost; return 1 for a `problem` (None: unknown)."""
    with_figures(document)
    model, version = document["name"], document["version"]
    if arguments.svg:
        write_svg(document, arguments.svg)
    if arguments.json:
        served = served_json(running, running.of(model))
        print_json(
            {"model": model, "signed": signed, "pipeline": document, "refused": problem or None, "serving": served}
        )
        return 1 if problem else 0
    kinds = [step["kind"] for step in document["steps"] if step["kind"] != "image"]
    signature = "signed" if signed else "unsigned"
    print_lines([f"{model} version {version} ({signature}), a pipeline of {len(kinds)} steps", ""])
    print_table(("step", "kind", "reads", "what it does"), [_graph_row(step) for step in document["steps"]])
    print()
    if any("runs" in step for step in document["steps"]):
        columns = ("step", "runs", "rows", "skipped", "failed", "fallbacks", "p50 µs", "mean µs", "CPU µs", "share")
        print_table(columns, [_cost_row(step) for step in document["steps"] if "runs" in step])
        words = "time of a run with the queue of its model, p50 of the last runs; share: of the time of all steps"
        print_lines(["", words, "CPU: estimated; rows of a run, times that of one row alone in its model's trial", ""])
    print_lines(f"output {each['name']}: {each['does']}" for each in document["outputs"])
    print_lines([document["python"]] if "python" in document else [])
    if problem is not None:
        print_lines([f"refused: {problem}" if problem else "its models on disk fit each other"])
    print_lines(sentences(running, model))
    return 1 if problem else 0


def with_figures(document: Document) -> None:
    """Add times of a run, CPU of a run and share to the steps that were counted."""
    whole = sum(step.get("ns", 0) for step in document["steps"])
    for step in document["steps"]:
        if step.get("runs"):
            step |= {"mean_us": step["ns"] / step["runs"] / 1e3, "share": step["ns"] / whole if whole else 0.0}
            row_cpu_ns = step.get("row_cpu_ns", 0)  # an older gateway counts neither this nor a median
            step |= {"p50_us": step.get("p50_ns", 0) / 1e3, "cpu_us": row_cpu_ns * step["rows"] / step["runs"] / 1e3}


def write_svg(document: Document, name: str) -> None:
    """Write the graph. Raises ConfigurationError for a name that is not SVG's, and a file that cannot be written."""
    if not name.endswith(".svg"):
        raise ConfigurationError("--svg writes SVG; name a file that ends in .svg", file=name)
    try:
        write_file(Path(name), draw_pipeline(document).encode(), SVG_MODE)
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=name) from error


def _graph_row(step: Document) -> tuple[str, ...]:
    words = [f"{step['model']} of {step['does']}" if "model" in step else step["does"]]
    words += [f"{key} {step[key]}" for key in ("when", "else") if key in step]
    words += [f"within {step['deadline_s']:g} s"] if "deadline_s" in step else []
    words += (
        [f"or {', '.join(f'{key} = {value!r}' for key, value in step['fallback'].items())}"]
        if "fallback" in step
        else []
    )
    return step["name"], step["kind"], ", ".join(step["reads"]), "; ".join(words)


def _cost_row(step: Document) -> tuple[str, ...]:
    rows = (f"{step['rows']:,}", f"{step['skipped_rows']:,}") if step["rows"] + step["skipped_rows"] else ("", "")
    figures = [f"{step[key]:,.0f}" if step.get(key) else "" for key in ("p50_us", "mean_us", "cpu_us")]
    figures.append(f"{step['share']:.0%}" if step["runs"] else "")
    return step["name"], f"{step['runs']:,}", *rows, f"{step['failures']:,}", f"{step['fallbacks']:,}", *figures
