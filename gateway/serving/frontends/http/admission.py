"""Admission of requests: the caller, the number of concurrent requests, and the answer to those that a stop ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.wire.asgi import Application, Message, Receive, Scope, Send, respond
from gateway.serving.domain.shares import caller_key
from gateway.serving.frontends.http.bounds import Refuse
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pool

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Caller of a request. `local`: it is on this device. `share_key`: the caller in whose share the request counts."""

    caller: str
    share_key: str
    local: bool

    @classmethod
    def of(cls, peer: Peer, *, caller: str = "", token: str = "") -> Admitted:
        """Return the caller behind a connection, identified by its token if one is required."""
        return cls(token or caller or peer.name, caller_key(token=token) if token else peer.share_key, peer.local)


def stopping() -> RequestError:
    """Return the refusal of a request that a stop ends."""
    return RequestError(Fault.UNAVAILABLE, "the gateway is stopping; ask again later")


class AdmissionMiddleware:
    """ASGI application in front of `app`: stores the caller in `scope["state"]["caller"]`.

    What is entered into the stack `scope["state"]["until_sent"]` is held until the response was sent.

    `admit` returns the caller's name and share key, or raises RequestError. Requests for `open_paths` are answered for
    any caller at any load.
    """

    def __init__(
        self,
        app: Application,
        admit: Callable[[Scope], Admitted],
        refuse: Refuse,
        *,
        requests: Pool,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._admit, self._refuse = app, admit, refuse
        self._requests, self._open_paths = requests, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        try:
            admitted = self._admit(scope)
            self._requests.require(admitted.share_key, local=admitted.local)
        except RequestError as error:
            await respond(self._refuse.at(scope["path"]).error(error), send)
            return
        with ExitStack() as until_sent:
            until_sent.callback(self._requests.give, admitted.share_key, local=admitted.local)
            scope.setdefault("state", {}).update(caller=admitted.caller, admitted=admitted, until_sent=until_sent)
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            # The frontend stops and the grace period is over; this is the request's outermost frame, so it ends here.
            _log.warning("a request to %s was cut off by the shutdown", scope["path"])
            if not started:
                await respond(self._refuse.at(scope["path"]).error(stopping()), send)
