"""Reference time of one poll, and the attested time that the journal keeps between polls."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.common.domain.python310 import from_iso
from gateway.common.trust import clock
from gateway.common.trust.clock import Attestation, BootClock
from gateway.device.agent.clock import Clocks
from gateway.device.store.journal import Journal

NONCE_BYTES = 16
ATTESTED = "attested"
"""Name of the fact: the last attestation ("": none is valid)."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times that are known before a poll.

    `continued` is an attested time that is still valid. `nonce` is sent if the current time is not known.
    """

    system: datetime
    synchronised: bool
    floor: datetime | None
    nonce: str
    continued: datetime | None = None

    @property
    def beginning(self) -> datetime:
        """Reference time until an answer attests a better one."""
        if self.continued is not None:
            return self.continued
        return clock.least_time(self.floor) if self.nonce else clock.reference_time(self.system, self.floor)


def read_times(journal: Journal, clocks: Clocks, limit: timedelta, *, offline: bool) -> Times:
    """Return the times of a poll. `limit`: validity of an attested time. Raise StoreError."""
    system, kept, floor = clocks.system, clocks.synchronised, journal.time_floor()
    if offline or clock.clock_trusted(system, floor, synchronised=kept):
        return Times(system, kept, floor, "")
    attestation = _read(journal.fact(ATTESTED) or "")
    if attestation and clocks.boot and (now := clock.continued_time(attestation, clocks.boot, floor, limit)):
        return Times(system, kept, floor, "", now)
    return Times(system, kept, floor, secrets.token_hex(NONCE_BYTES))


def attestation_fact(now: datetime, boot: BootClock | None) -> dict[str, str]:
    """Return the fact to keep after a reply that attested `now`; `boot` is read after the reply arrived."""
    if boot is None:
        return {}
    return {ATTESTED: json.dumps({"time": now.isoformat(), "boot": boot.boot, "elapsed_s": boot.elapsed_s})}


def forget_attestation(journal: Journal) -> None:
    """Make the next poll ask for a new attestation. Raise StoreError."""
    if journal.fact(ATTESTED):
        journal.keep_facts({ATTESTED: ""})


def _read(text: str) -> Attestation | None:
    if not text:
        return None
    kept = json.loads(text)
    return Attestation(from_iso(kept["time"]), BootClock(kept["boot"], kept["elapsed_s"]))
