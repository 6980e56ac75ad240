"""Lists: a page at a time, and where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from litestar.params import QueryParameter

from fleet.api.fields import LARGEST

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


def page(found: Sequence[R], limit_rows: int, shown: Callable[[R], T], cursor: Callable[[R], object]) -> Page[T]:
    """`cursor`: of a row, by which what follows it is asked for. A full page may be followed by an empty one."""
    return Page([*map(shown, found)], str(cursor(found[-1])) if len(found) >= limit_rows else None)
