"""HTTP/1.1 over mutual TLS: h11 for the protocol, asyncio for transport, nothing shared between devices."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.retry import retry_after_s

if TYPE_CHECKING:
    import h11

PIECE_BYTES = 65_536
ANSWER_LIMIT_BYTES = 8_388_608
"""Largest response that is read: more than any signed metadata."""
LOOPBACK_NETWORK = 127 << 24
FIRST_ADDRESS, ADDRESSES = 1 << 16, 1 << 23
"""Range of loopback addresses from 127.1.0.0 on. Programs usually bind to lower ones."""


@dataclass(frozen=True, slots=True)
class Response:
    """Response of the controller. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    size_bytes: int = 0

    @property
    def retry_after_s(self) -> float:
        """Seconds from the Retry-After header; 0 without one."""
        return retry_after_s(self.headers.get("retry-after", ""), datetime.now(timezone.utc))


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server.

    `address`: of `host`, resolved once; `base`: the path before every route; `spread`: each device uses a loopback
    address of its own.
    """

    host: str
    address: str
    port: int
    base: str
    tls: bool
    timeout_s: float
    spread: bool

    def source(self, number: int) -> tuple[str, int] | None:
        """Return the source address of a device, or None to let the system choose."""
        if not self.spread:
            return None
        value = LOOPBACK_NETWORK + FIRST_ADDRESS + number % ADDRESSES
        return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0)), 0


async def find_server(url: str, timeout_s: float, *, spread: bool) -> ServerAddress:
    """Resolve a URL. Raise ConfigurationError if it is invalid or its host name cannot be resolved."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"{url!r:.200} is no http or https URL of a controller")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=1)
    except OSError as error:
        raise ConfigurationError(f"{parts.hostname}: {error.strerror or error}; is --url right?") from None
    address = min((str(entry[4][0]) for entry in found), key=lambda address: ":" in address)
    local = address.startswith("127.")
    return ServerAddress(
        parts.hostname, address, port, parts.path.rstrip("/"), parts.scheme == "https", timeout_s, spread and local
    )


class Context(ssl.SSLContext):
    """TLS context of one device. `resumed`: the last TLS session if it is to be resumed."""

    resumed: ssl.SSLSession | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Add the session to asyncio's call, which cannot pass one."""
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session or self.resumed)


def device_context(authority: str, identity: bytes) -> Context:
    """Return the TLS context of a device. Raise ConfigurationError.

    `authority`: PEM of trusted authorities, "" for the system's; `identity`: key and certificates in PEM, b"" for none.
    1 ms and 23 KB each (CPython 3.11, OpenSSL 3.0).
    """
    context = Context(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authority:
            context.load_verify_locations(cadata=authority)
        else:
            context.load_default_certs()
        if identity:
            _show(context, identity)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"certificates cannot be used: {error}") from None
    return context


def _show(context: ssl.SSLContext, identity: bytes) -> None:
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)  # OpenSSL reads keys from files only
    try:
        os.write(descriptor, identity)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    finally:
        os.close(descriptor)


class ClientConnection:
    """An established connection. Methods raise OSError, EOFError or h11.ProtocolError; close it then."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        self._reader, self._writer = reader, writer
        self._h11, self._protocol = h11, h11.Connection(h11.CLIENT)

    @property
    def usable(self) -> bool:
        """Return whether neither side has closed it, as far as is known."""
        idle = self._protocol.our_state is self._h11.IDLE
        return idle and not self._reader.at_eof() and not self._writer.is_closing()

    @property
    def resumed(self) -> bool:
        """Return whether its TLS session was resumed."""
        encrypted: Any = self._writer.get_extra_info("ssl_object")
        return bool(encrypted and encrypted.session_reused)

    @property
    def session(self) -> ssl.SSLSession | None:
        """The TLS session, with which a later handshake is cheaper."""
        encrypted: Any = self._writer.get_extra_info("ssl_object")
        found: ssl.SSLSession | None = encrypted.session if encrypted else None
        return found

    def close(self) -> None:
        """Abort the connection without a TLS close_notify, as the agent does."""
        self._writer.transport.abort()

    async def exchange(self, request: h11.Request, body: bytes) -> tuple[Response, int]:
        """Send a request. Return the response and the number of bytes sent."""
        events = [request, *([self._h11.Data(data=body)] if body else []), self._h11.EndOfMessage()]
        sent = b"".join(self._protocol.send(event) or b"" for event in events)
        self._writer.write(sent)
        await self._writer.drain()
        answer = await self._answer()
        done = self._h11.DONE
        if self._protocol.our_state is done and self._protocol.their_state is done:
            self._protocol.start_next_cycle()
        return answer, len(sent)

    async def _answer(self) -> Response:
        status, headers, content, size = 0, {}, bytearray(), 0
        while True:
            event = self._protocol.next_event()
            if event is self._h11.NEED_DATA:
                piece = await self._reader.read(PIECE_BYTES)
                if not piece and not status:
                    raise EOFError
                self._protocol.receive_data(piece)
                size += len(piece)
            elif isinstance(event, self._h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, self._h11.Data):
                content += event.data
                if len(content) > ANSWER_LIMIT_BYTES:
                    raise EOFError
            elif isinstance(event, self._h11.EndOfMessage):
                return Response(status, headers, bytes(content), size)
