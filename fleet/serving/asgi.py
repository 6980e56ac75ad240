"""ASGI's types, and what the parts of this room leave for each other in a scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from fleet.problems import Problem
from fleet.serving.peer import Peer

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ZERO_COPY = "http.response.zerocopysend"
"""ASGI's extension by which the kernel sends a file: {"file", "offset", "count", "more_body"}."""


def peer_of(scope: Scope) -> Peer:
    """Who asks, once `identity` has looked."""
    peer: Peer = scope["state"]["peer"]
    return peer


def request_id(scope: Scope) -> str:
    """How the log names this request."""
    return str(scope.get("state", {}).get("request_id", ""))


def name_caller(scope: Scope, name: str) -> None:
    """What the access log calls the caller: for who is known by an API token. Never the token."""
    scope["state"]["caller"] = name


def header_values(scope: Scope, name: str) -> list[str]:
    """All values of a header, in order."""
    wanted = name.lower().encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key == wanted]


def without_headers(scope: Scope, names: Iterable[str]) -> None:
    """Nobody further in sees these headers."""
    gone = {name.lower().encode() for name in names}
    scope["headers"] = [(key, value) for key, value in scope["headers"] if key not in gone]


async def respond(problem: Problem, scope: Scope, send: Send) -> None:
    """Send a refusal."""
    instance = request_id(scope)
    body = problem.body(f"urn:uuid:{instance}" if instance else "")
    headers = [(b"content-type", problem.media_type.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in problem.headers]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
