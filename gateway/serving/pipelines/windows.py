"""Windows of the last values of a stream. Pure.

States are never changed in place: a request that fails on its way leaves those of its stream as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array


@dataclass(frozen=True, slots=True)
class StreamValues:
    """Last values [n, …] of a stream that later windows need, and how many are `due` until the next one is complete."""

    values: Array
    due: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of the array."""
        return self.values.nbytes


def windows(state: StreamValues, values: Array, size: int, hop: int) -> tuple[StreamValues, Array, Array]:
    """Add values [n, …]. Return the state then, the places of the last value of each new window, and these.

    The windows are views of one array.
    """
    every = np.concatenate((state.values, values))
    ends = np.arange(state.due - 1, len(values), hop)
    due = state.due + len(ends) * hop - len(values)
    needed = max(0, size - due)
    kept = every[len(every) - needed :].copy() if needed else every[:0].copy()
    if not len(ends):
        return StreamValues(kept, due), ends, np.zeros((0, size, *values.shape[1:]), values.dtype)
    views = np.lib.stride_tricks.sliding_window_view(every, size, axis=0)[ends + len(state.values) - size + 1]
    return StreamValues(kept, due), ends, np.moveaxis(views, -1, 1)
