"""Timeouts of one connection, with one timer: handshake, requests, answers, silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Protocol

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends import settings as limits
from gateway.serving.frontends.connections import HALF_OPEN_S
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.streaming import Streaming
from gateway.serving.frontends.grpc_v2.transport.unary import Unary

CHECKS = 4
"""Checks of a limit while it runs: an overrun is noticed at most a quarter of its limit late."""
SOON_NS = 1_000_000
"""Shortest wait: clocks are not exact."""
ALIVE = b"alive?\0\0"
"""PING of an idle connection."""


class TimedConnection(Protocol):
    """Connection as its timeouts use it. Implemented by `GrpcConnection`."""

    received_ns: int
    """Time at which the last bytes came."""

    @property
    def settled(self) -> bool:
        """Return True if the peer has completed the HTTP/2 handshake."""

    @property
    def busy(self) -> bool:
        """Return True if anything is under way that the peer could delay."""

    @property
    def has_unsent_bytes(self) -> bool:
        """Return True if bytes wait that the peer has not taken."""

    @property
    def written(self) -> tuple[int, int]:
        """Return a value that changes whenever the peer takes waiting bytes."""

    def streams(self) -> list[Stream]:
        """Return the open streams, the oldest first."""

    def end_with_error(self, stream: Stream, error: RequestError) -> None:
        """End a call with an error."""

    def ping(self, payload: bytes) -> None:
        """Send a PING."""

    def flush(self) -> None:
        """Write all frames."""

    def abort(self) -> None:
        """End the connection at once."""


class Timeouts:
    """Timeouts of a connection. While nothing is under way, the timer waits for the keepalive, hours ahead."""

    def __init__(self, connection: TimedConnection, settings: GrpcSettings) -> None:
        self._connection, self._settings = connection, settings
        self._loop = asyncio.get_running_loop()
        self._busy_ns = int(
            min(settings.receive_timeout_s, settings.write_timeout_s, limits.BODY_PAUSE_S) / CHECKS * 1e9
        )
        self._opened_ns = self._stuck_ns = connection.received_ns = time.monotonic_ns()
        self._pinged_ns: int | None = None
        self._taken = (0, 0)
        self.was_idle = False
        """State at the last check: nothing was under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._arm(self._next_ns(self._opened_ns))

    def wake(self) -> None:
        """Check sooner: the peer sent bytes while nothing was under way."""
        if self._connection.busy:
            self._arm(self._busy_ns)

    def stop(self) -> None:
        """Stop the timer: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, wait_ns: int) -> None:
        self.stop()
        self.was_idle = False
        self._timer = self._loop.call_later(wait_ns / 1e9, self._check)

    def _check(self) -> None:
        """End the connection if its peer is too late; refuse requests that are not complete in time."""
        now_ns, connection = time.monotonic_ns(), self._connection
        unsettled = not connection.settled and now_ns - self._opened_ns >= self._settings.handshake_timeout_s * 1e9
        if unsettled or self._stuck(now_ns) or self._silent(now_ns):
            connection.abort()
            return
        # Streams are in the order in which they were opened.
        limit_s = self._settings.receive_timeout_s
        since_ns, paused_ns = now_ns - int(limit_s * 1e9), now_ns - int(limits.BODY_PAUSE_S * 1e9)
        late = f"the request did not arrive within {limit_s} s ([grpc] receive_timeout_s)"
        paused = f"the request paused for {limits.BODY_PAUSE_S:g} s; send its bytes without such pauses"
        for stream in connection.streams():
            if stream.opened_ns > max(since_ns, paused_ns):
                break
            if stream.opened_ns <= since_ns and _is_late(stream, since_ns):
                connection.end_with_error(stream, RequestError(Fault.EXPIRED, late))
            elif isinstance(stream.call, Unary) and stream.call.late(paused_ns):
                connection.end_with_error(stream, RequestError(Fault.EXPIRED, paused))
        connection.flush()
        wait_ns = self._next_ns(now_ns)
        self._arm(wait_ns)
        self.was_idle = wait_ns > self._busy_ns

    def _next_ns(self, now_ns: int) -> int:
        settings = self._settings
        if self._pinged_ns is not None:
            ends_ns = self._pinged_ns + settings.keepalive_timeout_ms * 1_000_000
        else:
            ends_ns = self._connection.received_ns + settings.keepalive_ms * 1_000_000
        if not self._connection.settled:
            ends_ns = min(ends_ns, self._opened_ns + int(settings.handshake_timeout_s * 1e9))
        if self._connection.busy:
            ends_ns = min(ends_ns, now_ns + self._busy_ns)
        return max(ends_ns - now_ns, SOON_NS)

    def _stuck(self, now_ns: int) -> bool:
        """Return True if answers wait and the peer has taken none of them for too long."""
        taken = self._connection.written
        if not self._connection.has_unsent_bytes or taken != self._taken:
            self._taken, self._stuck_ns = taken, now_ns
        return now_ns - self._stuck_ns >= self._settings.write_timeout_s * 1e9

    def _silent(self, now_ns: int) -> bool:
        """Return True if a PING was not answered; send one if no bytes came for long."""
        if self._pinged_ns is not None:
            if self._connection.received_ns < self._pinged_ns:
                return now_ns - self._pinged_ns >= self._settings.keepalive_timeout_ms * 1_000_000
            self._pinged_ns = None
        if now_ns - self._connection.received_ns >= self._settings.keepalive_ms * 1_000_000:
            self._pinged_ns = now_ns
            self._connection.ping(ALIVE)
        return False


def are_half_open(streams: Collection[Stream]) -> bool:
    """Return True if there are streams, and all are unary requests that began `HALF_OPEN_S` ago and lack a part."""
    since_ns = time.monotonic_ns() - int(HALF_OPEN_S * 1e9)
    return bool(streams) and all(type(each.call) is Unary and each.opened_ns < since_ns for each in streams)


def _is_late(stream: Stream, since_ns: int) -> bool:
    """Return True if the request of a stream that is old enough should be complete."""
    call = stream.call
    if call is None:  # only its headers came; or it was answered, and the answer is not taken
        return stream.waiting is None
    if isinstance(call, Unary):
        call.cancel()
        return True
    return isinstance(call, Streaming) and call.late(since_ns)
