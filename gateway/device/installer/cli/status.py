"""`edge-software status`: show the installed versions and the result of the last update."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gateway.common.terminal.tables import print_json, print_table
from gateway.common.trust.settings import DEFAULTS
from gateway.device.domain.software_update import SoftwareUpdate, record_bytes
from gateway.device.installer.cli.common import errors_with_exit_codes, home, records
from gateway.device.installer.places import CONFIRMED, CURRENT


def command(arguments: argparse.Namespace) -> int:
    """Print versions and the last update. Return 0 if the files are readable."""
    place, files = home(), records(arguments)
    with errors_with_exit_codes():
        update, root, floor = files.update(), files.root(DEFAULTS.metadata_limit_bytes), files.floor()
    known: dict[str, Any] = {
        "current": place.leads_to(CURRENT),
        "confirmed": place.leads_to(CONFIRMED),
        "versions": sorted(one.name for one in place.versions.iterdir() if not one.name.startswith(".")),
        "floor": floor,
        "trusted": root is not None,
        "update": json.loads(record_bytes(update)) if update else None,
    }
    if arguments.json:
        print_json(known)
    else:
        _print(known, update)
    return 0


def _print(known: dict[str, Any], update: SoftwareUpdate | None) -> None:
    rows = [
        (name, " and ".join(link for link in (CURRENT, CONFIRMED) if known[link] == name)) for name in known["versions"]
    ]
    print_table(("version", "links"), rows)
    if not known["trusted"]:
        print("no root of trust: nothing is installed from the fleet; run: sudo edge-software trust ROOT.json")
    if update:
        print(f"last update: {update.version}: {update.phase.value}{f': {update.reason}' if update.reason else ''}")
