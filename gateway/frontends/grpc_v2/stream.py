"""One bidirectional call: several requests in flight, each answered when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from gateway.domain.errors import Fault, RequestError


class InferStream:
    """Answers come in order of completion and carry their request's id, as Triton's do.

    A request takes one of `in_flight` slots until its answer was taken: a peer that does not read is not read from.
    """

    def __init__(self, requests: AsyncIterator[Any], answer: Callable[[Any], Awaitable[Any]], in_flight: int) -> None:
        self._requests, self._answer = requests, answer
        self._slots = asyncio.Semaphore(in_flight)
        self._finished: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def drain(self) -> None:
        """Read no more; what was read is answered, then the stream ends UNAVAILABLE."""
        if self._reader is not None:
            self._reader.cancel()

    async def replies(self) -> AsyncGenerator[Any, None]:
        """Every answer. Closing the generator cancels what is in flight. Raises what reading the requests raised."""
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(self._reader_ended)
        try:
            async for reply in self._taken():
                yield reply
            if self._failure is not None:
                raise self._failure
        finally:
            self._end()

    def _end(self) -> None:
        """Cancel what is in flight, and forget what failed: its traceback leads back here, and holds the last message
        until a search for garbage finds both."""
        for task in (self._reader, *self._tasks):
            if task is not None:
                task.cancel()
        for task in self._tasks:
            task.remove_done_callback(self._finished.put_nowait)
        self._tasks.clear()
        self._finished = asyncio.Queue()
        self._reader = self._failure = None

    async def _taken(self) -> AsyncGenerator[Any, None]:
        reading = True
        while reading or self._tasks:
            task = await self._finished.get()
            if task is None:
                reading = False
                continue
            self._tasks.discard(task)
            yield task.result()
            self._slots.release()

    async def _read(self) -> None:
        await self._slots.acquire()
        async for request in self._requests:
            task = asyncio.ensure_future(self._answer(request))
            del request  # its memory is counted until nothing holds it
            self._tasks.add(task)
            task.add_done_callback(self._finished.put_nowait)
            await self._slots.acquire()

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        self._failure = stopping() if reader.cancelled() else reader.exception()
        self._finished.put_nowait(None)


def stopping() -> RequestError:
    """How a stream ends of which no more is read."""
    return RequestError(Fault.UNAVAILABLE, "the gateway is stopping; open the stream again", retry_after_s=1.0)
