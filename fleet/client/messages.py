"""Server-Sent Events (WHATWG HTML, 9.2.6) from bytes as they arrive. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerSentMessage:
    """One message. `event` "" and no data: a heartbeat."""

    event: str = ""
    id: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class Messages:
    """Parser of one stream. `retry_s`: wait before the next connection, set by the server."""

    def __init__(self, limit_bytes: int, retry_s: float) -> None:
        self._limit_bytes, self.retry_s = limit_bytes, retry_s
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, content: bytes) -> Iterator[ServerSentMessage]:
        """Yield the messages that end in `content`. Raise ValueError for one that is too large, or no JSON object."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > self._limit_bytes:
            raise ValueError(f"a message is larger than {self._limit_bytes} bytes")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r").decode(errors="replace"))

    def _line(self, line: str) -> Iterator[ServerSentMessage]:
        name, _, value = line.partition(":")
        if not line and "data" in self._fields:
            data = json.loads(self._fields["data"])
            if not isinstance(data, dict):
                raise ValueError("a message holds no JSON object")
            yield ServerSentMessage(self._fields.get("event", ""), self._fields.get("id", ""), data)
        elif line and not name:
            yield ServerSentMessage()
        elif name == "retry" and value.strip().isdecimal():
            self.retry_s = int(value) / 1000
        if not line:
            self._fields = {}
        elif name in {"event", "id", "data"}:
            self._fields[name] = value.removeprefix(" ")
