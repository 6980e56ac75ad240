"""Back to what served before, by decision of whoever stands at the device."""

from __future__ import annotations

from gateway.agent.clock import system_now
from gateway.agent.committing import commit
from gateway.agent.storage import Storage
from gateway.domain.activation import Activation
from gateway.store.active import rolled_back
from gateway.store.errors import AbsentError, StoreError
from gateway.store.journal_rows import Rejection

REASON = "rolled back by hand on the device"


def roll_back(storage: Storage, slot: str) -> tuple[Activation, Activation]:
    """Commit the previous release of `slot`; what served, and what serves now. What served is not installed again
    until something else is assigned. Raises AbsentError where there is nothing to go back to, StoreError."""
    active = storage.active()
    if slot not in active.slots:
        raise AbsentError(f"nothing is committed for {slot}; edge-agent status lists what is")
    if storage.journal.update(slot) is not None:
        raise StoreError(f"{slot} is being updated; wait for the end (edge-agent status), then roll back")
    gone, after = active.slots[slot], rolled_back(active, slot)
    storage.journal.reject(Rejection(slot, gone.release, REASON), system_now())
    commit(storage, after)
    return gone, after.slots[slot]
