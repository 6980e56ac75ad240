"""Received rows of a numbered stream: up to one without gaps, and runs beyond it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[int, int]
"""First and last number of a run."""


@dataclass(frozen=True, slots=True)
class Received:
    """Received numbers, which count from 1.

    All up to `contiguous` are received. `beyond`: runs of further ones, in order, with at least one number between
    them.
    """

    contiguous: int = 0
    beyond: tuple[Span, ...] = ()

    def __contains__(self, number: int) -> bool:
        """Return whether the number was received."""
        if number <= self.contiguous:
            return True
        place = bisect_right(self.beyond, (number, number), key=lambda span: (span[0], number))
        return place > 0 and number <= self.beyond[place - 1][1]

    def gaps(self) -> tuple[Span, ...]:
        """Return the runs that are missing before the last number received."""
        ends = [self.contiguous, *(last for _, last in self.beyond)]
        return tuple((end + 1, first - 1) for end, (first, _) in zip(ends, self.beyond, strict=False))

    def count(self) -> int:
        """Return how many numbers were received."""
        return self.contiguous + sum(last - first + 1 for first, last in self.beyond)

    def joined(self, spans: Iterable[Span]) -> Received:
        """Return the union with these runs, whether they were received before or not."""
        found: list[Span] = [(0, self.contiguous)]
        for first, last in sorted([*self.beyond, *spans]):
            if first <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(last, found[-1][1]))
            else:
                found.append((first, last))
        return Received(found[0][1], tuple(found[1:]))


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Return the runs of consecutive numbers, in order. `numbers` may be unordered and repeat."""
    runs: list[Span] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
