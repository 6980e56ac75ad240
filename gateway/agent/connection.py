"""Connections that a server cannot drag out: urllib3's pools, with every read under the patience of a download.

urllib3's own read time-out holds for each `recv`: a server that sends one byte of a header now and then keeps it for
hours. Here headers and body alike are read through `_Patient`, so deadline and minimum rate hold from the first byte.
"""

from __future__ import annotations

import io
import logging
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import urllib3

from gateway.agent.pace import NS, Patience
from gateway.agent.settings import FetchSettings
from gateway.agent.tls import tls_context
from gateway.domain.errors import ConfigurationError

SHORTEST_WAIT_S = 0.001
"""A socket's time-out of 0 would mean not to wait at all."""


class HungUpError(Exception):
    """A server took longer, or sent less, than it may. Not an OSError: urllib3 passes it on as it is."""


class Line:
    """What all connections of a source share: the patience of the download under way."""

    def __init__(self, settings: FetchSettings, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = now_ns
        self.patience: Patience | None = None
        self._head_limit_bytes = settings.head_limit_bytes
        self._head_bytes: int | None = None

    @contextmanager
    def head(self) -> Iterator[None]:
        """Until the block ends, what comes is a head: http.client reads any number of "100 Continue"."""
        self._head_bytes = 0
        try:
            yield
        finally:
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


def pools(base_url: str, settings: FetchSettings, line: Line) -> urllib3.PoolManager:
    """One connection to each of a few hosts. Raises ConfigurationError for certificates that cannot be read."""
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of odd headers with a trace; we judge what came
    manager = _manager(base_url, settings)
    secure = base_url.startswith("https:") or settings.ca_file or settings.certificate_file
    prepared = [tls_context(settings)] if secure else []

    def build_plain(host: str, port: int, **keywords: Any) -> urllib3.HTTPConnectionPool:
        return _patient_pool(urllib3.HTTPConnectionPool(host, port, **keywords), line)

    def build_tls(host: str, port: int, **keywords: Any) -> urllib3.HTTPConnectionPool:
        if not prepared:
            prepared.append(
                tls_context(settings)
            )  # redirected from http: reading the system's certificates takes 20 ms
        keywords["ssl_context"] = prepared[0]
        return _patient_pool(urllib3.HTTPSConnectionPool(host, port, **keywords), line)

    manager.pool_classes_by_scheme = {"http": build_plain, "https": build_tls}  # type: ignore[dict-item]
    return manager


def _patient_pool(pool: urllib3.HTTPConnectionPool, line: Line) -> urllib3.HTTPConnectionPool:
    kind: Any = pool.ConnectionCls

    def answer(connection: socket.socket, *arguments: Any, **keywords: Any) -> HTTPResponse:
        response = HTTPResponse(connection, *arguments, **keywords)
        response.fp = io.BufferedReader(_Patient(connection, response.fp, line))
        return response

    def connect(**keywords: Any) -> Any:
        connection = kind(**keywords)
        connection.response_class = answer
        return connection

    pool.ConnectionCls = connect  # type: ignore[assignment]
    return pool


def _manager(base_url: str, settings: FetchSettings) -> urllib3.PoolManager:
    proxy = settings.proxy or None
    if proxy is None and settings.environment_proxy:
        parts = urllib.parse.urlsplit(base_url)
        passed = urllib.request.proxy_bypass(parts.hostname or "")
        proxy = None if passed else urllib.request.getproxies().get(parts.scheme)
    if proxy is None:
        return urllib3.PoolManager(num_pools=4, maxsize=1)
    try:
        return urllib3.ProxyManager(proxy, num_pools=4, maxsize=1)
    except urllib3.exceptions.HTTPError as error:
        raise ConfigurationError(f"is not usable: {error}", table="fetch", key="proxy") from error
