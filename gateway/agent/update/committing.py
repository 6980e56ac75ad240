"""Commit of releases, and notification of the daemon.

A daemon that was not notified serves the committed releases from its next start.
"""

from __future__ import annotations

from gateway.agent.control import DaemonClient, DaemonRefusedError
from gateway.agent.state.storage import Storage
from gateway.domain.errors import UnreachableError
from gateway.store.active import Active

UNTOLD = "untold"
"""Name of the fact: "yes" while a commit has not reached the daemon, else ""."""


def commit(storage: Storage, active: Active) -> None:
    """Commit the releases that the device serves. On StoreError, the earlier commit stays in force."""
    storage.journal.keep_facts({UNTOLD: "yes"})
    storage.activate(active)


def tell(storage: Storage, control: DaemonClient) -> None:
    """Notify the daemon of a commit. Raise UnreachableError if it cannot take it over now: call again later."""
    try:
        control.commit()
    except DaemonRefusedError as error:
        problem = f"the daemon does not take over what is committed: {error}; see its log"
        raise UnreachableError(problem, table="control", key="socket") from None
    storage.journal.keep_facts({UNTOLD: ""})


def untold(storage: Storage) -> bool:
    """Return True if the daemon must still be notified."""
    return bool(storage.journal.fact(UNTOLD))
