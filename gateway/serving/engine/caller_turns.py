"""Fair queue of callers: takes one item of each caller before the second item of any caller."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class CallerTurns(Generic[T]):
    """Items by caller, in order of arrival for each caller. Not thread-safe; every operation takes constant time."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, caller: str, item: T) -> None:
        """Add an item behind the caller's other items."""
        self._lines.setdefault(caller, deque()).append(item)

    def put_back(self, caller: str, item: T) -> None:
        """Add an item before the caller's other items: one that was taken and is not finished."""
        self._lines.setdefault(caller, deque()).appendleft(item)

    def take(self) -> tuple[str, T]:
        """Remove and return the first item of the caller that has waited longest for its turn.

        Raises StopIteration if there is no item.
        """
        caller = next(iter(self._lines))
        line = self._lines.pop(caller)
        item = line.popleft()
        if line:
            self._lines[caller] = line  # behind the other callers
        return caller, item
