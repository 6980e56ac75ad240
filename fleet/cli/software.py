"""`edge-fleet software`: draft a release of the programs that `edge-software check` accepts, or its withdrawal."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import Any

from fleet.cli.common import (
    byte_progress,
    now,
    print_findings,
    program_beside,
    run_check,
    save_drafts,
    withdraw,
    writing,
)
from fleet.publisher.settings import FleetSettings
from fleet.publisher.software import plan_software, read_variant, software_files
from gateway.common.domain.assignment import SOFTWARE_SLOT
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.software_release import Machine, SoftwareVariant, obstacle

PROGRAM = "edge-software"


def command(arguments: argparse.Namespace) -> int:
    """Draft the release, or its withdrawal. Return 1 if the check of a folder has a finding."""
    if arguments.action == "withdraw":
        if len(arguments.wheels) > 1:
            raise ConfigurationError("name one release to withdraw")
        return withdraw(arguments, arguments.wheels[0], SOFTWARE_SLOT)
    folders = [Path(folder) for folder in arguments.wheels]
    with writing(arguments) as work:
        variants = [read_variant(folder, arguments.python, arguments.machine) for folder in folders]
        planned = plan_software(work.drafting(now()), variants, arguments.floor)
        for folder, variant in zip(folders, variants, strict=True):
            verdict = _verdict(arguments.edge_software, folder, variant, work.settings)
            if not verdict["ok"]:
                return print_findings(folder, verdict, f"{PROGRAM} check", as_json=arguments.json)
        files = software_files(planned.release)
        with byte_progress("copying", sum(file.size_bytes for file in files)) as advance:
            for file in files:
                work.stage_blob(_found(folders, file), file, advance)
        work.stage(planned.target, planned.content)
        return save_drafts(work, [planned.draft], as_json=arguments.json)


def _verdict(named: str | None, folder: Path, variant: SoftwareVariant, settings: FleetSettings) -> dict[str, Any]:
    """Return the result of the check of a variant, if this machine can try it. Raise UnreachableError."""
    library, glibc = platform.libc_ver()
    here = Machine(platform.machine(), f"3.{sys.version_info.minor}", glibc if library == "glibc" else "")
    if reason := obstacle(variant, here):
        print(f"not tried here: {folder}: {reason}", file=sys.stderr)
        return {"ok": True}
    command = [program_beside(PROGRAM, named), "check", str(folder), "--json"]
    return run_check(PROGRAM, command, settings)


def _found(folders: list[Path], file: Artifact) -> Path:
    for folder in folders:
        if (folder / file.path).is_file():
            return folder / file.path
    raise ConfigurationError("is gone since it was read; collect the wheels again", file=file.path)
