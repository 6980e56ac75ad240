"""Memory of messages over all connections, counted in the shares of their callers."""

from __future__ import annotations

import weakref

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import aligned_memory
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.pools import Pool

MESSAGE_BYTES = 1024
"""Memory of a message in addition to its content, a high estimate. An empty message is five bytes of a window."""


class MessageMemory:
    """Memory of messages over all connections.

    It is counted as it fills, and until no code holds it: in transit, in a queue, in a run. Memory that is only
    announced costs its sender nothing, and takes nothing from others.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @property
    def used_bytes(self) -> int:
        """Return the bytes of all messages in memory."""
        return self.pool.used

    def take(self, size: int, lead: int, info: CallInfo, filled: int = 0) -> tuple[memoryview, MemoryShare]:
        """Return memory of `size` bytes, and the share that counts how much of it is filled (`filled` at first).

        Raises RequestError OVERLOADED if there is no memory left.
        """
        share = MemoryShare(self.pool, info)
        share.grow(MESSAGE_BYTES + filled)
        memory = aligned_memory(size, lead)
        weakref.finalize(memory.obj, share.free).atexit = False
        return memory, share


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
