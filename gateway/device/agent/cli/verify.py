"""`edge-agent verify`: check every signature and byte of what is committed."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from gateway.common.terminal.tables import mark, print_json, print_table
from gateway.device.agent.cli.common import configured, errors_with_exit_codes
from gateway.device.agent.state.identity import read_identity
from gateway.device.agent.state.storage import opened_for_reading
from gateway.device.agent.update.verify import Verification


def command(arguments: argparse.Namespace) -> int:
    """Verify the store. Return 1 if something differs from what was signed."""
    config, folder = configured(arguments)
    with errors_with_exit_codes(), opened_for_reading(folder, config) as storage:
        lines = Verification(storage, read_identity(folder).root, config.trust).run()
    fine = not any(line.problem for line in lines)
    if arguments.json:
        print_json({"ok": fine, "checked": [asdict(line) for line in lines]})
    elif lines:
        rows = [(line.what, line.target, mark(not line.problem), line.problem) for line in lines]
        print_table(("what", "target", "whole", "problem"), rows)
    else:
        print("nothing is committed yet")
    return 0 if fine else 1
