"""Bound of what a streaming method writes ahead of its caller."""

from __future__ import annotations

import asyncio

from gateway.serving.frontends.grpc_v2.http2.streams import Stream

WRITE_AHEAD_BYTES = 64 * 1024
"""Most bytes that a streaming method may write ahead of its caller; then it waits."""


class WriteAhead:
    """Methods of one connection that wait for their callers to take bytes: `waiting` are their events."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Event] = set()

    async def wait(self, stream: Stream) -> None:
        """Wait until the peer has taken most of the bytes of a stream."""
        if stream.waiting_bytes <= WRITE_AHEAD_BYTES:
            return
        changed = asyncio.Event()
        self.waiting.add(changed)
        try:
            while stream.waiting_bytes > WRITE_AHEAD_BYTES:
                changed.clear()
                await changed.wait()
        finally:
            self.waiting.discard(changed)

    def wake(self) -> None:
        """Wake the methods, so that they check again: bytes were written."""
        for changed in self.waiting:
            changed.set()
