"""Times at which devices may be offered something: weekly windows in wall-clock time, and absolute blackouts.

A window is open while the wall clock is inside it. So an hour that the clock repeats counts twice, and an hour that it
skips does not count. No device is changed at a time of day that its operators did not name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from fleet.controller.rollouts.spec import OfferWindow, Spec
from gateway.common.domain.policy import blackout_at

SITE = "site"
"""Zone of a window that follows the time zone of each device's site."""
HORIZON_D = 15
"""Days that are searched for the next opening. Every weekly window occurs twice, in case the clock skips one."""
ZONE_LIMIT_CHARS = 64
_ZONES_CACHED = 1024
_DAY_MIN = 24 * 60


@lru_cache(maxsize=_ZONES_CACHED)
def _zone(name: str) -> tzinfo | None:
    if name in {"", "UTC"}:  # works without a time zone database, too
        return timezone.utc
    if len(name) > ZONE_LIMIT_CHARS:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not listed; no relative path; a folder of the time zone database
        return None


def known_zone(name: str) -> bool:
    """Return whether `name` is a time zone ("": UTC)."""
    return _zone(name) is not None


def may_offer(spec: Spec, zone: str, now: datetime) -> bool:
    """Return whether a device whose site is in `zone` may be offered something now.

    In an unknown zone, windows that depend on it are never open: waiting is safer than a change at the wrong time.
    """
    if blackout_at(spec.blackouts, now) is not None:
        return False
    return not spec.windows or any(_is_open(window, zone, now) for window in spec.windows)


def next_opening(spec: Spec, zone: str, now: datetime) -> datetime | None:
    """Return the earliest time from `now` on at which `may_offer` holds.

    None: there is none within two weeks after the end of the blackouts.
    """
    moment: datetime | None = now
    for _ in range(len(spec.blackouts) + 1):
        moment = _next_window(spec.windows, zone, moment) if moment is not None else None
        blackout = blackout_at(spec.blackouts, moment) if moment is not None else None
        if blackout is None:
            return moment
        moment = blackout.end
    return None  # not reached: each blackout was passed once


def _is_open(window: OfferWindow, site: str, now: datetime) -> bool:
    zone = _zone(site if window.zone == SITE else window.zone)
    if zone is None:
        return False
    local = now.astimezone(zone)
    minute, day = local.hour * 60 + local.minute, local.weekday()
    if window.start_min < window.end_min:
        return day in window.days and window.start_min <= minute < window.end_min
    began_today = day in window.days and minute >= window.start_min
    return began_today or ((day - 1) % 7 in window.days and minute < window.end_min)


def _next_window(windows: tuple[OfferWindow, ...], site: str, now: datetime) -> datetime | None:
    if not windows or any(_is_open(window, site, now) for window in windows):
        return now
    moments = (moment for window in windows for moment in _openings(window, site, now) if moment > now)
    return min((m for m in moments if any(_is_open(window, site, m) for window in windows)), default=None)


def _openings(window: OfferWindow, site: str, now: datetime) -> Iterator[datetime]:
    """Yield the times at which the window may open: its starts, and each change of the clock."""
    zone = _zone(site if window.zone == SITE else window.zone)
    if zone is None:
        return
    today = now.astimezone(zone).date()
    for offset in range(HORIZON_D):
        midnight = datetime.combine(today + timedelta(days=offset), time(), zone)
        start = midnight + timedelta(minutes=window.start_min)
        yield from (start.replace(fold=fold).astimezone(timezone.utc) for fold in (0, 1))
        yield from _changes_of_clock(midnight.astimezone(timezone.utc), zone)


def _changes_of_clock(since: datetime, zone: tzinfo) -> Iterable[datetime]:
    """Return the time within a day of `since` at which the offset of `zone` changes, to the second."""
    low, high = since, since + timedelta(days=1, hours=3)
    before = low.astimezone(zone).utcoffset()
    if high.astimezone(zone).utcoffset() == before:
        return ()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return (high,)
