"""`edge-agent recover`: replace a lost or damaged journal. The floors are lost too, so only an operator decides it."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.common.logs import get_logger
from gateway.common.store.errors import DamagedError, StoreAbsentError
from gateway.common.store.settings import JournalSettings
from gateway.common.store.sqlite_file import set_aside
from gateway.device.agent import events
from gateway.device.agent.cli.common import configured, errors_with_exit_codes
from gateway.device.agent.config import check_bootstrapped
from gateway.device.agent.state.storage import alone
from gateway.device.store.journal import Journal
from gateway.device.store.journal_file import NAME

LOST = (
    "floors of versions and time, the accepted assignment, updates under way, releases rejected here, policy waits and "
    "the history"
)
"""Data that only the journal held."""
KEPT = "committed releases, profiles and policies, the pinned root, the signed metadata seen last, name and certificate"
"""Data that is stored outside the journal."""


def command(arguments: argparse.Namespace) -> int:
    """Begin a new journal and print what is lost. A journal that is whole is not changed."""
    _, folder = configured(arguments)
    check_bootstrapped(folder)
    with errors_with_exit_codes(), alone(folder):
        problem = _problem(folder)
        if not problem:
            print(f"the journal in {folder} is whole; nothing was changed")
            return 0
        set_aside(folder / NAME)
        Journal.create(folder).close()
        get_logger("recovery").warning(events.JOURNAL_RECREATED, problem=problem, lost=LOST)
    print(f"the journal in {folder} was replaced: {problem}")
    print(f"lost: {LOST}")
    print(f"kept: {KEPT}")
    print("until its next poll this device would accept older releases: run edge-agent sync now")
    return 0


def _problem(folder: Path) -> str:
    """Return why the journal is not usable, or "" if every row can be read."""
    try:
        journal = Journal.open(folder)
        try:
            journal.floors(), journal.accepted(), journal.updates(), journal.finished(JournalSettings.finished_limit)
        finally:
            journal.close()
    except (StoreAbsentError, DamagedError) as error:
        return str(error)
    return ""
