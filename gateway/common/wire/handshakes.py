"""TLS handshakes, limited in number at one time, per address, and by `begins`.

asyncio's own server accepts every silent connection and keeps a buffer of 256 KiB for each: one address could fill the
memory.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from socket import socket
from typing import Any

from gateway.common.wire.bounds import ACCEPTED_PER_PASS, LATE_S

READ_BYTES = 32_768
"""Bytes read at a time out of TLS: asyncio keeps a buffer of that size for each connection, 256 KiB by default."""
UNLIMITED_S = 86_400.0
"""Time limit for asyncio, which does not see that this process was late."""
SHUTDOWN_S = 30.0
"""Time limit for the end of TLS with Python 3.10, whose asyncio has none. It applies to all connections."""
PAUSE_S = 1.0
"""Pause before another attempt if this process or machine has too many open files."""
_log = logging.getLogger(__name__)

if sys.version_info < (3, 11):

    def _start_shutdown(protocol: Any, begin: Callable[[Any], None] = SSLProtocol._start_shutdown) -> None:
        """End TLS; abort the connection if the peer does not answer within asyncio's time limit of later versions."""
        begin(protocol)
        protocol._loop.call_later(SHUTDOWN_S, protocol._abort)

    SSLProtocol._start_shutdown = _start_shutdown  # type: ignore[assignment,method-assign]


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    """Limits for all ports of a server.

    `timeout_s`: of a handshake. `most`: handshakes at one time. `most_of_group`: those with one `group` of addresses
    ("" is limited by `most` alone). `begins`: returns True if a group may begin another one now. `context` is called
    for each handshake. `counts`: `handshakes_turned_away`, `handshakes_failed`.
    """

    context: Callable[[], ssl.SSLContext]
    timeout_s: float
    most: int
    most_of_group: int
    group: Callable[[str], str] = str
    counts: Counter[str] = field(default_factory=Counter)
    begins: Callable[[str], bool] = lambda _group: True
    ended: Callable[[str], None] = lambda _group: None
    """Callback for each handshake of a group that began and has ended."""


class Handshakes:
    """Handshakes of one listening socket, on the event loop, from construction on.

    `connect` makes the protocol for a peer after its handshake.
    """

    def __init__(self, listener: socket, connect: Callable[[], asyncio.Protocol], terms: HandshakeLimits) -> None:
        SSLProtocol.max_size = READ_BYTES  # type: ignore[attr-defined]  # no such buffer before Python 3.11
        self._listener, self._connect, self._terms = listener, connect, terms
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._fresh: set[socket] = set()
        self._addresses: Counter[str] = Counter()
        self._attending = self._closed = False
        listener.setblocking(False)
        self._attend()

    def close(self) -> None:
        """Accept no more connections, and end the handshakes under way. It may be called twice."""
        self._ignore()
        self._closed = True
        self._listener.close()
        for task in self._under_way:
            task.cancel()
        for peer in self._fresh:  # a task that has not begun never will
            peer.close()

    async def wait_closed(self) -> None:
        """Wait until the handshakes have ended."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _attend(self) -> None:
        if not (self._closed or self._attending):
            self._attending = True
            self._loop.add_reader(self._listener, self._accept)

    def _ignore(self) -> None:
        if self._attending:
            self._attending = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        """Accept waiting connections; further ones stay in the kernel's backlog until a pass, or a handshake's end."""
        try:
            for _ in range(min(ACCEPTED_PER_PASS, self._terms.most - len(self._under_way))):
                self._admit(*self._listener.accept())
            if len(self._under_way) >= self._terms.most:
                self._ignore()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("no connection is accepted for %g s: %s", PAUSE_S, error)
            self._ignore()
            self._loop.call_later(PAUSE_S, self._attend)

    def _admit(self, peer: socket, address: tuple[str, int]) -> None:
        group = self._terms.group(address[0])
        terms = self._terms
        if group and (self._addresses[group] >= terms.most_of_group or not terms.begins(group)):
            terms.counts["handshakes_turned_away"] += 1
            peer.close()
            return
        self._addresses[group] += 1
        self._fresh.add(peer)
        task = self._loop.create_task(self._shaken(peer))
        self._under_way.add(task)
        task.add_done_callback(lambda done: self._ended(done, group))

    async def _shaken(self, peer: socket) -> None:
        """Complete a peer's handshake. One that fails, is aborted or uses no TLS is closed and counted, not logged."""
        self._fresh.discard(peer)
        limit_s, due_s, time_s = self._terms.timeout_s, 0.0, self._loop.time
        context = self._terms.context()
        ends: dict[str, Any] = {"ssl_shutdown_timeout": limit_s} if sys.version_info >= (3, 11) else {}
        connecting = self._loop.connect_accepted_socket(
            self._connect, peer, ssl=context, ssl_handshake_timeout=UNLIMITED_S, **ends
        )
        shaking = self._loop.create_task(connecting)
        try:
            while not shaking.done() and time_s() > due_s + LATE_S:  # again if not the peer was late, but this process
                due_s = time_s() + limit_s
                await asyncio.wait((shaking,), timeout=limit_s)
        finally:
            shaking.cancel()
        (ended,) = await asyncio.gather(shaking, return_exceptions=True)
        if isinstance(ended, OSError | asyncio.CancelledError):
            self._terms.counts["handshakes_failed"] += 1
        elif isinstance(ended, BaseException):
            raise ended

    def _ended(self, task: asyncio.Task[None], group: str) -> None:
        self._under_way.discard(task)
        self._addresses[group] -= 1
        if group:
            self._terms.ended(group)
        if not self._addresses[group]:
            del self._addresses[group]
        self._attend()
