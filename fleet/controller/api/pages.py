"""Pages of lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from litestar.params import QueryParameter

from fleet.controller.api.fields import LARGEST
from fleet.controller.database.settings import DatabaseSettings

R = TypeVar("R")
T = TypeVar("T")
PAGE_ROWS = 100
"""Default number of rows of a page."""
Number = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="the row before this page; 0: none")]
Limit = Annotated[int, QueryParameter(ge=1, le=DatabaseSettings.page_limit_rows, description="rows of the page")]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page. `next`: send it as `after`, or as `before` if the list takes that, to continue; null: the last page."""

    items: Sequence[T]
    next: str | None


def page(found: Sequence[R], limit: int, view: Callable[[R], T], cursor: Callable[[R], object]) -> Page[T]:
    """Return a page. `cursor` returns the value of a row with which the next page is requested.

    A full page may be followed by an empty one.
    """
    full = len(found) >= limit
    return Page([*map(view, found)], str(cursor(found[-1])) if full else None)
