"""Verb `edge-gateway models`: list the models; `models check DIR`: check digests and golden sets of releases."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway import assembly
from gateway.cli.common import configured, warn
from gateway.cli.explain import candidate_json
from gateway.cli.running import ask_running, print_served
from gateway.config import Config, models_folder, state_folder
from gateway.domain.errors import ConfigurationError, VariantError
from gateway.domain.model_files import MODEL_STEM, NO_MODEL, is_model
from gateway.domain.release import NO_VERSION, Release
from gateway.domain.selection import Candidate
from gateway.engine.loader import Loader
from gateway.serving import releases_here
from gateway.store.library import scan, scan_folder, scan_version
from gateway.store.releases import MANIFEST, copy_listed
from gateway.terminal.tables import mark, print_json, print_remarks, print_table, progress

Checked = tuple[Release, str, list[Candidate]]
"""Release, the problem because of which it was not tried (or ""), and every candidate with its verdict."""


def command(arguments: argparse.Namespace) -> int:
    """List or check models; return 1 if nothing can be served, or a checked release has a finding."""
    config = configured(arguments)
    if arguments.action is None:
        running = ask_running(config, arguments)
        if not running.where:
            return _list(config, running.why_not, as_json=arguments.json)
        print_served(running, as_json=arguments.json)
        return 0
    if arguments.dir is None:
        raise ConfigurationError("models check needs the folder to check: edge-gateway models check DIR")
    checked = asyncio.run(_check(config, Path(arguments.dir), state_folder(arguments.state)))
    fine = all(map(_passed, checked))
    if arguments.json:
        print_json({"ok": fine, "releases": [_checked_json(entry) for entry in checked]})
    else:
        _print_checked(checked)
    return 0 if fine else 1


def releases_in(folder: Path, config: Config) -> tuple[Release, ...]:
    """Return the releases of `folder`: a version's, a model's or a whole model directory.

    Raises ConfigurationError if it is no folder or contains no model.
    """
    if not folder.is_dir():
        raise ConfigurationError("is no folder; name a version's, a model's or a model directory", file=str(folder))
    folder = folder.resolve()
    if (folder / MANIFEST).is_file():
        return (scan_version(folder, config.library),)
    own = scan_folder(folder, config.library)
    is_one = any(release.name == folder.name and release.version != NO_VERSION for release in own)
    found = own if is_one and not _several_models(folder) else scan(folder, config.library)
    if not any(release.version != NO_VERSION for release in found):
        raise ConfigurationError(NO_MODEL, file=str(folder))
    return found


def _several_models(folder: Path) -> bool:
    """Return True if `folder` contains several model files and none called `model`, as only a model directory may."""
    try:
        models = [entry.stem for entry in folder.iterdir() if is_model(entry.name) and entry.is_file()]
    except OSError:
        return False
    return len(models) > 1 and models.count(MODEL_STEM) != 1


async def _check(config: Config, folder: Path, state_dir: Path) -> list[Checked]:
    releases = releases_in(folder, config)
    surveyed = await assembly.survey(config)
    with assembly.opened(config, surveyed, state_dir, warn) as loader, progress() as bar:
        task = bar.add_task("checking releases", total=len(releases))
        checked = []
        for release in releases:
            bar.update(task, description=f"checking {release.name} {release.version}")
            checked.append(await _check_release(loader, release))
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
    return release, problem, tried


def _passed(entry: Checked) -> bool:
    """Return True if there is no problem, and no variant that was tried failed."""
    _, problem, candidates = entry
    return not problem and all(candidate.eligible for candidate in candidates if candidate.verdict is not None)


def _checked_json(entry: Checked) -> dict[str, Any]:
    release, problem, candidates = entry
    return {
        "name": release.name,
        "version": release.version,
        "ok": _passed(entry),
        "problem": problem or None,
        "variants": [{**candidate_json(candidate), "tried": candidate.verdict is not None} for candidate in candidates],
    }


def _print_checked(checked: list[Checked]) -> None:
    rows: list[tuple[str, ...]] = []
    for release, problem, candidates in checked:
        rows += [(release.name, release.version, "", mark(None), remark) for remark in release.remarks]
        if problem:
            rows.append((release.name, release.version, "", mark(False), problem))
        for candidate in candidates:
            verdict = mark(candidate.eligible if candidate.verdict else None)
            rows.append((release.name, release.version, candidate.variant.name, verdict, candidate.reason))
    print_table(("model", "version", "variant", "passes", "why"), rows)


def _list(config: Config, why: str, *, as_json: bool) -> int:
    releases = asyncio.run(releases_here(config))
    if as_json:
        found = {"asked": None, "why_not": why, "folder": str(models_folder(config))}
        print_json({**found, "models": [_release_json(release) for release in releases]})
        return _any_whole(config, releases)
    rows = [
        (
            release.name,
            release.version,
            mark(release.signed),
            mark(not release.problem),
            _variants(release),
        )
        for release in releases
    ]
    store = f", signed ones in {config.fleet.store}" if config.fleet.store else ""
    print(f"models in {models_folder(config)}{store}; from the disk: {why}\n")
    print_table(("model", "version", "signed", "whole", "variants"), rows)
    print_remarks((one.name, one.version, one.problem or "; ".join(one.remarks)) for one in releases)
    return _any_whole(config, releases)


def _any_whole(config: Config, releases: Sequence[Release]) -> int:
    """Return 0 if a release can be served; otherwise print the problem and return 1."""
    if any(not release.problem for release in releases):
        return 0
    print(f"edge-gateway: {models_folder(config)} {NO_MODEL}, or name another with --models", file=sys.stderr)
    return 1


def _release_json(release: Release) -> dict[str, Any]:
    manifest = release.manifest
    return {
        "name": release.name,
        "version": release.version,
        "signed": release.signed,
        "task": manifest.task if manifest else None,
        "variants": [variant.name for variant in manifest.variants] if manifest else _bare(release),
        "problem": release.problem or None,
        "remarks": list(release.remarks),
    }


def _bare(release: Release) -> list[str]:
    return [release.bare.name] if release.bare else []


def _variants(release: Release) -> str:
    if release.manifest:
        return ", ".join(variant.name for variant in release.manifest.variants)
    return f"{release.bare.artifacts[0].path} (no manifest)" if release.bare else ""
