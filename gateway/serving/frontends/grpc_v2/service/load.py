"""Admission control of gRPC calls: calls in progress, streaming calls, waiting answers, in their caller's share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.serving.domain.shares import RefusalReason
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pool, Pools


class Load:
    """Resources in use over all connections."""

    def __init__(self, settings: GrpcSettings, pools: Pools) -> None:
        self.pools = pools
        self.calls = pools.make("grpc calls", "[grpc] max_concurrent_calls", settings.max_concurrent_calls)
        self.streams = pools.make("grpc streams", "[grpc] max_open_streams", settings.max_open_streams)
        self.watches = pools.make("grpc health watches", "fixed", settings.max_health_watches)
        self.waiting = pools.make_bytes(
            "grpc waiting bytes", "[grpc] max_all_waiting_bytes", settings.max_all_waiting_bytes
        )
        self.on_end: Callable[[], None] | None = None
        """Callback after each call that ends, if it is set."""

    @property
    def busy(self) -> int:
        """Return the number of calls and streaming calls that have not ended."""
        return self.calls.used + self.streams.used

    @contextmanager
    def counted(self, pool: Pool, info: CallInfo) -> Iterator[None]:
        """Hold one unit of `pool` for a caller. Raises RequestError OVERLOADED if it is not granted."""
        pool.require(info.share_key, local=info.local)
        try:
            yield
        finally:
            self.release(pool, info)

    def release(self, pool: Pool, info: CallInfo) -> None:
        """Return one unit of `pool`."""
        pool.give(info.share_key, local=info.local)
        if self.on_end is not None:
            self.on_end()


class ConnectionLoad:
    """Resources in use by one connection. `waiting_bytes`: answers that its peer had not taken at the last count."""

    __slots__ = ("_calls", "_key", "_load", "_local", "_settings", "_streams", "waiting_bytes")

    def __init__(self, load: Load, settings: GrpcSettings, peer: Peer) -> None:
        self._load, self._calls, self._settings = load, load.calls, settings
        self._key, self._local = peer.share_key, peer.local
        self._streams = self.waiting_bytes = 0

    def begin_call(self, info: CallInfo) -> None:
        """Count a call in progress. Raises RequestError OVERLOADED, also if the peer takes no answers."""
        if self.waiting_bytes:
            self._check_waiting()
        self._calls.require(info.share_key, local=info.local)

    def end_call(self, info: CallInfo) -> None:
        """Count the end of a call in progress."""
        self._calls.give(info.share_key, local=info.local)
        if self._load.on_end is not None:
            self._load.on_end()

    def begin_stream(self, info: CallInfo) -> None:
        """Count a streaming call. Raises RequestError OVERLOADED, as for a call."""
        if self.waiting_bytes:
            self._check_waiting()
        streams = self._load.streams
        if self._streams >= self._settings.max_connection_streams:
            raise streams.refuse(info.share_key, RefusalReason.CONNECTION)
        streams.require(info.share_key, local=info.local)
        self._streams += 1

    def end_stream(self, info: CallInfo) -> None:
        """Count the end of a streaming call."""
        self._streams -= 1
        self._load.release(self._load.streams, info)

    def count_waiting(self, now_bytes: int) -> None:
        """Set the number of bytes of answers that wait now."""
        self._load.waiting.add(self._key, local=self._local, amount=now_bytes - self.waiting_bytes)
        self.waiting_bytes = now_bytes

    def _check_waiting(self) -> None:
        waiting = self._load.waiting
        if self.waiting_bytes > self._settings.max_waiting_bytes:
            raise waiting.refuse(self._key, RefusalReason.CONNECTION)
        if refusal := waiting.refusal(self._key, local=self._local):
            raise waiting.refuse(self._key, refusal)
