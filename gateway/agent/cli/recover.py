"""`edge-agent recover`: a new journal in place of one that is lost or damaged."""

from __future__ import annotations

import argparse

from gateway.agent.cli.common import configured, told
from gateway.agent.recovery import KEPT, LOST, recover


def command(arguments: argparse.Namespace) -> int:
    """Begin a new journal and say what is lost; leave one that is whole as it is."""
    config, folder = configured(arguments)
    with told():
        problem = recover(folder, config.journal)
    if not problem:
        print(f"the journal in {folder} is whole; nothing was changed")
        return 0
    print(f"the journal in {folder} is new, for {problem}")
    print(f"lost: {LOST}")
    print(f"kept: {KEPT}")
    print("until this device has asked its fleet again it would accept older releases: run edge-agent sync now")
    return 0
