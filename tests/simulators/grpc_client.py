"""gRPC client on the h2 package with manual control of each write and read."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.settings

from gateway.common.domain.access import Address
from gateway.serving.frontends.grpc_v2.calls import INFER
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.http2 import frames

STREAM = INFER.replace("ModelInfer", "ModelStreamInfer")
METADATA = INFER.replace("ModelInfer", "ModelMetadata")
LOAD = INFER.replace("ModelInfer", "RepositoryModelLoad")
WATCH = "/grpc.health.v1.Health/Watch"
LIVE = INFER.replace("ModelInfer", "ServerLive")
Codes = h2.settings.SettingCodes


def framed(content: bytes, flag: int = 0) -> bytes:
    """Return a length-prefixed message."""
    return struct.pack(">BI", flag, len(content)) + content


def infer_request(size: int = 4, model: str = "identity_uint8", **fields: Any) -> bytes:
    """Return a framed ModelInferRequest with `size` bytes of tensor."""
    sent = message("inference.ModelInferRequest")(model_name=model, **fields)
    sent.inputs.add(name="x", datatype="UINT8", shape=[1, size])
    sent.raw_input_contents.append(bytes(size))
    return framed(sent.SerializeToString())


def infer_reply(body: bytes) -> Any:
    """Return the only message of a body."""
    flag, size = struct.unpack_from(">BI", body)
    assert (flag, size) == (0, len(body) - 5)
    return message("inference.ModelInferResponse").FromString(body[5:])


@dataclass
class Reply:
    """Outcome of a call. `ended`: by trailers; `reset`: by RST_STREAM with this code."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def over(self) -> bool:
        """Return whether the call has ended."""
        return self.ended or self.reset is not None

    @property
    def status(self) -> int:
        """The gRPC status."""
        return int(self.headers["grpc-status"])

    @property
    def words(self) -> str:
        """The error message of the server."""
        return unquote(self.headers.get("grpc-message", ""))


class Client:
    """Client. `takes`: acknowledge data that were read, which opens the flow-control windows again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: dict[int, int]) -> None:
        self._reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        values = {Codes.ENABLE_PUSH: 0, Codes.INITIAL_WINDOW_SIZE: 65_535, Codes.MAX_FRAME_SIZE: 16_384, **settings}
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.h2.max_inbound_frame_size = values[Codes.MAX_FRAME_SIZE]  # h2 changes it by SETTINGS only
        self.replies: dict[int, Reply] = {}
        self.takes, self.closed = True, False
        self.goaway: list[tuple[int, int]] = []
        """Last stream and code of each GOAWAY. They are hidden from h2, which would refuse further frames."""
        self._rest = b""
        self.h2.initiate_connection()

    def ask(self, path: str = INFER, body: bytes | None = None, *, end: bool = True, **headers: str) -> int:
        """Open a stream; with `body`, send it and end the stream."""
        number = self.h2.get_next_available_stream_id()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "gateway"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *((name.replace("_", "-"), value) for name, value in headers.items()),
        ]
        self.h2.send_headers(number, fields, end_stream=end and body is None)
        self.replies[number] = Reply()
        if body is not None:
            self.send(number, body, end=end)
        return number

    def send(self, number: int, body: bytes, *, end: bool = False) -> None:
        """Send part of a body, within the windows."""
        most = self.h2.max_outbound_frame_size
        for place in range(0, max(len(body), 1), most):
            last = place + most >= len(body)
            self.h2.send_data(number, body[place : place + most], end_stream=end and last)

    async def flush(self, chunk: int = 0) -> None:
        """Write the pending bytes, in pieces of `chunk` bytes if it is not 0."""
        words = self.h2.data_to_send()
        for place in range(0, len(words), chunk or max(len(words), 1)):
            self.writer.write(words[place : place + (chunk or len(words))])
            await self.writer.drain()
            if chunk:
                await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until the condition holds or the server has closed."""
        await self.flush()
        while not (condition() or self.closed):
            await self.read()

    async def over(self, *numbers: int) -> list[Reply]:
        """Wait for the replies of these calls."""
        await self.until(lambda: all(self.replies[number].over for number in numbers))
        return [self.replies[number] for number in numbers]

    async def call(self, path: str, body: bytes, **headers: str) -> Reply:
        """Send a request and return the reply."""
        (reply,) = await self.over(self.ask(path, body, **headers))
        return reply

    async def infer(self, size: int = 4, **headers: str) -> Reply:
        """Send a small inference."""
        return await self.call(INFER, infer_request(size), **headers)

    async def settled(self) -> None:
        """Wait until the server has processed all that was sent."""
        self.h2.ping(b"settled?")
        heard: list[bool] = []
        await self.flush()
        while not heard and not self.closed:
            heard += [isinstance(event, h2.events.PingAckReceived) for event in await self.read()]
            heard = [True] if any(heard) else []

    async def read(self, most: int = 65_536) -> list[h2.events.Event]:
        """Return the next events from the server."""
        try:
            words = await self._reader.read(most)
        except ConnectionError:
            words = b""
        self.closed = not words
        events = self.h2.receive_data(self._without_goaway(words)) if words else []
        for event in events:
            self._take(event)
        if not self.closed:
            await self.flush()
        return events

    async def gone(self) -> None:
        """Read until the server closes."""
        await self.flush()
        while not self.closed:
            await self.read()

    async def listen(self) -> None:
        """Read until the server closes, without any response to frames."""
        with suppress(ConnectionError):
            while await self._reader.read(65_536):
                pass
        self.closed = True

    def _without_goaway(self, words: bytes) -> bytes:
        """Return the complete frames received, without GOAWAY."""
        words, kept, place = self._rest + words, b"", 0
        while (start := place + frames.HEADER_BYTES) <= len(words):
            high, low, kind, _, _ = frames.HEADER.unpack_from(words, place)
            stop = start + (high << 16 | low)
            if stop > len(words):
                break
            if kind == frames.GOAWAY:
                self.goaway.append(frames.TWO_UINT32.unpack_from(words, start))
            else:
                kept += words[place:stop]
            place = stop
        self._rest = words[place:]
        return kept

    def _take(self, event: h2.events.Event) -> None:
        reply = self.replies.get(getattr(event, "stream_id", None) or 0)
        if reply is None:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            reply.headers |= dict(event.headers or ())
        elif isinstance(event, h2.events.DataReceived):
            reply.body += event.data or b""
            if self.takes:
                self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            reply.ended = True
        elif isinstance(event, h2.events.StreamReset):
            reply.reset = event.error_code


@asynccontextmanager
async def connected(
    address: Address, settings: dict[int, int] | None = None, *, tls: ssl.SSLContext | None = None, greet: bool = True
) -> AsyncIterator[Client]:
    """Connect a client. `greet`: also exchange preface and settings."""
    if address.path:
        reader, writer = await asyncio.open_unix_connection(address.path)
    else:
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, server_hostname=name)
    client = Client(reader, writer, settings or {})
    try:
        if greet:
            await client.settled()
        yield client
    finally:
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):  # the server may have closed before
            await writer.wait_closed()
