"""Time on a device whose clock may be wrong. Pure: times are passed in.

Three times are lower bounds: the program's release date, the time floor (the greatest trusted time at which everything
verified), and the system clock. The system clock is trusted if the kernel reports it as synchronised and it is not
below the other two. If it is not trusted, the agent sends a nonce with its poll. The director's reply repeats the nonce
and contains its time of issue, which counts as now for this poll. This attested time is continued by the clock since
boot, within the same boot and for a limited time, so that the next polls need no nonce (decision 0037, An attested time
goes on within a boot).

Attested times never raise the floor. Otherwise an attacker with the director's key could, by one reply to a device that
has just booted, move its time to the day before targets expires. Everything that is honestly signed online would then
have expired on that device for months.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from gateway import RELEASED
from gateway.common.trust.distrust import Distrust, Reason

RELEASE_TIME = datetime.fromisoformat(RELEASED).replace(tzinfo=timezone.utc)
"""Lower bound of the time: the release date of this program."""


@dataclass(frozen=True, slots=True)
class BootClock:
    """Reading of CLOCK_BOOTTIME, which starts with the boot named `boot` and counts during suspend."""

    boot: str
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Attestation:
    """Time that an accepted reply to a nonce proved, and the boot clock read after the reply arrived."""

    time: datetime
    read: BootClock


def least_time(floor: datetime | None) -> datetime:
    """Return the least possible time, independent of the system clock: the reference of a poll with a nonce."""
    return max(RELEASE_TIME, floor or RELEASE_TIME)


def reference_time(system: datetime, floor: datetime | None) -> datetime:
    """Return the reference time of a run if no attested time is known."""
    return max(system, least_time(floor))


def clock_trusted(system: datetime, floor: datetime | None, *, synchronised: bool) -> bool:
    """Return True if the system clock is trusted. `synchronised`: from the kernel (adjtimex without STA_UNSYNC)."""
    return synchronised and system >= least_time(floor)


def attested_time(issued: datetime, floor: datetime | None, offline_expiries: Iterable[datetime]) -> datetime:
    """Return the current time, from the time of issue of an assignment that repeated the nonce.

    `offline_expiries`: those of root, targets and all delegated roles in use, whose keys an attacker with the
    director's key lacks. Raise Distrust if the time is at or after one of them.
    """
    now, bound = max(issued, least_time(floor)), min(offline_expiries)
    if now >= bound:
        text = f"the director states {issued:%FT%TZ}, but a role that is signed offline expires at {bound:%FT%TZ}"
        raise Distrust(Reason.WRONG_TIME, "the attested time", text)
    return now


def continued_time(
    attestation: Attestation, clock: BootClock, floor: datetime | None, limit: timedelta
) -> datetime | None:
    """Return the attested time plus the time since then; None in another boot and from `limit` on.

    The reply was issued before the boot clock was read: a delay makes this time late, never early.
    """
    passed = timedelta(seconds=int(clock.elapsed_s - attestation.read.elapsed_s))
    if clock.boot != attestation.read.boot or not timedelta(0) <= passed < limit:
        return None
    return max(attestation.time + passed, least_time(floor))


def raised_floor(
    floor: datetime | None, system: datetime, expiries: Iterable[datetime], *, synchronised: bool
) -> datetime:
    """Return the floor after a run in which everything verified.

    The floor rises to the run's time only if the clock is trusted and none of the `expiries` (of every document of the
    run) has passed. A clock that is far in the future, in 2099 or after what is signed, thus leaves the floor
    unchanged.
    """
    least = least_time(floor)
    if clock_trusted(system, floor, synchronised=synchronised) and system < min(expiries):
        return max(least, system)
    return least
