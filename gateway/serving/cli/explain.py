"""Verb `edge-gateway explain MODEL`: every variant with rank, eligibility and reason; measurements; the choice."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError, suggest
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.pipeline import RUNTIME
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.domain.routing import version_order
from gateway.common.domain.selection import Candidate, argument, choose, joining_obstacle, untried
from gateway.common.terminal.tables import mark, print_json, print_lines, print_table, progress
from gateway.serving import assembly
from gateway.serving.cli.common import configured, root_folder, warn
from gateway.serving.cli.pipelines import check_pipeline, described, running_steps, show_pipeline
from gateway.serving.cli.running import RunningGateway, ask_running, sentences, served_json
from gateway.serving.config import Config, models_place, state_folder
from gateway.serving.engine.loader import Loader
from gateway.serving.engine.settings import SelectionSettings
from gateway.serving.frontends.documents import pipeline_steps
from gateway.serving.model_sources import releases_here
from gateway.serving.pipelines.python_steps import python_words

_ORIENTATIONS = {
    "upright": 'images are turned upright by their EXIF orientation; orientation = "stored" leaves them as stored',
    "stored": "images are read as they are stored, whatever their EXIF orientation",
}


def command(arguments: argparse.Namespace) -> int:
    """Print the explanation; return 1 if no variant can serve."""
    return asyncio.run(_explain(arguments))


async def _explain(arguments: argparse.Namespace) -> int:
    config = configured(arguments)
    running = await asyncio.to_thread(ask_running, config, arguments)
    if arguments.url and not arguments.models:
        return _report(running, arguments)
    release = await find_release(config, arguments.model, arguments.model_version)
    if release.pipeline is not None:
        return await _explain_pipeline(config, release, running, arguments)
    if arguments.svg:
        raise ConfigurationError(f"draws the steps of a pipeline; {arguments.model!r:.120} is a model", key="--svg")
    surveyed = await assembly.survey(config, root_folder(arguments))
    with assembly.opened(config, surveyed, state_folder(arguments.state), warn) as loader:
        manifest = await _manifest(loader, release)
        here = surveyed.statuses is not None
        candidates = await _candidates(loader, release, manifest, arguments) if here else loader.plan(manifest)
    chosen = choose(candidates, config.selection.objective) or next(iter(untried(candidates)), None)
    obstacle = loader.obstacle(release, manifest, chosen) if chosen else "no variant can serve on this device"
    if arguments.json:
        document = explanation(release.name, loader.site.profile.name, candidates, chosen, config.selection.objective)
        served = served_json(running, running.of(release.name))
        document |= {"signed": release.signed, "orientation": manifest.orientation or None}
        print_json({**document, "refused": obstacle or None, "serving": served})
    else:
        marked = None if obstacle else chosen
        _print(replace(release, manifest=manifest), loader.site.profile.name, candidates, marked, config.selection)
        print()
        print_lines(_decision(candidates, chosen, config.selection.objective, obstacle).split("\n"))
        print_lines(sentences(running, release.name))
    return 1 if obstacle else 0


async def _explain_pipeline(
    config: Config, release: Release, running: RunningGateway, arguments: argparse.Namespace
) -> int:
    """Print a pipeline's steps, with what they cost if a gateway serves it, and whether its models fit."""
    releases = await releases_here(config)
    surveyed, problem = await assembly.survey(config, root_folder(arguments)), ""
    with assembly.opened(config, surveyed, state_folder(arguments.state), warn) as loader:

        async def manifest_of(model: Release) -> ModelManifest:
            manifest = await _manifest(loader, model)
            here = surveyed.statuses is not None
            candidates = await _candidates(loader, model, manifest, arguments) if here else loader.plan(manifest)
            return described(manifest, choose(candidates, config.selection.objective))

        try:
            await check_pipeline(release, releases, manifest_of, config.pipelines)
        except (VariantError, ConfigurationError, RequestError) as error:
            problem = str(error)
    document = pipeline_steps(release.pipeline, {}) if release.pipeline else {}
    document |= {"python": python_words(release.pipeline)} if release.pipeline and release.pipeline.python else {}
    if any(one.version == release.version and one.state == "READY" for one in running.of(release.name)):
        served = await asyncio.to_thread(running_steps, arguments, release.name, release.version)
        document |= served or {}
    return show_pipeline(document, problem, running, arguments, signed=release.signed)


def _report(running: RunningGateway, arguments: argparse.Namespace) -> int:
    """Print what the gateway at `--url` reports of the model; return 1 if it does not serve it."""
    version = arguments.model_version
    pipelines = [one for one in running.of(arguments.model) if one.variant == RUNTIME and version in {"", one.version}]
    document = running_steps(arguments, arguments.model, version) if pipelines else None
    if document is not None:
        return show_pipeline(document, None, running, arguments, signed=bool(pipelines[-1].signed))
    if arguments.json:
        served = served_json(running, running.of(arguments.model))
        print_json({"model": arguments.model, "serving": served})
    else:
        print_lines(sentences(running, arguments.model))
    return 0 if any(one.state == "READY" for one in running.of(arguments.model)) else 1


async def find_release(config: Config, model: str, version: str) -> Release:
    """Return the named version (default: the newest) of a model on disk.

    Raises ConfigurationError that lists the known ones, RequestError UNAVAILABLE for a version that is refused.
    """
    versions = await releases_here(config, model)
    if not versions:
        names = sorted({one.name for one in await releases_here(config) if one.version != NO_VERSION})
        problem = f"holds no model {model!r:.120}{suggest(model, names)}; known are {', '.join(names) or 'none'}"
        raise ConfigurationError(f"{problem}; name another folder with --models (EG-301)", file=models_place(config))
    found = [release for release in versions if version in {"", release.version}]
    if not found:
        known = ", ".join(release.version for release in versions)
        raise ConfigurationError(
            f"model {model!r} has no version {version!r:.120}; known are {known}", file=models_place(config)
        )
    release = max(found, key=lambda candidate: version_order(candidate.version))
    if release.problem:
        raise RequestError(Fault.UNAVAILABLE, release.problem)
    return release


def explanation(
    model: str, profile: str, candidates: Sequence[Candidate], chosen: Candidate | None, objective: str
) -> dict[str, Any]:
    """Return the document of `explain --json`, with `why` in one sentence."""
    return {
        "model": model,
        "profile": profile,
        "chosen": chosen.variant.name if chosen else None,
        "why": argument(candidates, chosen, objective) if chosen else None,
        "variants": [candidate_json(candidate) for candidate in candidates],
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Return one variant on one accelerator; `measured` and `joining` are null if it was not run here."""
    verdict = candidate.verdict
    measured, joining = (verdict.measured, verdict.joining) if verdict else (None, None)
    return {
        "name": candidate.variant.name,
        "runtime": candidate.variant.runtime,
        "precision": candidate.variant.precision,
        "accelerator": candidate.accelerator,
        "provider": candidate.budget.provider or None,
        "isolated": candidate.budget.isolated,
        "rank": candidate.rank,
        "eligible": candidate.eligible,
        "reason": candidate.reason,
        "measured": measured and {**asdict(measured), "run_us": measured.run_us, "remark": measured.remark},
        "level": candidate.level or None,
        "joining": joining and {"allowed": joining.allowed, **asdict(joining)},
        "remarks": list(verdict.remarks) if verdict else [],
        "threads": candidate.threads,
        "runs": candidate.runs,
        "parallel": [asdict(tried) for tried in verdict.parallel] if verdict else [],
    }


async def _manifest(loader: Loader, release: Release) -> ModelManifest:
    try:
        return await loader.manifest(release)
    except VariantError as error:
        raise RequestError(Fault.UNAVAILABLE, f"model {release.name!r} in {release.folder}: {error}") from error


async def _candidates(
    loader: Loader, release: Release, manifest: ModelManifest, arguments: argparse.Namespace
) -> tuple[Candidate, ...]:
    known = loader.plan(manifest) if arguments.again else loader.candidates(manifest)
    if not arguments.measure:
        return known
    with progress() as bar:
        task = bar.add_task("trying variants", total=len(untried(known)))
        for candidate in untried(known):
            bar.update(task, description=f"trying {candidate.variant.name} on {candidate.where}")
            await loader.prove(release, manifest, candidate)
            bar.advance(task)
    return loader.candidates(manifest)


def _print(
    release: Release,
    profile: str,
    candidates: Sequence[Candidate],
    chosen: Candidate | None,
    selection: SelectionSettings,
) -> None:
    signed = "signed" if release.signed else "unsigned"
    of = f"{release.name} version {release.version} ({signed})"
    print_lines([f"{of} on profile {profile}, objective {selection.objective}", ""])
    columns = ("rank", "variant", "accelerator", "fits", "level", "p50 µs", "p99 µs", "CPU µs", "MiB")
    print_table(columns, [_row(candidate, chosen) for candidate in candidates])
    print()
    print_table(("rank", "variant", "reason"), [(*_row(c, chosen)[:2], c.reason) for c in candidates])
    if rows := list(_parallel(candidates, chosen)):
        print()
        print_table(("variant", "threads", "runs at a time", "µs of a run", "runs/s", "MiB"), rows)
    if release.manifest and release.manifest.orientation:
        print_lines([_ORIENTATIONS[release.manifest.orientation]])
    print_lines(remarks(release, candidates))


def _decision(candidates: Sequence[Candidate], chosen: Candidate | None, objective: str, obstacle: str) -> str:
    """Return which variant serves and why, or why none does."""
    if chosen is None:
        return f"refused: {obstacle}"
    where = f"{chosen.variant.name} on {chosen.where}"
    if obstacle:
        return f"refused: {obstacle}\nwithout that, {where} would serve"
    if not chosen.passed:
        return f"chosen on paper: {where}; it was not run on that device yet"
    return f"chosen: {where}; {argument(candidates, chosen, objective)}"


def remarks(release: Release, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield what trials found beyond their verdicts, by variant."""
    for candidate in candidates:
        verdict = candidate.verdict
        if release.manifest is None or verdict is None or not verdict.passed:
            continue
        joining, tried = joining_obstacle(release.manifest, verdict), verdict.joining
        if tried is not None and tried.allowed and tried.difference:
            yield f"{candidate.variant.name}: its rows are declared independent; sample rows differ: {tried.difference}"
        measured = verdict.measured.remark if verdict.measured else ""
        apart = f"requests are not joined: {joining}" if joining else ""
        isolated = "it serves from a worker process" if candidate.budget.isolated else ""
        for remark in (*verdict.remarks, *filter(None, (apart, measured, isolated))):
            yield f"{candidate.variant.name}: {remark}"


def _parallel(candidates: Sequence[Candidate], chosen: Candidate | None) -> Iterator[tuple[str, ...]]:
    """Yield what was measured of threads and runs at a time, with a mark at those that serve."""
    for candidate in candidates:
        for tried in candidate.verdict.parallel if candidate.verdict else ():
            serves = candidate is chosen and (tried.threads, tried.runs) == (candidate.threads, candidate.runs)
            figures = (
                f"{tried.run_us:.0f}",
                f"{1e6 / max(1e-3, tried.busy_us):.1f}",
                f"{tried.memory_bytes / 2**20:.1f}",
            )
            yield f"{candidate.variant.name}{' ◀' * serves}", str(tried.threads), str(tried.runs), *figures


def _row(candidate: Candidate, chosen: Candidate | None) -> tuple[str, ...]:
    measured = candidate.verdict.measured if candidate.verdict else None
    figures = ("", "", "", "")
    if measured:
        figures = (
            f"{measured.p50_us:.0f}",
            f"{measured.p99_us:.0f}",
            f"{measured.cpu_us:.0f}",
            f"{measured.memory_bytes / 2**20:.1f}",
        )
    name = f"{candidate.variant.name} ◀" if candidate is chosen else candidate.variant.name
    rank, eligible = str(candidate.rank or ""), mark(candidate.eligible)
    return rank, name, candidate.where, eligible, candidate.level, *figures
