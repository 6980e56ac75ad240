"""`edge-fleet software add DIR…`: draft a release of the programs on devices that `edge-software check` accepts."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

from fleet.cli.common import byte_progress, now, program_beside, run_check, save_drafts, writing
from fleet.settings import FleetSettings
from fleet.software import plan_software, read_variant, software_files
from fleet.workspace import Workspace
from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest import Artifact
from gateway.domain.software_release import Machine, SoftwareRelease, SoftwareVariant, obstacle

PROGRAM = "edge-software"


def command(arguments: argparse.Namespace) -> int:
    """Draft the release. Return 1 if the check of a folder has a finding."""
    folders = [Path(folder) for folder in arguments.wheels]
    with writing(arguments) as work:
        variants = [read_variant(folder, arguments.python, arguments.machine) for folder in folders]
        planned = plan_software(work.drafting(now()), variants, arguments.floor)
        for folder, variant in zip(folders, variants, strict=True):
            findings = _findings(arguments.edge_software, folder, variant, work.settings)
            if findings:
                for finding in findings:
                    print(f"edge-fleet: {folder}: {finding}", file=sys.stderr)
                print(f"edge-fleet: not added: {PROGRAM} check has findings", file=sys.stderr)
                return 1
        _stage(work, folders, planned.release)
        work.stage(planned.target, planned.content)
        return save_drafts(work, [planned.draft], as_json=arguments.json)


def _findings(named: str | None, folder: Path, variant: SoftwareVariant, settings: FleetSettings) -> list[str]:
    """Return what is wrong with a variant, where this machine can try it. Raise UnreachableError."""
    library, glibc = platform.libc_ver()
    here = Machine(platform.machine(), f"3.{sys.version_info.minor}", glibc if library == "glibc" else "")
    if reason := obstacle(variant, here):
        print(f"not tried here: {folder}: {reason}", file=sys.stderr)
        return []
    command = [program_beside(PROGRAM, named), "check", str(folder), "--json"]
    verdict = run_check(PROGRAM, command, settings)
    return [] if verdict["ok"] else [str(finding) for finding in verdict["findings"]]


def _stage(work: Workspace, folders: list[Path], release: SoftwareRelease) -> None:
    files = software_files(release)
    with byte_progress("copying", sum(file.size_bytes for file in files)) as advance:
        for file in files:
            work.stage_blob(_found(folders, file), file, advance)


def _found(folders: list[Path], file: Artifact) -> Path:
    for folder in folders:
        if (folder / file.path).is_file():
            return folder / file.path
    raise ConfigurationError("is gone since it was read; collect the wheels again", file=file.path)
