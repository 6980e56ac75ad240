"""Translation of the rollouts' query language to a database filter.

`fleet.controller.rollouts.query.matches` defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fleet.controller.database import device_filter
from fleet.controller.database.device_filter import DeviceConditions, Filter
from fleet.controller.database.engine import Connection
from fleet.controller.database.errors import RefusedError
from fleet.controller.rollouts.query import VERSION, All, And, FieldMatch, Not, Operator, Query, compares, is_glob
from fleet.controller.rollouts.query_parser import QueryError, parse

COMPARISONS_LIMIT = 100
"""Comparisons of one query: a database plans each by itself, and PostgreSQL takes seconds for hundreds."""


def read_query(text: str) -> Query:
    """Read a query. Raise RefusedError that names the character at which it is wrong."""
    try:
        return parse(text)
    except QueryError as error:
        raise RefusedError(f"query: {error}") from None


def selected(connection: Connection, text: str) -> Filter | None:
    """Return the filter for a query, or None for "", which selects every device. Raise RefusedError."""
    return filter_of(connection, read_query(text)) if text else None


def filter_of(connection: Connection, query: Query) -> Filter:
    """Return a filter that a device passes exactly if `matches(query, device)`. Raise RefusedError."""
    if (count := _comparisons(query)) > COMPARISONS_LIMIT:
        problem = f"query: {count} comparisons, at most {COMPARISONS_LIMIT} are read; name several values by 'in'"
        raise RefusedError(problem)
    return _filter(DeviceConditions(connection, is_glob), query)


def _comparisons(query: Query) -> int:
    if isinstance(query, Not):
        return _comparisons(query.part)
    return 1 if isinstance(query, All | FieldMatch) else sum(map(_comparisons, query.parts))


def _filter(conditions: DeviceConditions, query: Query) -> Filter:
    if isinstance(query, All):
        return device_filter.everything()
    if isinstance(query, Not):
        return device_filter.negated(_filter(conditions, query.part))
    if isinstance(query, FieldMatch):
        if query.operator not in {Operator.EQUAL, Operator.UNEQUAL}:
            slot = query.field.removeprefix(VERSION)
            return conditions.version_that(slot, lambda version: compares(query.operator, version, query.values[0]))
        equal = _equal(conditions, query.field, query.values)
        return equal if query.operator is Operator.EQUAL else device_filter.negated(equal)
    combined: Callable[..., Filter] = device_filter.all_of if isinstance(query, And) else device_filter.any_of
    return combined(_filter(conditions, part) for part in query.parts)


def _equal(conditions: DeviceConditions, name: str, values: Sequence[str]) -> Filter:
    if name.startswith(VERSION):
        return conditions.version(name.removeprefix(VERSION), values)
    several: Mapping[str, Callable[[Sequence[str]], Filter]] = {
        "tag": conditions.tag,
        "accelerator": conditions.accelerator,
        "slot": conditions.slot,
    }
    return several[name](values) if name in several else conditions.field(name, values)
