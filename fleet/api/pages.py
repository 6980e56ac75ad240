"""Lists: a page at a time, and where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from litestar.params import QueryParameter

from fleet.api.fields import LARGEST
from fleet.control.control import Control

R = TypeVar("R")
T = TypeVar("T")
PAGE_ROWS = 100
"""Of a page, where the asker does not say."""
Number = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="the row before this page; 0: none")]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="rows of the page")]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """`next`: give it as `after`, or as `before` where a list takes that, to go on; null: that was all."""

    items: Sequence[T]
    next: str | None


def page(
    control: Control, found: Sequence[R], limit: int, shown: Callable[[R], T], cursor: Callable[[R], object]
) -> Page[T]:
    """`cursor`: of a row, by which what follows it is asked for. A full page may be followed by an empty one."""
    full = len(found) >= rows_of(control, limit)
    return Page([*map(shown, found)], str(cursor(found[-1])) if full else None)


def rows_of(control: Control, limit: int) -> int:
    """Of a full page: what is asked for, or what the database answers at most."""
    return min(limit, control.database.settings.page_limit_rows)
