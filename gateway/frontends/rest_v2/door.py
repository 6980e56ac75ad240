"""Who comes in: the caller's name and token, and how many requests there may be at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.domain.access import Tokens
from gateway.domain.errors import Fault, RequestError
from gateway.frontends.peer import Peer
from gateway.frontends.rest_v2.errors import Refusal, refusal
from gateway.frontends.rest_v2.settings import RestSettings

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})
"""Asked by supervisors that hold no token; never refused for load, or a busy device would look dead."""

_log = logging.getLogger(__name__)


class Door:
    """ASGI application in front of `app`: checks the token, names the caller in `scope["state"]["caller"]`."""

    def __init__(self, app: Application, settings: RestSettings, tokens: Tokens | None) -> None:
        self._app, self._settings, self._tokens = app, settings, tokens
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["caller"] = caller_of(scope, self._tokens)
            self._check_load()
        except RequestError as error:
            await respond(refusal(error, self._settings.retry_after_s), send)
            return
        await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self._inside += 1
        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            # The frontend stops and the grace is over; this is the request's outermost frame, so it ends here.
            _log.warning("a request to %s was cut off by the shutdown", scope["path"])
            if not started:
                error = RequestError(Fault.UNAVAILABLE, "the gateway is stopping; ask again later")
                await respond(refusal(error, self._settings.retry_after_s), send)
        finally:
            self._inside -= 1

    def _check_load(self) -> None:
        if self._inside >= self._settings.max_requests:
            raise RequestError(
                Fault.OVERLOADED, f"{self._inside} requests are in progress, as many as are allowed; try again later"
            )


def caller_of(scope: Scope, tokens: Tokens | None) -> str:
    """Token, else client certificate, else peer uid, else address (contracts.md). UNAUTHENTICATED without a token."""
    if tokens is not None:
        return tokens.caller(_header(scope, b"authorization"))
    peer: Peer = scope.get("state", {}).get("peer", Peer())
    if peer.name:
        return peer.name
    client = scope.get("client")
    return str(client[0]) if client else ""


async def respond(answer: Refusal, send: Send) -> None:
    """Send a refusal."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer.body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _header(scope: Scope, name: bytes) -> str | None:
    found = next((value for key, value in scope["headers"] if key == name), None)
    return None if found is None else found.decode("latin-1")
