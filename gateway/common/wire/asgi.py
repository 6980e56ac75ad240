"""Types of ASGI, and the form of a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = tuple[tuple[str, str], ...]


class AsgiRefusal(Protocol):
    """A refusal in the form in which it is sent."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def media_type(self) -> str: ...
    @property
    def body(self) -> bytes: ...


Plain = Callable[[int, str, Headers], AsgiRefusal]
"""Factory of refusals from status code, message and more headers, for a connection that refuses by itself."""


async def respond(answer: AsgiRefusal, send: Send) -> None:
    """Send a refusal."""
    headers = [(b"content-type", answer.media_type.encode()), (b"content-length", str(len(answer.body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
