"""Cores of load and server: apart where a machine has several."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreSplit:
    """Cores of the server (and of the bare runtime), and those of the load."""

    server: tuple[int, ...]
    load: tuple[int, ...]

    @property
    def is_apart(self) -> bool:
        """Return True if they share no core."""
        return not set(self.server) & set(self.load)


def split_cores(cores: Collection[int]) -> CoreSplit:
    """Return the last core for the load and the others for the server; one core is shared."""
    ordered = tuple(sorted(cores))
    return CoreSplit(ordered[:-1], ordered[-1:]) if len(ordered) > 1 else CoreSplit(ordered, ordered)


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Keep this process, and children that it starts in the block, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
