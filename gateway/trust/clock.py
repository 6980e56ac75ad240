"""What time it is on a device whose clock may be wrong. Pure: times come in.

Three things bound it from below: the program's release, the floor (the greatest trusted time at which everything
verified), and the system clock. A clock is trusted where the kernel says that it is synchronised and it is not below
the other two. Where it is not, the agent sends a nonce with its poll, and the director's reply, which repeats it, says
when it was issued: that counts as now for this poll. It goes on by the clock since boot, within the boot and for a
limited time, so that the next polls need no nonce (decision 0037, An attested time goes on within a boot).

Attested times never raise the floor. Whoever holds the director's key could else, with one reply to a device that has
just booted, move its time to the day before targets expires, and everything that is signed online and honestly would
have expired there for months.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway import RELEASED
from gateway.trust.distrust import Distrust, Reason

RELEASE_TIME = datetime.fromisoformat(RELEASED).replace(tzinfo=UTC)
"""Earlier than this it cannot be: the program did not exist."""


@dataclass(frozen=True, slots=True)
class BootClock:
    """Reading of the clock that starts with the boot named `boot` and counts in suspend, too (CLOCK_BOOTTIME)."""

    boot: str
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Attestation:
    """Time that an accepted reply to a nonce proved, and the boot clock read after the reply arrived."""

    time: datetime
    read: BootClock


def least_time(floor: datetime | None) -> datetime:
    """What time it is at least, whatever the system clock says: the reference of a poll with a nonce."""
    return max(RELEASE_TIME, floor or RELEASE_TIME)


def reference_time(system: datetime, floor: datetime | None) -> datetime:
    """The one time that a whole run goes by, where nothing attests a better one."""
    return max(system, least_time(floor))


def clock_trusted(system: datetime, floor: datetime | None, *, synchronised: bool) -> bool:
    """Whether the system clock may be believed; `synchronised` as the kernel says (adjtimex without STA_UNSYNC)."""
    return synchronised and system >= least_time(floor)


def attested_time(issued: datetime, floor: datetime | None, offline_expiries: Iterable[datetime]) -> datetime:
    """Now, by the time of issue of an assignment that repeated the nonce.

    `offline_expiries` are those of root, targets and all delegated roles in use: keys that the director's thief lacks.
    Raises Distrust where it would be at or past one of them.
    """
    now, bound = max(issued, least_time(floor)), min(offline_expiries)
    if now >= bound:
        shown = f"the director says it is {issued:%FT%TZ}, but a role signed offline holds until {bound:%FT%TZ} only"
        raise Distrust(Reason.WRONG_TIME, "the attested time", shown)
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
    """The floor after a run in which everything verified: the run's time where that may be kept, else the old one.

    It may where the clock is trusted and none of the `expiries` (of every document the run relied on) had passed: so
    a clock gone wild, to 2099 or past what is signed, leaves the floor where it was.
    """
    least = least_time(floor)
    if clock_trusted(system, floor, synchronised=synchronised) and system < min(expiries):
        return max(least, system)
    return least
