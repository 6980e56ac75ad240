"""HTTP connections with a deadline and a minimum rate for every response.

The read time-out of urllib3 applies to each `recv`: a server that sends one byte of a header from time to time can hold
a connection for hours. Here, headers and bodies are read through `_Patient`, so deadline and minimum rate apply from
the first byte.

Connections are kept alive and shared: a TLS handshake is the most expensive part of a poll for a controller.
"""

from __future__ import annotations

import io
import logging
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPResponse
from typing import Any

import urllib3
from urllib3.exceptions import ProtocolError, SSLError

from gateway.common.domain.errors import ConfigurationError
from gateway.common.transfer.pace import NS, TransferPace
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.tls import tls_context

SHORTEST_WAIT_S = 0.001
"""Shortest socket time-out. A time-out of 0 would make the socket non-blocking."""


class HungUpError(Exception):
    """A server exceeded a limit of time or size. Not an OSError, so urllib3 passes it on unchanged."""


class RequestState:
    """State of one caller's request under way, on any connection; one request at a time."""

    def __init__(self, settings: FetchSettings, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = now_ns
        self.patience: TransferPace | None = None
        self.connected = False
        """True if the request under way had to open its connection."""
        self._head_limit_bytes = settings.head_limit_bytes
        self._head_bytes: int | None = None

    @contextmanager
    def head(self) -> Iterator[None]:
        """Count bytes as response headers until the block ends: http.client reads any number of "100 Continue"."""
        self._head_bytes, self.connected = 0, False
        asking = _ASKING.set(self)
        try:
            yield
        finally:
            _ASKING.reset(asking)
            self._head_bytes = None

    def wait_s(self) -> float:
        """Return the longest time for the next read. Raise HungUpError if a limit is exceeded."""
        if self.patience is None:
            raise HungUpError("nothing is being fetched")
        verdict = self.patience.next_read(self.now_ns())
        if verdict.problem:
            raise HungUpError(verdict.problem)
        return max(SHORTEST_WAIT_S, verdict.wait_ns / NS)

    def came(self, count_bytes: int) -> None:
        """Count bytes that were read. Raise HungUpError if the headers exceed their limit."""
        if self.patience is not None:
            self.patience.came(count_bytes, self.now_ns())
        if self._head_bytes is not None:
            self._head_bytes += count_bytes
            if self._head_bytes > self._head_limit_bytes:
                raise HungUpError(f"its headers have more than {self._head_limit_bytes} bytes")


_ASKING: ContextVar[RequestState] = ContextVar("asking")
"""Request that a connection carries now; its limits apply to the headers and body of the response."""


class _Patient(io.RawIOBase):
    """Reading end of a connection. `inner` keeps the socket open until it is closed (as socket.makefile requires)."""

    def __init__(self, connection: socket.socket, inner: io.BufferedReader, line: RequestState) -> None:
        self._socket, self._inner, self._line = connection, inner, line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            self._socket.settimeout(self._line.wait_s())
            try:
                count = self._socket.recv_into(buffer)
            except TimeoutError:
                continue
            self._line.came(count)
            return count

    def close(self) -> None:
        self._inner.close()
        super().close()


class ConnectionPool:
    """Pool of one connection per host, for a few hosts; shared by callers on any thread. Close it after use."""

    def __init__(self, settings: FetchSettings) -> None:
        logging.getLogger("urllib3").setLevel(
            logging.ERROR
        )  # it logs tracebacks for malformed headers; responses are checked here
        self.settings = settings
        self._managers: dict[str | None, urllib3.PoolManager] = {}
        self._context: ssl.SSLContext | None = None
        self._preparing = threading.Lock()

    def close(self) -> None:
        """Close idle connections. Connections in use close after their response."""
        for manager in self._managers.values():
            manager.clear()

    def renew(self) -> None:
        """Use the device's new certificate for every later request."""
        with self._preparing:
            self._managers, self._context = {}, None  # not cleared: another thread may be about to use one of them

    def prepare(self, base_url: str) -> urllib3.PoolManager:
        """Return the pool for `base_url`. Raise ConfigurationError if certificates or the proxy are not usable."""
        proxy, settings = _proxy(base_url, self.settings), self.settings
        with self._preparing:
            if base_url.startswith("https:") or settings.ca_file or settings.certificate_file:
                self._tls_context()
            if proxy not in self._managers:
                self._managers[proxy] = self._manager(proxy)
            return self._managers[proxy]

    def ask(self, line: RequestState, base_url: str, method: str, url: str, **more: Any) -> urllib3.BaseHTTPResponse:
        """Return the head of the response; the caller reads and closes the body. `base_url` selects the proxy.

        A server may close a kept connection at any time, even as it is used. Then the request is repeated once on a new
        connection. All requests of the agent are safe to repeat: documents are read, telemetry is numbered, keys stay
        the same.
        """
        manager = self.prepare(base_url)
        try:
            return _opened(manager, line, method, url, more)
        except (ProtocolError, SSLError):
            if line.connected:
                raise
            return _opened(manager, line, method, url, more)

    def _manager(self, proxy: str | None) -> urllib3.PoolManager:
        hosts: dict[str, Any] = {"num_pools": 4, "maxsize": 1}
        try:
            manager = urllib3.ProxyManager(proxy, **hosts) if proxy else urllib3.PoolManager(**hosts)
        except urllib3.exceptions.HTTPError as error:
            raise ConfigurationError(f"is not usable: {error}", table="fetch", key="proxy") from error
        manager.pool_classes_by_scheme = {"http": self._plain_pool, "https": self._tls_pool}  # type: ignore[dict-item]
        return manager

    def _plain_pool(self, host: str, port: int, **keywords: Any) -> urllib3.HTTPConnectionPool:
        return _patient_pool(urllib3.HTTPConnectionPool(host, port, **keywords), self.settings.keep_alive_s)

    def _tls_pool(self, host: str, port: int, **keywords: Any) -> urllib3.HTTPConnectionPool:
        with self._preparing:
            keywords["ssl_context"] = self._tls_context()
        return _patient_pool(urllib3.HTTPSConnectionPool(host, port, **keywords), self.settings.keep_alive_s)

    def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS context. It is made on first use: reading the system's certificates takes 20 ms."""
        if self._context is None:
            self._context = tls_context(self.settings)
        return self._context


def _opened(
    manager: urllib3.PoolManager, line: RequestState, method: str, url: str, more: dict[str, Any]
) -> urllib3.BaseHTTPResponse:
    with line.head():
        return manager.urlopen(
            method, url, retries=False, redirect=False, preload_content=False, decode_content=False, **more
        )


def _patient_pool(pool: urllib3.HTTPConnectionPool, keep_alive_s: float) -> urllib3.HTTPConnectionPool:
    kind: Any = pool.ConnectionCls

    class Patient(kind):  # type: ignore[misc]
        response_class = staticmethod(_answer)
        answered_s = 0.0

        @property
        def is_connected(self) -> bool:
            """True if urllib3 may reuse the idle connection: servers and middleboxes drop old ones."""
            return bool(super().is_connected) and time.monotonic() - self.answered_s < keep_alive_s

        def connect(self) -> None:
            _ASKING.get().connected = True
            super().connect()

        def getresponse(self) -> Any:
            self.answered_s = time.monotonic()
            return super().getresponse()

    pool.ConnectionCls = Patient
    return pool


def _answer(connection: socket.socket, *arguments: Any, **keywords: Any) -> HTTPResponse:
    response = HTTPResponse(connection, *arguments, **keywords)
    response.fp = io.BufferedReader(_Patient(connection, response.fp, _ASKING.get()))
    return response


def _proxy(base_url: str, settings: FetchSettings) -> str | None:
    """Return the proxy for a base URL, or None."""
    if settings.proxy or not settings.environment_proxy:
        return settings.proxy or None
    parts = urllib.parse.urlsplit(base_url)
    passed = urllib.request.proxy_bypass(parts.hostname or "")
    return None if passed else urllib.request.getproxies().get(parts.scheme)
