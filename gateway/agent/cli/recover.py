"""`edge-agent recover`: replace a lost or damaged journal."""

from __future__ import annotations

import argparse

from gateway.agent.cli.common import configured, errors_with_exit_codes
from gateway.agent.state.recovery import KEPT, LOST, recover


def command(arguments: argparse.Namespace) -> int:
    """Begin a new journal and print what is lost. A journal that is whole is not changed."""
    config, folder = configured(arguments)
    with errors_with_exit_codes():
        problem = recover(folder, config.journal)
    if not problem:
        print(f"the journal in {folder} is whole; nothing was changed")
        return 0
    print(f"the journal in {folder} was replaced: {problem}")
    print(f"lost: {LOST}")
    print(f"kept: {KEPT}")
    print("until its next poll this device would accept older releases: run edge-agent sync now")
    return 0
