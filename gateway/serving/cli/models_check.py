"""Check of releases: their files, digests and golden sets, tried on this machine."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError, RequestError, VariantError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.pipeline import RUNTIME
from gateway.common.domain.release import Release
from gateway.common.domain.selection import Candidate
from gateway.common.domain.verdict import Verdict
from gateway.common.terminal.tables import mark, print_table, progress
from gateway.serving import assembly
from gateway.serving.cli.common import warn
from gateway.serving.cli.explain import candidate_json, remarks
from gateway.serving.cli.pipelines import check_pipeline, releases_near, served_here, served_manifest
from gateway.serving.config import Config
from gateway.serving.engine.loader import Loader
from gateway.serving.store.releases import copy_listed

Checked = tuple[Release, str, list[Candidate]]
"""Release, the problem because of which it was not tried (or ""), and every candidate with its verdict."""


async def check_releases(config: Config, releases: Sequence[Release], state_dir: Path) -> list[Checked]:
    """Return the releases with the verdict of every variant that this machine can run. Raise ConfigurationError."""
    surveyed = await assembly.survey(config)
    with assembly.opened(config, surveyed, state_dir, warn) as loader, progress() as bar:
        task = bar.add_task("checking releases", total=len(releases))
        checked = list[Checked]()
        for release in sorted(releases, key=lambda one: one.pipeline is not None):  # models first
            bar.update(task, description=f"checking {release.name} {release.version}")
            if release.pipeline is None:
                checked.append(await _check_release(loader, release))
            else:
                checked.append((release, *(await _check_pipeline(config, loader, release, checked))))
            bar.advance(task)
        return checked


async def _check_release(loader: Loader, release: Release) -> Checked:
    """Try every variant that this machine can run, whatever verdicts are stored, with only the listed files."""
    if release.problem:
        return release, release.problem, []
    with tempfile.TemporaryDirectory(prefix="edge-gateway-") as scratch:
        try:
            listed = await asyncio.to_thread(copy_listed, release, Path(scratch))
            manifest = await loader.manifest(listed)
        except (VariantError, ConfigurationError) as error:
            return release, str(error), []
        planned = loader.plan(manifest)
        tried = [await loader.prove(listed, manifest, c) if c.eligible else c for c in planned]
    problem = "" if any(candidate.passed for candidate in tried) else "no variant passes on this machine"
    return replace(release, manifest=manifest), problem, tried


async def _check_pipeline(
    config: Config, loader: Loader, release: Release, checked: Sequence[Checked]
) -> tuple[str, list[Candidate]]:
    """Return why a pipeline would be refused, "" if its models fit, and the candidate that ran its golden set."""
    found = {(one.name, one.version): candidates for one, _, candidates in checked if one.manifest}

    async def manifest_of(model: Release) -> ModelManifest:
        return await served_manifest(
            loader, model, config.selection.objective, found.get((model.name, model.version), ())
        )

    known = await releases_near(config, release, [one for one, _, _ in checked])
    try:
        await check_pipeline(release, known, manifest_of, config.pipelines)
        if release.pipeline is None or release.pipeline.golden is None:
            return "", []
        async with served_here(config, loader, release, known) as (_, placement):
            verdict, variant = Verdict(True, "", level=placement.level), Variant(RUNTIME, RUNTIME, "none", ())
            return "", [Candidate(variant, "cpu", 1, True, placement.reason, verdict=verdict)]
    except (VariantError, ConfigurationError, RequestError) as error:
        return str(error), []


def passed(entry: Checked) -> bool:
    """Return True if there is no problem, and no variant that was tried failed."""
    _, problem, candidates = entry
    return not problem and all(candidate.eligible for candidate in candidates if candidate.verdict is not None)


def checked_json(entry: Checked) -> dict[str, Any]:
    """Return what `--json` prints of one release."""
    release, problem, candidates = entry
    return {
        "name": release.name,
        "version": release.version,
        "ok": passed(entry),
        "problem": problem or None,
        "variants": [{**candidate_json(candidate), "tried": candidate.verdict is not None} for candidate in candidates],
    }


def print_checked(checked: Sequence[Checked]) -> None:
    """Print releases and their variants as a table."""
    rows: list[tuple[str, ...]] = []
    for release, problem, candidates in checked:
        rows += [(release.name, release.version, "", mark(None), remark) for remark in release.remarks]
        if release.pipeline and not problem and not candidates:
            rows.append((release.name, release.version, "", mark(True), "a pipeline; its models fit each other"))
        if problem:
            rows.append((release.name, release.version, "", mark(False), problem))
        for candidate in candidates:
            verdict = mark(candidate.eligible if candidate.verdict else None)
            rows.append((release.name, release.version, candidate.variant.name, verdict, candidate.reason))
        rows += [(release.name, release.version, "", mark(None), remark) for remark in remarks(release, candidates)]
    print_table(("model", "version", "variant", "passes", "why"), rows)
