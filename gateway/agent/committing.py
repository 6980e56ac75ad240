"""What is committed, and whether the daemon was told: it serves that from its next start in any case."""

from __future__ import annotations

from gateway.agent.control import Control, RefusedError
from gateway.agent.storage import Storage
from gateway.domain.errors import UnreachableError
from gateway.store.active import Active

UNTOLD = "untold"
"""Name of the fact: something was committed that the daemon has not taken over yet ("": nothing)."""


def commit(storage: Storage, active: Active) -> None:
    """Let this be what the device serves. Raises StoreError; then what was committed stands."""
    storage.journal.keep_facts({UNTOLD: "yes"})
    storage.activate(active)


def tell(storage: Storage, control: Control) -> None:
    """Let the daemon take over what is committed. Raises UnreachableError where it does not now: tell it again."""
    try:
        control.commit()
    except RefusedError as error:
        problem = f"the daemon does not take over what is committed: {error}; see its log"
        raise UnreachableError(problem, table="control", key="socket") from None
    storage.journal.keep_facts({UNTOLD: ""})


def untold(storage: Storage) -> bool:
    """Whether the daemon has to be told."""
    return bool(storage.journal.fact(UNTOLD))
