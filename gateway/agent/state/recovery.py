"""Replacement of a lost or damaged journal. The floors are lost with it, so only an operator may decide it."""

from __future__ import annotations

from pathlib import Path

from gateway.agent import events
from gateway.agent.config import check_bootstrapped
from gateway.agent.state.storage import alone
from gateway.observe.logs import get_logger
from gateway.store.errors import DamagedError, StoreAbsentError
from gateway.store.journal import Journal
from gateway.store.journal_file import NAME
from gateway.store.settings import JournalSettings
from gateway.store.sqlite_file import set_aside

LOST = (
    "floors of versions and time, the accepted assignment, updates under way, releases rejected here, policy waits and "
    "the history"
)
"""Data that only the journal held."""
KEPT = "committed releases, profiles and policies, the pinned root, the signed metadata seen last, name and certificate"
"""Data that is stored outside the journal."""


def recover(folder: Path, settings: JournalSettings) -> str:
    """Begin a new journal if the old one is lost or damaged. Return its problem, or "" if there was none.

    Raise ConfigurationError if the folder holds no device, UnreachableError while another agent is running, StoreError.
    """
    check_bootstrapped(folder)
    with alone(folder):
        problem = _problem(folder, settings)
        if problem:
            set_aside(folder / NAME)
            Journal.create(folder, settings).close()
            get_logger("recovery").warning(events.JOURNAL_RECREATED, problem=problem, lost=LOST)
        return problem


def _problem(folder: Path, settings: JournalSettings) -> str:
    """Return why the journal is not usable, or "" if every row can be read."""
    try:
        journal = Journal.open(folder, settings)
        try:
            journal.floors(), journal.accepted(), journal.updates(), journal.finished(settings.finished_limit)
        finally:
            journal.close()
    except (StoreAbsentError, DamagedError) as error:
        return str(error)
    return ""
