"""Who comes in: the caller, and how many requests there may be at once; a request that a stop cuts off is told so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.domain.errors import Fault, RequestError
from gateway.frontends.http.bounds import Refuse
from gateway.wire.asgi import Application, Message, Receive, Scope, Send, respond

_log = logging.getLogger(__name__)


class Door:
    """ASGI application in front of `app`: names the caller in `scope["state"]["caller"]`.

    `admit` gives the caller's name or raises RequestError; `open_paths` are answered to anybody at any load.
    """

    def __init__(
        self,
        app: Application,
        admit: Callable[[Scope], str],
        refuse: Refuse,
        *,
        max_requests: int,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._admit, self._refuse = app, admit, refuse
        self._max_requests, self._open_paths = max_requests, open_paths
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["caller"] = self._admit(scope)
            self._check_load()
        except RequestError as error:
            await respond(self._refuse.error(error), send)
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
                await respond(self._refuse.error(error), send)
        finally:
            self._inside -= 1

    def _check_load(self) -> None:
        if self._inside >= self._max_requests:
            raise RequestError(
                Fault.OVERLOADED, f"{self._inside} requests are in progress, as many as are allowed; try again later"
            )
