"""Rate and concurrency limits per device, API token or address: token buckets in a bounded table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from fleet.controller.problems import ProblemError
from fleet.controller.serving.asgi import Application, Message, Receive, Scope, Send, peer_of
from fleet.controller.serving.settings import RateSettings
from gateway.common.domain.errors import RequestError
from gateway.common.domain.problem import HTTP_STATUS
from gateway.common.domain.retry import TokenBuckets

NS = 1_000_000_000
AGAIN_S = 1.0
"""Retry-After for a caller with too many requests in progress."""
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclass(frozen=True, slots=True)
class _Kind:
    """Limits of devices, API tokens or addresses. `inside`: requests in progress by caller."""

    name: str
    buckets: TokenBuckets
    at_once: int
    inside: Counter[str] = field(default_factory=Counter)


class Rates:
    """ASGI middleware. A device and a valid API token are limited by their names, other callers by their address."""

    def __init__(
        self,
        app: Application,
        settings: RateSettings,
        counts: Counter[str],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._app, self._settings, self._counts, self._now_ns = app, settings, counts, now_ns
        devices = TokenBuckets(settings.device_per_s, settings.device_burst, settings.tracked_limit)
        tokens, addresses = (
            TokenBuckets(settings.address_per_s, settings.address_burst, settings.tracked_limit) for _ in range(2)
        )
        self._devices = _Kind("device", devices, settings.device_at_once)
        self._tokens = _Kind("token", tokens, settings.address_at_once)
        self._addresses = _Kind("address", addresses, settings.address_at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raise ProblemError 429, or RequestError UNAUTHENTICATED for an invalid certificate."""
        peer = peer_of(scope)
        others = self._tokens if peer.token else self._addresses
        kind, key = (self._devices if peer.device else others), peer.caller
        wait_s = kind.buckets.take(key, self._now_ns())
        if wait_s:
            raise self._refusal(kind, f"{_named(key)} sends too many requests; try again in {wait_s:.1f} s", wait_s)
        if kind.inside[key] >= kind.at_once:
            problem = f"{kind.at_once} requests of {_named(key)} are in progress; let one of them end first"
            raise self._refusal(kind, problem, AGAIN_S)

        def fine() -> None:
            """Charge the caller for a 401 or 403."""
            kind.buckets.fine(key, self._now_ns(), self._settings.refusal_cost)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _REFUSALS:
                fine()
            await send(message)

        kind.inside[key] += 1
        try:
            if peer.refusal:
                raise peer.refusal
            await self._app(scope, receive, watched)
        except RequestError as error:
            if HTTP_STATUS[error.fault] in _REFUSALS:
                fine()
            raise
        finally:
            kind.inside[key] -= 1
            if not kind.inside[key]:
                del kind.inside[key]

    def _refusal(self, kind: _Kind, problem: str, wait_s: float) -> ProblemError:
        self._counts[f"rate_limited_{kind.name}"] += 1
        return ProblemError(429, problem, retry_after_s=wait_s)


def _named(key: str) -> str:
    return key or "the user of the UNIX socket"
