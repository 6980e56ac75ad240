"""Lists: a page at a time, and where the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from litestar.params import QueryParameter

T = TypeVar("T")
PAGE_ROWS = 100
"""Of a page, where the asker does not say."""
LARGEST = 2**53 - 1
"""What JSON keeps exact (RFC 8259, 6)."""
Number = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="where the page begins; 0: at its begin")]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="rows of the page")]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """`next`: give it as `after` to go on; null: that was all."""

    items: Sequence[T]
    next: str | None


def page(items: Sequence[T], limit_rows: int, cursor: str) -> Page[T]:
    """`cursor`: of the last of the items. A full page may be followed by an empty one."""
    return Page(items, cursor if len(items) >= limit_rows else None)
