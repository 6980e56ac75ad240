"""`edge-gateway config check --fleet-settings FILE`: check settings before a fleet signs them."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.config import parse_config
from gateway.domain.document import parse_toml
from gateway.domain.errors import ConfigurationError
from gateway.domain.settings_layer import NEVER, SettingsLayer, refused_keys
from gateway.store.text import read_text
from gateway.terminal.tables import print_json


def check_fleet_settings(arguments: argparse.Namespace) -> int:
    """Check the file over the defaults; return 1 if it has a finding."""
    file = Path(arguments.fleet_settings)
    findings, remarks = checked(read_text(file), str(file))
    if arguments.json:
        print_json({"file": str(file), "ok": not findings, "findings": findings, "remarks": remarks})
        return 1 if findings else 0
    print("\n".join(findings) or f"{file}: fine, as settings of a fleet")
    for remark in remarks:
        print(f"warning: {remark}")
    return 1 if findings else 0


def checked(toml: str, file: str) -> tuple[list[str], list[str]]:
    """Return findings, and remarks: devices refuse some settings unless a policy of theirs permits them."""
    try:
        document = parse_toml(toml, file)
        parse_config("", "", SettingsLayer(file, toml))
    except ConfigurationError as error:
        return [str(error)], []
    never = sorted(document.keys() & NEVER)
    findings = [f"{file}: [{table}] never comes from a fleet; take it out" for table in never]
    held = [key for key in refused_keys(document, ()) if key.partition(".")[0] not in NEVER]
    refused = "devices refuse these settings unless a policy of theirs permits it"
    return findings, [f'{key}: {refused}: "settings": ["{key}"]' for key in held]
