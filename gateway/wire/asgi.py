"""ASGI's types, and a refusal as it goes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = tuple[tuple[str, str], ...]


class Answer(Protocol):
    """A refusal as it goes out."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def media_type(self) -> str: ...
    @property
    def body(self) -> bytes: ...


Plain = Callable[[int, str, Headers], Answer]
"""Words a status code, what happened, and more headers: where a connection refuses, before any application."""


async def respond(answer: Answer, send: Send) -> None:
    """Send a refusal."""
    headers = [(b"content-type", answer.media_type.encode()), (b"content-length", str(len(answer.body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
