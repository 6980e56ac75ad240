"""`edge-fleet model`: draft a release of a model that `edge-gateway models check` accepts, or its withdrawal."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet.cli.common import byte_progress, now, program_beside, run_check, save_drafts, withdraw, writing
from fleet.publisher.releases import (
    MANIFEST,
    Model,
    Terms,
    model_files,
    plan_release,
    read_model,
)
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import LEVELS
from gateway.common.domain.selection import required_level
from gateway.common.terminal.tables import mark, print_json, print_table
from gateway.common.trust.targets import Withdrawal

PROGRAM = "edge-gateway"


def command(arguments: argparse.Namespace) -> int:
    """Draft the release, or its withdrawal. Return 1 if the check of a model has a finding."""
    if arguments.action == "withdraw":
        how = Withdrawal.REMOVE if arguments.remove else Withdrawal.OFFER
        return withdraw(arguments, arguments.what, withdrawal=how)
    folder = Path(arguments.what)
    if not arguments.owner:
        raise ConfigurationError("a release needs its owner; name it with --owner")
    terms = Terms(arguments.floor, tuple(arguments.slot), arguments.changes_signature)
    with writing(arguments) as work:
        model = read_model(folder, work.settings)
        planned = plan_release(work.drafting(now()), model, arguments.owner, terms)
        verdict = check(program_beside(PROGRAM, arguments.edge_gateway), folder, work.settings)
        if not verdict["ok"]:
            return _refuse(verdict, as_json=arguments.json)
        check_levels(model, verdict)
        for line in untried(verdict):
            print(line, file=sys.stderr)
        files = model_files(planned.release)
        for file in files:
            if file.size_bytes > work.settings.release_file_limit_bytes:
                problem = f"is larger than release_file_limit_bytes, {work.settings.release_file_limit_bytes}"
                raise ConfigurationError(problem, file=str(model.folder / file.path))
        with byte_progress("copying", sum(file.size_bytes for file in files)) as advance:
            for file in files:
                work.stage_blob(model.folder / file.path, file, advance)
        work.stage(planned.target, planned.content)
        return save_drafts(work, [planned.draft], as_json=arguments.json)


def check(program: str, folder: Path, settings: FleetSettings) -> dict[str, Any]:
    """Return what `edge-gateway models check` reports of the folder: digests, golden sets. Raise UnreachableError."""
    with tempfile.TemporaryDirectory(prefix="edge-fleet-") as state:
        return run_check(PROGRAM, [program, "models", "check", str(folder), "--json", "--state", state], settings)


def untried(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Return the signed variants that this machine could not try: devices try them first."""
    for release in verdict["releases"]:
        for variant in release["variants"]:
            if not variant["tried"]:
                yield f"not tried here: {variant['name']}: {variant['reason']}"


def check_levels(model: Model, verdict: Mapping[str, Any]) -> None:
    """Refuse a release that devices would refuse for its level. Raise ConfigurationError with the remedy."""
    required = required_level(model.manifest, signed=True, configured="")
    for release in verdict["releases"]:
        for variant in release["variants"]:
            level = variant.get("level")  # an older edge-gateway does not report it
            if level and LEVELS.index(level) < LEVELS.index(required):
                problem = (
                    f"devices would refuse variant {variant['name']}: it is {level} here, and what is signed must be "
                    f'{required}; add a golden set, or write require = "{level}"'
                )
                raise ConfigurationError(problem, file=str(model.folder / MANIFEST), key="require")


def _refuse(verdict: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print_json(verdict)
        return 1
    rows: list[tuple[str, ...]] = []
    for release in verdict["releases"]:
        name, version = release["name"], release["version"]
        if release["problem"]:
            rows.append((name, version, "", mark(False), release["problem"]))
        for variant in release["variants"]:
            passes = variant["eligible"] if variant["tried"] else None
            rows.append((name, version, variant["name"], mark(passes), variant["reason"]))
    print_table(("model", "version", "variant", "passes", "why"), rows)
    print(f"edge-fleet: not added: {PROGRAM} models check has findings", file=sys.stderr)
    return 1
