"""Commit of releases, roll-back to the previous one by an operator, and notification of the daemon.

A daemon that was not notified serves the committed releases from its next start.
"""

from __future__ import annotations

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import ATTEMPT_LIMIT
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.routing import version_order
from gateway.common.store.active import Active, rolled_back
from gateway.common.store.errors import StoreAbsentError, StoreError
from gateway.common.trust.paths import release_path
from gateway.device.agent.clock import system_now
from gateway.device.agent.control import DaemonClient, DaemonRefusedError
from gateway.device.agent.state.storage import Storage
from gateway.device.store.journal_rows import Rejection

UNTOLD = "untold"
"""Name of the fact: "yes" while a commit has not reached the daemon, else ""."""
REASON = "rolled back by hand on the device"


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


def roll_back(storage: Storage, slot: str) -> tuple[Activation, Activation]:
    """Commit the previous release of `slot`. Return the release that served before, and the one that serves now.

    The former is not installed again until another release is assigned, whatever attempt the fleet names. Raise
    AbsentError if there is no previous release, StoreError if its owner no longer allows it.
    """
    active = storage.active()
    if slot not in active.slots:
        raise StoreAbsentError(f"nothing is committed for {slot}; edge-agent status lists what is")
    if storage.journal.update(slot) is not None:
        raise StoreError(f"{slot} is being updated; wait for the end (edge-agent status), then roll back")
    gone, after = active.slots[slot], rolled_back(active, slot)
    path = release_path(after.slots[slot].target)
    floor = storage.journal.version_floor(f"{path.owner}/{path.model}")
    if floor and version_order(path.version) < version_order(floor):
        problem = f"is below the floor {floor} that its owner set; assign a newer release"
        raise StoreError(f"{after.slots[slot].target} {problem}")
    storage.journal.reject(Rejection(slot, gone.release, REASON, ATTEMPT_LIMIT), system_now())
    commit(storage, after)
    return gone, after.slots[slot]
