"""`edge-software check DIR`: try a release of wheels as a device would."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.program import FINDING, OK
from gateway.common.terminal.tables import print_json
from gateway.device.installer.checking import check
from gateway.device.installer.settings import load_config


def command(arguments: argparse.Namespace) -> int:
    """Check a folder of wheels. Return 1 if there are findings."""
    config = load_config(Path(arguments.config) if arguments.config else None)
    if not Path(arguments.dir).is_dir():
        raise ConfigurationError("is no folder; name one with the wheels of one version", file=arguments.dir)
    findings = check(Path(arguments.dir), config.software)
    if arguments.json:
        print_json({"ok": not findings, "findings": findings})
    else:
        print("\n".join(findings) or f"{arguments.dir}: builds, and its programs start")
    return FINDING if findings else OK
