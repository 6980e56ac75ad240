"""Connection of a simulated device to its controller, opened on demand, with failover to another replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.common.timeouts import timeout
from tests.load.tally import Tally
from tests.load.wire import ClientConnection, Context, Response, ServerAddress

if TYPE_CHECKING:
    import h11

Headers = Sequence[tuple[str, str]]


class LostError(Exception):
    """No usable response arrived, or the failure is temporary. It has been counted."""


class DeviceHttpClient:
    """HTTP client of one device. `servers`: replicas; a device keeps one until it fails. `resume`: of TLS sessions."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        tally: Tally,
        number: int,
        context: Context | None,
        *,
        at: int,
        resume: bool = False,
    ) -> None:
        """Keep the parameters. `number` is the device's, `at` the index of its first replica."""
        self._servers, self._tally, self._context, self._resume = servers, tally, context, resume
        self._number, self.at = number, at % len(servers)
        self._connection: ClientConnection | None = None

    async def ask(self, what: str, method: str, path: str, body: bytes = b"", headers: Headers = ()) -> Response:
        """Send a request and return the response. It is counted as `what`. Raise LostError."""
        import h11

        try:
            async with timeout(self._server.timeout_s):
                return await self._ask_twice(what, self._request(method, path, body, headers), body)
        except (OSError, EOFError, h11.ProtocolError) as error:
            self.close()
            self.at = (self.at + 1) % len(self._servers)
            self._tally.failed(what, type(error).__name__)
            raise LostError from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            if self._resume and self._context is not None:
                self._context.resumed = self._connection.session
            self._connection.close()
            self._connection = None

    @property
    def _server(self) -> ServerAddress:
        return self._servers[self.at]

    def _request(self, method: str, path: str, body: bytes, headers: Headers) -> h11.Request:
        import h11

        fixed = [("Host", self._server.host), ("User-Agent", "edge-fleet-simulate"), ("Accept", "application/json")]
        length = [("Content-Length", str(len(body)))] if body or method != "GET" else []
        return h11.Request(method=method, target=self._server.base + path, headers=[*fixed, *length, *headers])

    async def _ask_twice(self, what: str, request: h11.Request, body: bytes) -> Response:
        """Send the request; repeat it on a new connection if a kept one fails, since the server may have closed it."""
        if self._connection is not None and self._connection.usable:
            try:
                return await self._exchange(what, self._connection, request, body)
            except (OSError, EOFError):
                pass
        self.close()
        self._connection = await self._opened()
        return await self._exchange(what, self._connection, request, body)

    async def _opened(self) -> ClientConnection:
        began, server = time.perf_counter(), self._server
        reader, writer = await asyncio.open_connection(
            server.address,
            server.port,
            ssl=self._context,
            server_hostname=server.host if self._context else None,
            local_addr=server.source(self._number),
        )
        connection = ClientConnection(reader, writer)
        self._tally.connected(time.perf_counter() - began, resumed=connection.resumed)
        return connection

    async def _exchange(self, what: str, connection: ClientConnection, request: h11.Request, body: bytes) -> Response:
        began = time.perf_counter()
        answer, sent_bytes = await connection.exchange(request, body)
        self._tally.answered(what, answer.status, time.perf_counter() - began)
        self._tally.sent_bytes += sent_bytes
        self._tally.received_bytes += answer.size_bytes
        return answer
