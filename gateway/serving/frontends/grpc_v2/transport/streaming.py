"""Calls with a stream of messages in one direction or both: the method, in a task, sets the pace."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from gateway.common.domain.errors import RequestError
from gateway.serving.frontends.grpc_v2.calls import RpcKind
from gateway.serving.frontends.grpc_v2.framing import PartReply
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.transport.messages import ReceivedMessage
from gateway.serving.frontends.grpc_v2.transport.ports import CallConnection
from gateway.serving.frontends.grpc_v2.transport.stream_requests import StreamRequests
from gateway.serving.frontends.grpc_v2.transport.unary import cancel, decompressed, one_request


class Streaming:
    """Streaming call. Messages that were not taken yet hold the stream's window: a slow method slows its caller."""

    __slots__ = (
        "_begun",
        "_changed",
        "_connection",
        "_ended",
        "_failure",
        "_half_window",
        "_incoming",
        "_messages",
        "_over",
        "_returned",
        "_since_ns",
        "_small",
        "_stream",
        "task",
    )

    def __init__(self, connection: CallConnection, stream: Stream, *, ended: bool) -> None:
        self._connection, self._stream = connection, stream
        self._incoming = connection.incoming(stream)
        self._half_window = connection.settings.http2.stream_window_bytes // 2
        self._messages: deque[ReceivedMessage] = deque()
        self._returned: deque[ReceivedMessage] = deque()
        """Messages that a batch did not answer."""
        self._changed, self._ended, self._over = asyncio.Event(), ended, False
        self._failure: RequestError | None = None
        self._since_ns = None if stream.headers.rpc.kind is RpcKind.BIDIRECTIONAL else stream.opened_ns
        """Time since which the only request of such a method is awaited."""
        self._begun = 0
        """Messages that the method took and has not answered."""
        self._small = (
            StreamRequests(connection, stream, self._again, self._answered) if stream.headers.rpc.raw else None
        )
        self.task: asyncio.Task[None] | None = None

    def received(self, parts: Sequence[memoryview], ended: bool, now_ns: int) -> None:
        """Add parts of the caller's stream."""
        try:
            for part in parts:
                rest = part
                if self._small is not None and self._may_batch():
                    rest = self._small.take(part, now_ns, self._connection.settings.stream_in_flight - self._begun)
                self._messages.extend(self._incoming.feed((rest,), now_ns))
        except RequestError as error:
            self._failure = error
        self._ended |= ended
        if not self._messages:
            if self._incoming.missing or self._stream.receive_window < self._half_window:
                self._grant()
            if not (self._ended or self._failure):  # the method has nothing to do
                return
        self._changed.set()

    def late(self, since_ns: int) -> bool:
        """Return True if a message that has begun should be complete by now, or the only one should be here.

        Messages that were not taken delay those behind them.
        """
        begun_ns = self._incoming.begun_ns if self._since_ns is None else self._since_ns
        late = begun_ns is not None and begun_ns <= since_ns and not self._messages
        if late:
            self.cancel()
        return late

    def cancel(self) -> None:
        """Cancel the method: the call was abandoned."""
        self._close()
        cancel(self)

    async def run(self) -> None:
        """Let the method read and write. Raises RequestError."""
        headers, connection, stream = self._stream.headers, self._connection, self._stream
        info = headers.info_at(stream.opened_ns)
        try:
            asked: Any = self._requests() if headers.rpc.kind is RpcKind.BIDIRECTIONAL else await self._only_request()
            async with aclosing(headers.rpc.answer(asked, info)) as replies:
                async for reply in replies:
                    connection.write(stream, headers.rpc.encode(reply)[0])
                    connection.flush()
                    await connection.write_ahead.wait(stream)
                    self._begun -= not isinstance(reply, PartReply)
            connection.end(stream)
        except RequestError:
            self._over = True
            while self._in_batches:
                await self._change()
            raise
        finally:
            self._close()

    async def _requests(self) -> AsyncIterator[Any]:
        """Yield the messages that no batch takes."""
        headers = self._stream.headers
        while await self._more():  # no variable here holds a message while the next is awaited
            if not self._returned and self._offer(self._messages[0]):
                self._take()
                continue
            if self._in_batches:  # the method bounds the requests in flight, and knows its own only
                await self._change()
                continue
            self._begun += 1
            if self._small is not None:
                self._small.noted_ns = time.monotonic_ns()
            yield headers.rpc.parse(await decompressed(self._take(), headers, self._connection))

    def _offer(self, message: ReceivedMessage) -> bool:
        """Add a message to a batch. Return False if none takes it, or the peer does not take its answers."""
        if self._small is None or self._stream.waiting_bytes:
            return False
        return self._small.offer(message, time.monotonic_ns(), self._connection.settings.stream_in_flight - self._begun)

    async def _only_request(self) -> Any:
        async for request in self._requests():
            self._since_ns = None
            return request
        raise one_request("none came")

    async def _more(self) -> bool:
        """Wait for a message; return False at the end. Raises errors of reading once earlier messages were taken."""
        while not (self._messages or self._returned):
            if not self._in_batches:
                if self._failure is not None:
                    raise self._failure
                if self._ended:
                    if self._incoming.begun_ns is not None:
                        raise one_request("a message ended too soon")
                    return False
            await self._change()
        return True

    @property
    def _in_batches(self) -> int:
        return 0 if self._small is None else self._small.in_flight

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _answered(self) -> None:
        """Wake the method if it waits for an answer from a batch."""
        if self._messages or self._returned or self._ended or self._over or self._failure:
            self._changed.set()

    def _may_batch(self) -> bool:
        """Return True if nothing that came before is with the method only, and the peer takes its answers."""
        nothing_before = (
            not (self._messages or self._returned or self._failure or self._over) and self._incoming.begun_ns is None
        )
        return nothing_before and self._stream.waiting_bytes == 0

    def _again(self, message: ReceivedMessage) -> None:
        """Pass a message to the method after all."""
        self._returned.append(message)
        self._changed.set()

    def _take(self) -> ReceivedMessage:
        message = (self._returned or self._messages).popleft()
        if self._incoming.begun_ns is not None:
            self._incoming.begun_ns = time.monotonic_ns()  # until now no more of it was accepted
        self._grant()
        return message

    def _close(self) -> None:
        """Drop all messages: the method takes no more."""
        self._incoming.close()
        self._messages.clear()
        self._returned.clear()

    def _grant(self) -> None:
        """Grant window for the rest of the message that has begun, or for the beginning of another.

        A window of which more than half is left is large enough: small messages need no WINDOW_UPDATE each.
        """
        if (missing := self._incoming.missing) or self._stream.receive_window < self._half_window:
            self._connection.grant(self._stream, missing or self._connection.settings.http2.stream_window_bytes)
