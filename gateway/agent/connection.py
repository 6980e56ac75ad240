"""Connections that a server cannot drag out: urllib3's pools, with every read under the patience of a download.

urllib3's own read time-out holds for each `recv`: a server that sends one byte of a header now and then keeps it for
hours. Here headers and body alike are read through `_Patient`, so deadline and minimum rate hold from the first byte.

They are kept and shared by all who ask: a TLS handshake costs a controller more than all else of a question.
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

from gateway.agent.pace import NS, Patience
from gateway.agent.settings import FetchSettings
from gateway.agent.tls import tls_context
from gateway.domain.errors import ConfigurationError

SHORTEST_WAIT_S = 0.001
"""A socket's time-out of 0 would mean not to wait at all."""


class HungUpError(Exception):
    """A server took longer, or sent less, than it may. Not an OSError: urllib3 passes it on as it is."""


class Line:
    """Who asks, one request at a time: the patience of the download under way, on whatever connection."""

    def __init__(self, settings: FetchSettings, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = now_ns
        self.patience: Patience | None = None
        self.connected = False
        """Whether the request under way had to open its connection."""
        self._head_limit_bytes = settings.head_limit_bytes
        self._head_bytes: int | None = None

    @contextmanager
    def head(self) -> Iterator[None]:
        """Until the block ends, what comes is a head: http.client reads any number of "100 Continue"."""
        self._head_bytes, self.connected = 0, False
        asking = _ASKING.set(self)
        try:
            yield
        finally:
            _ASKING.reset(asking)
            self._head_bytes = None

    def wait_s(self) -> float:
        """How long the next read may take. Raises HungUpError where there is to be none."""
        if self.patience is None:
            raise HungUpError("nothing is being fetched")
        verdict = self.patience.next_read(self.now_ns())
        if verdict.problem:
            raise HungUpError(verdict.problem)
        return max(SHORTEST_WAIT_S, verdict.wait_ns / NS)

    def came(self, count_bytes: int) -> None:
        """So much was read. Raises HungUpError for a head that has no end."""
        if self.patience is not None:
            self.patience.came(count_bytes, self.now_ns())
        if self._head_bytes is not None:
            self._head_bytes += count_bytes
            if self._head_bytes > self._head_limit_bytes:
                raise HungUpError(f"its headers have more than {self._head_limit_bytes} bytes")


_ASKING: ContextVar[Line] = ContextVar("asking")
"""Whose request it is that a connection carries; its answer, head and body, is under that one's patience."""


class _Patient(io.RawIOBase):
    """The reading end of a connection. `inner` keeps the socket open until it is closed (socket.makefile's rule)."""

    def __init__(self, connection: socket.socket, inner: io.BufferedReader, line: Line) -> None:
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


class Connections:
    """One to each of a few hosts, kept from one request to the next, whoever asks; from any thread. Close it when
    done."""

    def __init__(self, settings: FetchSettings) -> None:
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of odd headers with a trace; we judge what came
        self.settings = settings
        self._managers: dict[str | None, urllib3.PoolManager] = {}
        self._context: ssl.SSLContext | None = None
        self._preparing = threading.Lock()

    def close(self) -> None:
        """Close those that are idle; those in use end with their answer."""
        for manager in self._managers.values():
            manager.clear()

    def renew(self) -> None:
        """This device has another certificate: it is shown from the next request on, by whoever asks then."""
        with self._preparing:
            self._managers, self._context = {}, None  # not cleared: somebody may be about to ask by one of them

    def prepare(self, base_url: str) -> urllib3.PoolManager:
        """What `ask` will need. Raises ConfigurationError for certificates or a proxy that cannot be used."""
        proxy, settings = _proxy(base_url, self.settings), self.settings
        with self._preparing:
            if base_url.startswith("https:") or settings.ca_file or settings.certificate_file:
                self._tls_context()
            if proxy not in self._managers:
                self._managers[proxy] = self._manager(proxy)
            return self._managers[proxy]

    def ask(self, line: Line, base_url: str, method: str, url: str, **more: Any) -> urllib3.BaseHTTPResponse:
        """The answer's head; the body is the caller's to read and to close. `base_url` says by which proxy.

        A server may close a kept connection at any moment, also just when it is used: then it is asked once more, on a
        new one. What is sent here may be sent twice: documents are read, telemetry is numbered, keys stay the same.
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
        """Made once, and not before it is needed: reading the system's certificates takes 20 ms."""
        if self._context is None:
            self._context = tls_context(self.settings)
        return self._context


def _opened(
    manager: urllib3.PoolManager, line: Line, method: str, url: str, more: dict[str, Any]
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
            """As urllib3 asks of an idle one; after a while servers, and what lies between, forget it."""
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
    """Through which a base URL is reached; None: none."""
    if settings.proxy or not settings.environment_proxy:
        return settings.proxy or None
    parts = urllib.parse.urlsplit(base_url)
    passed = urllib.request.proxy_bypass(parts.hostname or "")
    return None if passed else urllib.request.getproxies().get(parts.scheme)
