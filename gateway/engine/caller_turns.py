"""Waiting work of many callers, taken in turns: one item of each caller before the second of any."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class CallerTurns(Generic[T]):
    """Items by caller, each caller's in the order of arrival. Not thread-safe; every operation takes constant time."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, caller: str, item: T) -> None:
        """Add the caller's last item."""
        self._lines.setdefault(caller, deque()).append(item)

    def put_back(self, caller: str, item: T) -> None:
        """Add the caller's first item: one that was taken and is not finished."""
        self._lines.setdefault(caller, deque()).appendleft(item)

    def take(self) -> tuple[str, T]:
        """Remove and return the first item of the caller that waits longest for its turn. Raises StopIteration if
        there is none."""
        caller = next(iter(self._lines))
        line = self._lines.pop(caller)
        item = line.popleft()
        if line:
            self._lines[caller] = line  # behind the other callers
        return caller, item
