"""`edge-agent rollback MODEL`: serve the previous release, without network, until another one is assigned."""

from __future__ import annotations

import argparse

from gateway.common.domain.errors import UnreachableError
from gateway.common.terminal.tables import print_json
from gateway.device.agent.cli.common import configured, errors_with_exit_codes
from gateway.device.agent.control import DaemonClient
from gateway.device.agent.state.storage import opened
from gateway.device.agent.update.committing import roll_back, tell


def command(arguments: argparse.Namespace) -> int:
    """Roll back one slot. Return 3 if there is no previous release or the daemon was not notified.

    A daemon that was not notified serves the release from its next start, or after the agent's next poll.
    """
    config, folder = configured(arguments)
    with errors_with_exit_codes(), opened(folder, config) as storage:
        gone, back = roll_back(storage, arguments.slot)
        problem = ""
        try:
            tell(storage, DaemonClient(config.control))
        except UnreachableError as error:
            problem = str(error)
    if arguments.json:
        print_json({"slot": arguments.slot, "from": gone.target, "to": back.target, "problem": problem or None})
    else:
        print(f"{arguments.slot} goes back from {gone.version} to {back.version}" + (f"; {problem}" if problem else ""))
    return 3 if problem else 0
