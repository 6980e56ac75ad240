"""Helpers of all tables: page limits, chunks, bounded lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from fleet.controller.database.errors import RefusedError

T = TypeVar("T")
CHUNK_ROWS = 500
"""Parameters of one IN list."""
Json = Mapping[str, object]


def page_limit(asked_rows: int, most_rows: int) -> int:
    """Return how many rows to answer. Raise RefusedError if fewer than one is requested."""
    if asked_rows < 1:
        raise RefusedError(f"a page has at least one row, not {asked_rows}")
    return min(asked_rows, most_rows)


def chunks(things: Iterable[T], size: int = CHUNK_ROWS) -> Iterator[list[T]]:
    """Yield the things in order, at most `size` at a time."""
    rest = iter(things)
    while chunk := list(islice(rest, size)):
        yield chunk


def bounded(things: Iterable[T], limit: int, what: str) -> list[T]:
    """Return the things as a list. Raise RefusedError for more than `limit`."""
    found = list(islice(things, limit + 1))
    if len(found) > limit:
        raise RefusedError(f"more than {limit} {what} at once; send fewer")
    return found
