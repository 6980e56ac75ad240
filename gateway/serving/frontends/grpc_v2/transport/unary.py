"""Calls with one request and one reply: the request may come in parts, the reply may have to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ParamSpec, Protocol

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Raw
from gateway.serving.frontends.grpc_v2.calls import Rpc
from gateway.serving.frontends.grpc_v2.framing import Encoded
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.transport.messages import ReceivedMessage, inflate_steps
from gateway.serving.frontends.grpc_v2.transport.ports import CallConnection
from gateway.serving.frontends.grpc_v2.transport.request_headers import RequestHeaders

P = ParamSpec("P")


class Unary:
    """A call whose request is in transit. It counts as a call in progress. Raises RequestError OVERLOADED."""

    __slots__ = ("_connection", "_counted", "_incoming", "_message", "_received_ns", "_stream")

    def __init__(self, connection: CallConnection, stream: Stream) -> None:
        self._connection, self._stream = connection, stream
        self._incoming = connection.incoming(stream)
        self._message: ReceivedMessage | None = None
        self._received_ns = stream.opened_ns
        connection.load.begin_call(stream.headers.info)
        self._counted = True

    def received(self, parts: Sequence[memoryview], ended: bool, now_ns: int) -> None:
        """Add parts of the request's body; start the call if they were the last."""
        self._received_ns = now_ns
        try:
            for message in self._incoming.feed(parts, now_ns):
                if self._message is not None:
                    raise one_request("more than one came")
                self._message = message
            if not ended:
                self._connection.grant(self._stream, self._incoming.missing)
                return
            whole, begun = self._message, self._incoming.begun_ns is not None
            self.cancel()
            if whole is None or begun:
                raise one_request("it ended too soon" if begun else "none came")
            # The stream and this call hold each other, and this call the message: its memory would wait for a search
            # for garbage, and count in its caller's share until then.
            self._message = self._stream.call = None
            self._connection.start(self._stream, whole)
        except RequestError as error:
            self.cancel()
            self._connection.end_with_error(self._stream, error)

    def late(self, since_ns: int) -> bool:
        """Return True if no byte of the request came after `since_ns`."""
        if late := self._received_ns <= since_ns:
            self.cancel()
        return late

    def cancel(self) -> None:
        """Release everything: the call was abandoned, or its request is complete."""
        self._incoming.close()
        if self._counted:
            self._counted = False
            self._connection.load.end_call(self._stream.headers.info)


class AwaitedReply:
    """A call whose reply `reply` returns. `task` is set when it has begun."""

    __slots__ = ("_connection", "_reply", "_stream", "task")

    def __init__(
        self,
        connection: CallConnection,
        stream: Stream,
        reply: Callable[P, Awaitable[Encoded]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        self._connection, self._stream, self._reply = connection, stream, partial(reply, *args, **kwargs)
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Wait for the reply, and send it. Raises RequestError."""
        self._connection.reply(self._stream, *await self._reply())

    def cancel(self) -> None:
        """Cancel the method: the call was abandoned."""
        cancel(self)


class _Running(Protocol):
    task: asyncio.Task[None] | None


def cancel(call: _Running) -> None:
    """Cancel a call's task, and forget it: it keeps the frames in which it ended, with the call and its message."""
    task, call.task = call.task, None
    if task is not None:
        task.cancel()


async def answer_message(message: ReceivedMessage, stream: Stream, connection: CallConnection) -> Encoded:
    """Call the method of a call whose request is complete. Raises RequestError."""
    headers = stream.headers
    content = await decompressed(message, headers, connection)
    rpc: Rpc = headers.rpc
    return rpc.encode(await rpc.answer(rpc.parse(content), headers.info_at(stream.opened_ns)))


async def decompressed(message: ReceivedMessage, headers: RequestHeaders, connection: CallConnection) -> Raw:
    """Return a message's content, decompressed into counted memory.

    Raises as `inflate_steps` and `MessageMemory.take` do.
    """
    if not message.compressed:
        return message.content
    limit_bytes, most_bytes = connection.bounds(headers.rpc)
    steps = inflate_steps(message.content, headers.window_bits, limit_bytes, most_bytes)
    content = await connection.decoding.run(headers.info.caller, steps)
    memory = connection.memory(len(content), headers.info)
    memory[:] = content
    return memory


def one_request(what: str) -> RequestError:
    """Return the error for other than one request (UNIMPLEMENTED, by gRPC's list of status codes)."""
    return RequestError(Fault.UNSUPPORTED, f"this method takes exactly one request, and {what}")
