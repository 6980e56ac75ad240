"""What all tables have in common: a page of rows, who has a batch of things."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from fleet.database.errors import RefusedError

T = TypeVar("T")
CHUNK_ROWS = 500
"""Parameters of one IN list."""
Json = Mapping[str, object]


def page_limit(asked_rows: int, most_rows: int) -> int:
    """How many rows to answer. Raises RefusedError for none or less."""
    if asked_rows < 1:
        raise RefusedError(f"a page has at least one row, not {asked_rows}")
    return min(asked_rows, most_rows)


def chunks(things: Iterable[T], size: int = CHUNK_ROWS) -> Iterator[list[T]]:
    """In order, at most `size` at a time."""
    rest = iter(things)
    while chunk := list(islice(rest, size)):
        yield chunk


def bounded(things: Iterable[T], limit: int, what: str) -> list[T]:
    """As a list. Raises RefusedError for more than `limit`."""
    found = list(islice(things, limit + 1))
    if len(found) > limit:
        raise RefusedError(f"more than {limit} {what} at once; send fewer")
    return found
