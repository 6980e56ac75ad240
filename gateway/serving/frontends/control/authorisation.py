"""Authorisation of control clients, and a log line for each command.

Root, the gateway's own user and the users in `[control] users` may send commands.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Sequence
from http import HTTPStatus

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.wire.asgi import Application, Message, Receive, Scope, Send
from gateway.serving.frontends.http.admission import Admitted
from gateway.serving.frontends.peer import Peer

ROOT = 0
READING = frozenset({"GET", "HEAD", "OPTIONS"})

_log = logging.getLogger(__name__)


def caller_of(scope: Scope, users: Sequence[str]) -> Admitted:
    """Return the peer as admitted caller, `uid:1000`.

    Raises RequestError DENIED for a user that may not send commands.
    """
    uid = _peer(scope).uid
    if may_command(_peer(scope), users):
        return Admitted.of(_peer(scope))
    who = "a peer that is no local process" if uid is None else f"user {_name(uid)}"
    raise RequestError(Fault.DENIED, f"{who} may not command this gateway; add it to [control] users")


def may_command(peer: Peer, users: Sequence[str]) -> bool:
    """Return True for root, the gateway's own user, or one of `users`."""
    uid = peer.uid
    return uid is not None and (uid in {ROOT, os.geteuid()} or any(uid == _uid(user) for user in users))


class Audit:
    """ASGI application in front of `app`: writes one log line for each command and each denied request."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and log its status when the answer begins."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, peer = message["status"], _peer(scope)
                denied = status == HTTPStatus.FORBIDDEN
                if denied or scope["method"] not in READING:
                    who = (
                        "an unknown peer" if peer.uid is None else f"{_name(peer.uid)} (uid {peer.uid}, pid {peer.pid})"
                    )
                    level = logging.WARNING if denied else logging.INFO
                    _log.log(level, "command %s %s by %s: %d", scope["method"], scope["path"], who, status)
            await send(message)

        await self._app(scope, receive, watched)


def _peer(scope: Scope) -> Peer:
    peer: Peer = scope.get("state", {}).get("peer", Peer())
    return peer


def _uid(user: str) -> int | None:
    """Return the user id, looked up on each call: a package may add its user after this gateway has started."""
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
