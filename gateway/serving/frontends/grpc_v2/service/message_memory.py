"""Memory of messages over all connections, counted in the shares of their callers."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import ALIGNED_BYTES, Array
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.pools import Pool

MESSAGE_BYTES = 1024
"""Memory of a message in addition to its content, a high estimate. An empty message is five bytes of a window."""


LARGE_BYTES = 256 * 1024
"""Size from which memory is used again: malloc returns so much to the system, and each page costs a fault then."""
SPARE_BYTES, SPARE_S = 32 * 1024 * 1024, 1.0
"""Most memory that waits to be used again, and the longest time for which it waits."""


class MessageMemory:
    """Memory of messages over all connections.

    It is counted as it fills, and until no code holds it: in transit, in a queue, in a run. Memory that is only
    announced costs its sender nothing, and takes nothing from others. Any thread may be the last one to hold it: it is
    counted as free on the thread of the event loop in which this object was made.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._used: dict[int, tuple[weakref.ref[Array], Array, MemoryShare]] = {}
        self._spare: list[Array] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()
        with suppress(RuntimeError):  # no event loop, and no other thread
            self._loop = asyncio.get_running_loop()

    @property
    def used_bytes(self) -> int:
        """Return the bytes of all messages in memory."""
        return self.pool.used

    def take(self, size: int, lead: int, info: CallInfo, filled: int | None = None) -> tuple[memoryview, MemoryShare]:
        """Return memory of `size` bytes, and the share that counts MESSAGE_BYTES and `filled` (None: nothing yet).

        Byte `lead` of the memory is at a multiple of ALIGNED_BYTES. It is not zeroed: that would cost a pass. Raises
        RequestError OVERLOADED if there is no memory left.
        """
        share = MemoryShare(self.pool, info)
        if filled is not None:
            share.grow(MESSAGE_BYTES + filled)
        whole = self._used_before(size + ALIGNED_BYTES) if size >= LARGE_BYTES else None
        if whole is None:
            whole = np.empty(size + ALIGNED_BYTES, np.uint8)
        start = -(whole.ctypes.data + lead) % ALIGNED_BYTES
        # The base of a numpy view is the array that owns the data, however many views are between: a view of a slice
        # would hold `whole`. A memoryview ends this search, so that every view holds `memory`.
        memory = np.frombuffer(whole.data[start : start + size], np.uint8)
        reference = weakref.ref(memory, self._freed)  # weakref.finalize costs 3 µs more
        self._used[id(reference)] = reference, whole, share
        return memory.data, share

    def _used_before(self, size: int) -> Array | None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SPARE_S, self._drop)
        places = (place for place in reversed(range(len(self._spare))) if self._spare[place].size == size)
        return None if (place := next(places, None)) is None else self._spare.pop(place)

    def _freed(self, memory: weakref.ref[Array]) -> None:
        """Count memory as free. The thread that used it last may be one of a model."""
        _, whole, share = self._used.pop(id(memory))
        if self._loop is None or threading.get_ident() == self._thread:
            self._count_free(whole, share)
            return
        with suppress(RuntimeError):  # the event loop is closed: nothing is counted any more
            self._loop.call_soon_threadsafe(self._count_free, whole, share)

    def _count_free(self, whole: Array, share: MemoryShare) -> None:
        """Count memory as free, and keep it until the next `_drop` if it is large."""
        share.free()
        is_large = whole.size > LARGE_BYTES and self._timer is not None
        if is_large and sum(each.size for each in self._spare) + whole.size <= SPARE_BYTES:
            self._spare.append(whole)

    def _drop(self) -> None:
        """Return to the system what waits. The next large message begins the time again."""
        self._timer = None
        self._spare.clear()


class MemoryShare:
    """Part of the messages' memory that one message uses, in the share of its caller."""

    __slots__ = ("_bytes", "_info", "_pool")

    def __init__(self, pool: Pool, info: CallInfo) -> None:
        self._pool, self._info, self._bytes = pool, info, 0

    def grow(self, size: int) -> None:
        """Count `size` bytes more. Raises RequestError OVERLOADED if its caller, or all callers, have too many."""
        self._pool.require(self._info.share_key, local=self._info.local, amount=size)
        self._bytes += size

    def free(self) -> None:
        """Release the memory: no code holds it any more."""
        self._pool.give(self._info.share_key, local=self._info.local, amount=self._bytes)
        self._bytes = 0


def too_large(size: int, limit_bytes: int, *, of_model: bool = False) -> RequestError:
    """Return the error for a message above the bound, before or after decompression; `of_model`: its model's bound."""
    bound = "for this model (its shapes and rows)" if of_model else "([grpc] max_message_bytes)"
    return RequestError(
        Fault.TOO_LARGE,
        f"the message has {size} bytes or more; at most {limit_bytes} are read {bound}",
    )
