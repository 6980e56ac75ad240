"""Verb `edge-gateway models`: list models; `models check DIR`: check releases."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.model_files import MODEL_STEM, NO_MODEL, is_model, near_model
from gateway.common.domain.pipeline import PIPELINE, Pipeline
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.terminal.tables import mark, print_json, print_remarks, print_table
from gateway.serving.cli.common import configured
from gateway.serving.cli.models_check import check_releases, checked_json, passed, print_checked
from gateway.serving.cli.running import ask_running, print_served
from gateway.serving.config import Config, models_folders, models_place, state_folder
from gateway.serving.model_sources import releases_here
from gateway.serving.store.library import scan, scan_folder, scan_version
from gateway.serving.store.releases import MANIFEST


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
    releases = releases_in(Path(arguments.dir), config)
    checked = asyncio.run(check_releases(config, releases, state_folder(arguments.state)))
    fine = all(map(passed, checked))
    if arguments.json:
        print_json({"ok": fine, "releases": [checked_json(entry) for entry in checked]})
    else:
        print_checked(checked)
    return 0 if fine else 1


def releases_in(folder: Path, config: Config) -> tuple[Release, ...]:
    """Return the releases of `folder`: a version's, a model's or a whole model directory.

    Raises ConfigurationError if it is no folder or contains no model.
    """
    if not folder.is_dir():
        problem = near_model(folder.name) or "is no folder; name a version's, a model's or a model directory"
        raise ConfigurationError(problem, file=str(folder))
    folder = folder.resolve()
    if any((folder / name).is_file() for name in (MANIFEST, PIPELINE)):
        return (scan_version(folder, config.library),)
    own = scan_folder(folder, config.library)
    is_one = any(release.name == folder.name and release.version != NO_VERSION for release in own)
    found = own if is_one and not _several_models(folder) else scan(folder, config.library)
    if not any(release.version != NO_VERSION for release in found):
        near = (near_model(entry.name) for entry in sorted(folder.iterdir()) if entry.is_file())
        raise ConfigurationError(next(filter(None, near), NO_MODEL), file=str(folder))
    return found


def _several_models(folder: Path) -> bool:
    """Return True if `folder` contains several model files and none called `model`, as only a model directory may."""
    try:
        models = [entry.stem for entry in folder.iterdir() if is_model(entry.name) and entry.is_file()]
    except OSError:
        return False
    return len(models) > 1 and models.count(MODEL_STEM) != 1


def _list(config: Config, why: str, *, as_json: bool) -> int:
    releases = asyncio.run(releases_here(config))
    if as_json:
        found = {"asked": None, "why_not": why, "folders": [str(folder) for folder in models_folders(config)]}
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
    print(f"models in {models_place(config)}{store}; from the disk: {why}\n")
    print_table(("model", "version", "signed", "whole", "variants"), rows)
    print_remarks((one.name, one.version, one.problem or "; ".join(one.remarks)) for one in releases)
    return _any_whole(config, releases)


def _any_whole(config: Config, releases: Sequence[Release]) -> int:
    """Return 0 if a release can be served; otherwise print the problem and return 1."""
    if any(not release.problem for release in releases):
        return 0
    print(f"edge-gateway: {models_place(config)} {NO_MODEL}, or name another with --models", file=sys.stderr)
    return 1


def _release_json(release: Release) -> dict[str, Any]:
    manifest, pipeline = release.manifest, release.pipeline
    return {
        "name": release.name,
        "version": release.version,
        "signed": release.signed,
        "task": manifest.task if manifest else None,
        "variants": [variant.name for variant in manifest.variants]
        if manifest
        else ([release.bare.name] if release.bare else []),
        "pipeline": {"steps": len(pipeline.steps), "models": _named(pipeline)} if pipeline else None,
        "problem": release.problem or None,
        "remarks": list(release.remarks),
    }


def _named(pipeline: Pipeline) -> list[str]:
    return [f"{name}@{version}" if version else name for name, version in pipeline.models]


def _variants(release: Release) -> str:
    if release.pipeline:
        code = [f"Python code of {step.file}" for step in release.pipeline.python]
        return f"pipeline of {len(release.pipeline.steps)} steps: {', '.join((*_named(release.pipeline), *code))}"
    if release.manifest:
        return ", ".join(variant.name for variant in release.manifest.variants)
    return f"{release.bare.artifacts[0].path} (no manifest)" if release.bare else ""
