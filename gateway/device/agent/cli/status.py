"""`edge-agent status`: show the state of the device and its reason."""

from __future__ import annotations

import argparse
from typing import Any

from gateway.common.terminal.tables import print_json, print_table
from gateway.device.agent.cli.common import configured, errors_with_exit_codes
from gateway.device.agent.report.report import StatusInput, document, read_standing
from gateway.device.agent.state.identity import read_identity
from gateway.device.agent.state.storage import opened_for_reading


def command(arguments: argparse.Namespace) -> int:
    """Print the status. Return 0 if the store is readable: problems are in the output."""
    config, folder = configured(arguments)
    with errors_with_exit_codes(), opened_for_reading(folder, config) as storage:
        show(read_standing(storage, read_identity(folder)), as_json=arguments.json)
    return 0


def show(standing: StatusInput, *, as_json: bool) -> str:
    """Print the status. Return its state in one word."""
    status = document(standing)
    if as_json:
        print_json(status)
    else:
        print(f"{status['device']}: {status['state']}: {status['why']}")
        if status["slots"]:
            print()
            print_table(("model", "assigned", "committed", "variant", "update"), map(_row, status["slots"].items()))
        if status["history"]:
            print()
            rows = [
                (e["changed"][:19], e["slot"], e["version"], e["step"], (e["failure"] or {}).get("reason", ""))
                for e in status["history"]
            ]
            print_table(("ended (UTC)", "model", "version", "how", "why"), rows)
    return str(status["state"])


def _row(entry: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    slot, status = entry
    committed, update = status["committed"] or {}, status["update"]
    return (
        slot,
        status["assigned"] or "nothing",
        committed.get("version", "nothing"),
        ", ".join(committed.get("variants", ())),
        f"{update['version']}: {update['step']}" if update else "",
    )
