"""Windows of the last values of a stream. Pure.

States are never changed in place: a request that fails on its way leaves those of its stream as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.pipeline import REQUEST_ROWS_LIMIT
from gateway.common.domain.tensor import Array
from gateway.serving.pipelines.columns import StepError

ALL_BYTES = 2**28
"""Most bytes of the windows of a request, which models get as arrays of their own."""


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

    The windows are views of one array. Raises StepError, before anything is made, if they are too many or too large.
    """
    count = len(range(state.due - 1, len(values), hop))
    if count > REQUEST_ROWS_LIMIT:
        raise StepError(f"makes more than {REQUEST_ROWS_LIMIT} windows; send fewer values in a request")
    if count * size * (values.nbytes // max(1, len(values))) > ALL_BYTES:
        raise StepError(f"makes windows of more than {ALL_BYTES} bytes; send fewer values in a request")
    every = np.concatenate((state.values, values))
    ends = np.arange(state.due - 1, len(values), hop)
    due = state.due + count * hop - len(values)
    needed = max(0, size - due)
    kept = every[len(every) - needed :].copy() if needed else every[:0].copy()
    if not count:
        return StreamValues(kept, due), ends, np.zeros((0, size, *values.shape[1:]), values.dtype)
    views = np.lib.stride_tricks.sliding_window_view(every, size, axis=0)[ends[0] + len(state.values) - size + 1 :: hop]
    return StreamValues(kept, due), ends, np.moveaxis(views, -1, 1)
