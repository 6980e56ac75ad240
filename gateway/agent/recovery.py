"""A new journal in place of one that is lost or damaged. The floors are lost with it: only an operator decides that."""

from __future__ import annotations

from pathlib import Path

from gateway.agent.config import check_bootstrapped
from gateway.agent.storage import alone
from gateway.observe.logs import get_logger
from gateway.store.errors import AbsentError, DamagedError
from gateway.store.journal import Journal
from gateway.store.journal_file import set_aside
from gateway.store.settings import JournalSettings

LOST = (
    "floors of versions and time, the accepted assignment, updates under way, releases rejected here, policy waits and "
    "the history"
)
"""What was in the journal and nowhere else."""
KEPT = "committed releases, profiles and policies, the pinned root, the signed metadata seen last, name and certificate"
"""What lies outside the journal."""


def recover(folder: Path, settings: JournalSettings) -> str:
    """Begin a new journal where the old one is lost or damaged. Return what was wrong with it; "": nothing.

    Raises ConfigurationError where this is no device, UnreachableError while another agent is at work, StoreError.
    """
    check_bootstrapped(folder)
    with alone(folder):
        problem = _problem(folder, settings)
        if problem:
            set_aside(folder)
            Journal.create(folder, settings).close()
            get_logger("recovery").warning("journal recreated", problem=problem, lost=LOST)
        return problem


def _problem(folder: Path, settings: JournalSettings) -> str:
    """Return why the journal cannot be used; "": every row can be read."""
    try:
        journal = Journal.open(folder, settings)
        try:
            journal.floors(), journal.accepted(), journal.updates(), journal.finished(settings.finished_limit)
        finally:
            journal.close()
    except (AbsentError, DamagedError) as error:
        return str(error)
    return ""
