"""One bidirectional call: several requests in flight, each answered when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from gateway.common.domain.errors import Fault, RequestError

SendPart = Callable[[Any], Awaitable[None]]
"""Function that sends a reply which is not the last one of its request, and returns once it was taken."""
StreamAnswer = Callable[[Any, SendPart], Awaitable[Any]]


class InferStream:
    """Requests and answers of one stream. Answers come in order of completion with their request's id, as Triton's do.

    `answer` returns the last reply to a request, and may send others before.
    A request occupies one of `in_flight` slots until its answer was taken: a peer that does not read is not read from.
    Without a request in flight for `idle_s` the stream ends EXPIRED.
    """

    def __init__(self, requests: AsyncIterator[Any], answer: StreamAnswer, in_flight: int, idle_s: float) -> None:
        self._requests, self._answer, self._idle_s = requests, answer, idle_s
        self._idle: asyncio.TimerHandle | None = None
        self._active_s = 0.0
        self._slots = asyncio.Semaphore(in_flight)
        self._finished: asyncio.Queue[asyncio.Task[Any] | _Sent | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def drain(self) -> None:
        """Read no more requests; those that were read are answered, then the stream ends UNAVAILABLE."""
        if self._reader is not None:
            self._reader.cancel()

    async def replies(self) -> AsyncGenerator[Any, None]:
        """Yield every answer. Closing the generator cancels requests in flight.

        Raises the errors of reading the requests.
        """
        self._wait(self._idle_s)
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
        """Cancel requests in flight, and forget the failure.

        Its traceback refers back to this object, and holds the last message until a garbage collection finds both.
        """
        if self._idle is not None:
            self._idle.cancel()
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
            if isinstance(task, _Sent):
                yield task.reply
                task.taken.set()
                continue
            self._tasks.discard(task)
            yield task.result()
            self._active_s = asyncio.get_running_loop().time()
            self._slots.release()

    async def _read(self) -> None:
        await self._slots.acquire()
        async for request in self._requests:
            task = asyncio.ensure_future(self._answer(request, self._part))
            del request  # its memory is counted until no reference to it is left
            self._tasks.add(task)
            task.add_done_callback(self._finished.put_nowait)
            await self._slots.acquire()

    async def _part(self, reply: Any) -> None:
        """Implement `SendPart`."""
        sent = _Sent(reply)
        self._finished.put_nowait(sent)
        await sent.taken.wait()

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        if self._failure is None:
            self._failure = stopping() if reader.cancelled() else reader.exception()
        self._finished.put_nowait(None)

    def _wait(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._active_s = loop.time() + wait_s - self._idle_s
        self._idle = loop.call_later(wait_s, self._check_idle)

    def _check_idle(self) -> None:
        """End the stream if it brought no request for too long; this is the only timer while it is busy."""
        busy = bool(self._tasks)
        left_s = self._idle_s if busy else self._active_s + self._idle_s - asyncio.get_running_loop().time()
        if left_s > 0:
            self._wait(left_s)
        elif self._reader is not None:
            self._failure = RequestError(
                Fault.EXPIRED,
                f"no request came on this stream for {self._idle_s:g} s ([grpc] stream_idle_s); open another one",
            )
            self._reader.cancel()


class _Sent:
    """Reply that is not the last one of its request."""

    __slots__ = ("reply", "taken")

    def __init__(self, reply: Any) -> None:
        self.reply, self.taken = reply, asyncio.Event()


def stopping() -> RequestError:
    """Return the error that ends a stream of which no more is read."""
    return RequestError(Fault.UNAVAILABLE, "the gateway is stopping; open the stream again", retry_after_s=1.0)
