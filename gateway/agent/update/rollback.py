"""Roll-back to the previous release, by decision of an operator at the device."""

from __future__ import annotations

from gateway.agent.clock import system_now
from gateway.agent.state.storage import Storage
from gateway.agent.update.committing import commit
from gateway.domain.activation import Activation
from gateway.domain.assignment import ATTEMPT_LIMIT
from gateway.domain.routing import version_order
from gateway.store.active import rolled_back
from gateway.store.errors import StoreAbsentError, StoreError
from gateway.store.journal_rows import Rejection
from gateway.trust.paths import release_path

REASON = "rolled back by hand on the device"


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
    _check_floor(storage, after.slots[slot])
    storage.journal.reject(Rejection(slot, gone.release, REASON, ATTEMPT_LIMIT), system_now())
    commit(storage, after)
    return gone, after.slots[slot]


def _check_floor(storage: Storage, activation: Activation) -> None:
    path = release_path(activation.target)
    floor = storage.journal.version_floor(f"{path.owner}/{path.model}")
    if floor and version_order(path.version) < version_order(floor):
        raise StoreError(f"{activation.target} is below the floor {floor} that its owner set; assign a newer release")
