"""`edge-fleet settings`: draft settings for devices that `edge-gateway config check` accepts, or their withdrawal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tuf.api.metadata import TargetFile

from fleet.cli.common import now, print_findings, program_beside, run_check, save_drafts, withdraw, writing
from fleet.disk import read_bounded
from fleet.publisher.device_settings import check_tables, plan_settings, previous_settings, settings_path
from fleet.publisher.releases import newest_targets
from fleet.publisher.roles import owner_role
from fleet.publisher.signing import Drafting
from fleet.publisher.workspace import Workspace
from gateway.common.domain.assignment import SETTINGS_SLOT
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.release_paths import ReleasePath
from gateway.common.domain.settings_release import SETTINGS_LIMIT_BYTES

PROGRAM = "edge-gateway"


def command(arguments: argparse.Namespace) -> int:
    """Draft the release, or its withdrawal. Return 1 if the check of the file has a finding."""
    if arguments.action == "withdraw":
        return withdraw(arguments, arguments.what, SETTINGS_SLOT)
    file = Path(arguments.what)
    if arguments.name is None:
        raise ConfigurationError("settings need a name, such as that of a site or of a class of devices: --name NAME")
    for option, value in (("--name", arguments.name), ("--version", arguments.version)):
        if value is not None and not NAME_PATTERN.fullmatch(value):
            raise ConfigurationError(f"{option} {value!r:.150}: letters, digits, '.', '_' and '-' make one")
    try:
        text = read_bounded(file, SETTINGS_LIMIT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", file=str(file)) from None
    check_tables(text, str(file))
    with writing(arguments) as work:
        drafting = work.drafting(now())
        path = settings_path(drafting, arguments.name, arguments.version)
        planned = plan_settings(drafting, path, text, arguments.floor, _published_before(work, drafting, path))
        command = [program_beside(PROGRAM, arguments.edge_gateway), "config", "check", "--fleet-settings", str(file)]
        verdict = run_check(PROGRAM, [*command, "--json"], work.settings)
        if not verdict["ok"]:
            return print_findings(file, verdict, f"{PROGRAM} config check --fleet-settings", as_json=arguments.json)
        work.stage(planned.target, planned.content)
        return save_drafts(work, [planned.draft], as_json=arguments.json, warnings=verdict.get("remarks", []))


def _published_before(work: Workspace, drafting: Drafting, path: ReleasePath) -> Iterator[tuple[TargetFile, bytes]]:
    """Yield the published release before this one; the draft already holds the document of a drafted one."""
    before = previous_settings(newest_targets(drafting, owner_role(SETTINGS_SLOT)), path.model, path.version)
    if before and drafting.published.target(before.path):
        yield before, work.target_content(before)
