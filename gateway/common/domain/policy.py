"""Signed policy that a device enforces by itself. A stolen controller cannot push a release to all devices at once.

The role `policy` signs it offline. It bounds installs and removals: the assignment states what a device may run, the
policy how soon. Removals have bounds of their own, which apply by default. Pure: the caller remembers when it first saw
a change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from gateway.common.domain.document import Table
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.release_form import SCHEMA, TIME_FORMAT, each_once
from gateway.common.domain.settings_layer import check_permission

FOLDER = "policy/"
"""Prefix of policies' paths in the repository."""
POLICY_LIMIT_BYTES = 65_536
"""Largest policy that is read."""
SHARE_LOW_PERCENT = 0.1
"""Smallest share per hour. With it, the last device waits 999 hours."""
REMOVAL_HOLD_H = 24.0
"""Default hours between the time when an ordered removal is first seen and the removal."""
REMOVAL_HOLD_LIMIT_H = 720.0
REMOVAL_SHARE_PERCENT = 10.0
"""Default share of the devices that may carry out a removal in each hour after that."""
SETTINGS_LIMIT = 200
"""Settings that a policy permits the fleet to set."""
SLOTS_LIMIT = 200
"""Slots whose models a policy may name."""
PROFILES_LIMIT = 100
PROFILE_DELAY_LIMIT_H = 720.0
BLACKOUTS_LIMIT = 100
BLACKOUT_LIMIT = timedelta(days=90)
"""Longest blackout. A typing error must not stop a fleet for years."""
REASON_LIMIT_CHARS = 200
_HASH_BYTES = 8
_NEVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Blackout:
    """Period from `start` to before `end` (UTC) in which nothing changes."""

    start: datetime
    end: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of changes.

    `share_percent_per_hour` of all devices may change in each hour after a release was first seen. Hours in a blackout
    do not count. `profiles`: device profiles that go first, one every `profile_delay_h`; all others follow after the
    last. A removal waits for `removal_hold_h` and then for its hour of `removal_share_percent_per_hour`. Only with
    `removal_of_last` may a device be left without any model. `slots`: "owner/model" that a slot may hold, by slot.
    `settings`: keys that signed settings may set on the device in addition to those that are always allowed (None: the
    policy does not say).
    """

    share_percent_per_hour: float = 100.0
    profiles: tuple[str, ...] = ()
    profile_delay_h: float = 0.0
    blackouts: tuple[Blackout, ...] = ()
    removal_hold_h: float = REMOVAL_HOLD_H
    removal_share_percent_per_hour: float = REMOVAL_SHARE_PERCENT
    removal_of_last: bool = False
    slots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    settings: tuple[str, ...] | None = None

    def models(self, slot: str) -> tuple[str, ...]:
        """Return the models, as "owner/model", that the slot may hold; () if any may."""
        return dict(self.slots).get(slot, ())


def earliest(  # noqa: PLR0917  the policy, a device and its profile, a release and two times
    policy: Policy, device: str, release: str, first_seen: datetime, released_at: datetime, profile: str
) -> datetime:
    """Return when `device` may begin to install the release of that digest, unless it is `blocked` then.

    `first_seen`: time at which the device first saw the verified release. `released_at`: its owner's date.
    """
    hours = share_hour(policy.share_percent_per_hour, device, release) + _profile_delay_h(policy, profile)
    return _counted(policy, max(first_seen, released_at), hours)


def earliest_removal(policy: Policy, device: str, release: str, first_seen: datetime, profile: str) -> datetime:
    """Return when `device` may remove the release of that digest, unless it is `blocked` then.

    `first_seen`: time at which the device first saw the verified order. The bounds of installs apply as well.
    """
    hour = share_hour(policy.removal_share_percent_per_hour, device, release)
    removed = _counted(policy, first_seen, policy.removal_hold_h + hour)
    return max(removed, earliest(policy, device, release, first_seen, first_seen, profile))


def _counted(policy: Policy, start: datetime, hours: float) -> datetime:
    try:
        return _after(policy.blackouts, start, timedelta(hours=hours))
    except OverflowError:  # the owner's date of the release is in the year 9999
        return _NEVER


def all_over(policy: Policy, begun: datetime) -> datetime:
    """Return when every device may have changed whose wait began at `begun`, or up to an hour later."""
    installs = 100 / policy.share_percent_per_hour + len(policy.profiles) * policy.profile_delay_h
    removals = policy.removal_hold_h + 100 / policy.removal_share_percent_per_hour
    return _after(policy.blackouts, begun, timedelta(hours=max(installs, removals)))


def _after(blackouts: Iterable[Blackout], start: datetime, wait: timedelta) -> datetime:
    """Return `start` plus `wait`, not counting blackouts, so that no wait ends for all devices at once."""
    turn, counted = start + wait, start
    for blackout in sorted(blackouts, key=lambda one: one.start):
        begin = max(blackout.start, counted)
        if begin <= turn and begin < blackout.end:
            turn, counted = turn + (blackout.end - begin), blackout.end
    return turn


def share_hour(share_percent_per_hour: float, device: str, release: str) -> int:
    """Return the hour, counted from 0, in which the device may change. A hash of both decides, not the controller."""
    from fractions import Fraction

    digest = hashlib.sha256(f"{device}\0{release}".encode()).digest()[:_HASH_BYTES]
    place = Fraction(int.from_bytes(digest, "big"), 256**_HASH_BYTES)
    return int(place * 100 / Fraction(str(share_percent_per_hour)))


def blocked(policy: Policy, now: datetime) -> Blackout | None:
    """Return the blackout that is in force now, or None. If several are, return the one that ends last."""
    return blackout_at(policy.blackouts, now)


def blackout_at(blackouts: Iterable[Blackout], now: datetime) -> Blackout | None:
    """Return the blackout that is in force at `now`, or None. If several are, return the one that ends last."""
    holding = (blackout for blackout in blackouts if blackout.start <= now < blackout.end)
    return max(holding, key=lambda blackout: blackout.end, default=None)


def read_policy(content: bytes, file: str) -> Policy:
    """Parse a policy. Raise ConfigurationError (file, table, key), also for an unknown key, since it may be a bound."""
    top = Table(_document(content, file), file=file)
    top.integer("schema", low=SCHEMA, high=SCHEMA)
    policy = Policy(
        top.number("share_percent_per_hour", 100.0, low=SHARE_LOW_PERCENT, high=100.0),
        _profiles(top),
        top.number("profile_delay_h", 0.0, low=0.0, high=PROFILE_DELAY_LIMIT_H),
        read_blackouts(top),
        top.number("removal_hold_h", REMOVAL_HOLD_H, low=0.0, high=REMOVAL_HOLD_LIMIT_H),
        top.number("removal_share_percent_per_hour", REMOVAL_SHARE_PERCENT, low=SHARE_LOW_PERCENT, high=100.0),
        top.flag("removal_of_last", default=False),
        _slots(top),
        _settings(top) if "settings" in top else None,
    )
    top.finish()
    return policy


def blackout_documents(blackouts: Iterable[Blackout]) -> list[dict[str, str]]:
    """Return plain values for JSON; the inverse of `read_blackouts`."""
    return [
        {"start": b.start.strftime(TIME_FORMAT), "end": b.end.strftime(TIME_FORMAT), "reason": b.reason}
        for b in blackouts
    ]


def read_blackouts(top: Table) -> tuple[Blackout, ...]:
    """Read `blackouts` from a document. Raise ConfigurationError."""
    tables = top.tables("blackouts")
    if len(tables) > BLACKOUTS_LIMIT:
        top.refuse("blackouts", f"at most {BLACKOUTS_LIMIT} are read, here are {len(tables)}")
    return tuple(_blackout(table) for table in tables)


def _blackout(table: Table) -> Blackout:
    blackout = Blackout(table.time("start", TIME_FORMAT), table.time("end", TIME_FORMAT), table.text("reason", ""))
    if not timedelta() < blackout.end - blackout.start <= BLACKOUT_LIMIT:
        table.refuse("end", f"must come after start, by at most {BLACKOUT_LIMIT.days} days")
    if len(blackout.reason) > REASON_LIMIT_CHARS:
        table.refuse("reason", f"must have at most {REASON_LIMIT_CHARS} characters")
    table.finish()
    return blackout


def _profiles(top: Table) -> tuple[str, ...]:
    names = top.texts("profiles", ())
    if len(names) > PROFILES_LIMIT or len(set(names)) < len(names):
        top.refuse("profiles", f"must name at most {PROFILES_LIMIT} profiles, each once")
    for name in names:
        if not NAME_PATTERN.fullmatch(name):
            top.refuse("profiles", f"{name!r:.80} is no profile's name; letters, digits, '.', '_' and '-' make one")
    return names


def _slots(top: Table) -> tuple[tuple[str, tuple[str, ...]], ...]:
    table = top.table("slots")
    names = table.remaining() if table else ()
    if table is None or not names:
        return ()
    if len(names) > SLOTS_LIMIT:
        top.refuse("slots", f"must name at most {SLOTS_LIMIT} slots, not {len(names)}")
    for name in names:
        if not NAME_PATTERN.fullmatch(name):
            top.refuse("slots", f"{name!r:.80} is no slot's name; letters, digits, '.', '_' and '-' make one")
    found = tuple((name, _models(table, name)) for name in sorted(names))
    table.finish()
    return found


def _settings(top: Table) -> tuple[str, ...]:
    keys = top.texts("settings")
    if len(keys) > SETTINGS_LIMIT:
        top.refuse("settings", f"must name at most {SETTINGS_LIMIT} settings, not {len(keys)}")
    for key in keys:
        try:
            check_permission(key)
        except ValueError as error:
            top.refuse("settings", str(error))
    return keys


def permitted_settings(policies: Iterable[Policy]) -> frozenset[str]:
    """Return the settings ("table.key" or "table") that every policy which names any permits; none without such."""
    named = [frozenset(policy.settings) for policy in policies if policy.settings is not None]
    return frozenset.intersection(*named) if named else frozenset()


def _models(table: Table, slot: str) -> tuple[str, ...]:
    models = table.texts(slot)
    for model in models:
        parts = model.split("/")
        if len(parts) != 2 or not all(NAME_PATTERN.fullmatch(part) for part in parts):
            table.refuse(slot, f"{model!r:.120} is no OWNER/MODEL")
    if not models:
        table.refuse(slot, "names no model; leave the slot out where any may run, or name OWNER/MODEL")
    return models


def _profile_delay_h(policy: Policy, profile: str) -> float:
    places = {name: place for place, name in enumerate(policy.profiles)}
    return places.get(profile, len(places)) * policy.profile_delay_h


def _document(content: bytes, file: str) -> dict[str, Any]:
    if len(content) > POLICY_LIMIT_BYTES:
        problem = f"has {len(content)} bytes, at most {POLICY_LIMIT_BYTES} are read"
        raise ConfigurationError(problem, file=file)
    try:
        document = json.loads(content.decode(), object_pairs_hook=each_once)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", file=file) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"is no JSON: {error!s:.200}", file=file) from None
    if not isinstance(document, dict):
        raise ConfigurationError("is no JSON object; a policy is one", file=file)
    return document
