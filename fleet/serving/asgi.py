"""ASGI's types, and what the parts of this room leave for each other in a scope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.problems import Problem, plain_problem
from fleet.serving.peer import Peer
from gateway.wire import asgi
from gateway.wire.asgi import Application, Headers, Message, Receive, Scope, Send

__all__ = (
    "ZERO_COPY", "Application", "Message", "Receive", "Scope", "Send", "header_values", "name_caller", "peer_of",
    "plain", "request_id", "respond", "without_headers",
)  # fmt: skip

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
    await asgi.respond(_written(problem, f"urn:uuid:{instance}" if instance else ""), send)


def plain(status: int, detail: str, headers: Headers = ()) -> asgi.Answer:
    """How a connection refuses, before a request has a number."""
    return _written(plain_problem(status, detail, headers))


@dataclass(frozen=True, slots=True)
class _Written:
    """A problem as it goes out."""

    status: int
    headers: Headers
    media_type: str
    body: bytes


def _written(problem: Problem, instance: str = "") -> _Written:
    return _Written(problem.status, problem.headers, problem.media_type, problem.body(instance))
