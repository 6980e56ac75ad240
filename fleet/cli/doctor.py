"""`edge-fleet doctor`: problems of the controller in a folder, and what to do about them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from fleet.cli.observed import observe
from fleet.controller.config import load_config
from fleet.controller.control.checks import findings
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import print_json, print_table


def command(arguments: argparse.Namespace) -> int:
    """Print findings. Return 1 if there are any."""
    folder = Path(arguments.dir)
    if not folder.is_dir():
        raise ConfigurationError("is not a folder; name the controller's with --dir", file=arguments.dir)
    found = findings(observe(folder, load_config(folder)))
    if arguments.json:
        print_json({"ok": not found, "findings": [asdict(finding) for finding in found]})
    elif found:
        print_table(("where", "what is wrong", "what to do"), [(f.where, f.problem, f.remedy) for f in found])
    else:
        print("database, clock, certificates, keys and blobs are as they should be")
    return 1 if found else 0
