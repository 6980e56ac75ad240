"""Which devices a rollout is for: a condition over what is known of a device. The grammar is in `query_parser`."""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from gateway.common.domain.routing import version_order

VERSION = "version."
"""Prefix of the field that names the version in a slot."""
FIELDS = ("id", "site", "profile", "tag", "accelerator", "slot")
"""Fields apart from `version.<slot>`; the last three may have several values."""
_PATTERNS_CACHED = 4096


@dataclass(frozen=True, slots=True)
class QueriedDevice:
    """A device, as queries see it. `accelerators`: kinds, a CPU alone is `cpu`. `versions`: by slot."""

    id: str
    site: str = ""
    profile: str = ""
    tags: frozenset[str] = frozenset()
    accelerators: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    zone: str = ""


class Operator(enum.Enum):
    """`=` and `!=` take globs; the others compare versions, numbers in them as numbers."""

    EQUAL = "="
    UNEQUAL = "!="
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


_ORDERED: Mapping[Operator, Callable[[object, object], bool]] = {
    Operator.BELOW: lambda a, b: a < b,  # type: ignore[operator]
    Operator.AT_MOST: lambda a, b: a <= b,  # type: ignore[operator]
    Operator.ABOVE: lambda a, b: a > b,  # type: ignore[operator]
    Operator.AT_LEAST: lambda a, b: a >= b,  # type: ignore[operator]
}


@dataclass(frozen=True, slots=True)
class All:
    """Every device. It is written out, so that an empty query does not mean the whole fleet by mistake."""


@dataclass(frozen=True, slots=True)
class FieldMatch:
    """Comparison of `field` with each of `values` (one, or several after `in`); one match is enough."""

    field: str
    operator: Operator
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Devices that `part` does not match."""

    part: Query


@dataclass(frozen=True, slots=True)
class And:
    """Devices that all of `parts` match."""

    parts: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Devices that one of `parts` matches."""

    parts: tuple[Query, ...]


Query = All | FieldMatch | Not | And | Or


def matches(query: Query, device: QueriedDevice) -> bool:
    """Return whether the query matches the device.

    A device without a value (such as no such slot) matches no `=`, `<` …, but `!=`.
    """
    if isinstance(query, And):
        return all(matches(part, device) for part in query.parts)
    if isinstance(query, Or):
        return any(matches(part, device) for part in query.parts)
    if isinstance(query, Not):
        return not matches(query.part, device)
    return isinstance(query, All) or _holds(query, device)


def _holds(match: FieldMatch, device: QueriedDevice) -> bool:
    found = tuple(_values(match.field, device))
    if match.operator in _ORDERED:
        return any(compares(match.operator, value, match.values[0]) for value in found)
    equal = any(
        (_pattern(pattern).match(value) is not None if is_glob(pattern) else pattern == value)
        for pattern in match.values
        for value in found
    )
    return equal is (match.operator is Operator.EQUAL)


def _values(name: str, device: QueriedDevice) -> Iterable[str]:
    if name.startswith(VERSION):
        version = device.versions.get(name.removeprefix(VERSION))
        return () if version is None else (version,)
    several: Mapping[str, Iterable[str]] = {
        "id": (device.id,),
        "site": (device.site,),
        "profile": (device.profile,),
        "tag": device.tags,
        "accelerator": device.accelerators or ("cpu",),
        "slot": device.versions,
    }
    return several[name]


def compares(operator: Operator, value: str, limit: str) -> bool:
    """Return whether the version `value` is below, above … the version `limit`, as `operator` (not `=`, `!=`) says."""
    return _ORDERED[operator](version_order(value), version_order(limit))


def is_glob(pattern: str) -> bool:
    """Return whether the value stands for more than one value."""
    return "*" in pattern or "?" in pattern


@lru_cache(maxsize=_PATTERNS_CACHED)
def _pattern(glob: str) -> re.Pattern[str]:
    """Return a pattern with `*` and `?` only.

    `fnmatch` makes atomic groups of the stars, so that no value takes long to refuse.
    """
    return re.compile(fnmatch.translate(glob.replace("[", "[[]")))
