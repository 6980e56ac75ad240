"""A client of Server-Sent Events, after the parsing rules of WHATWG HTML 9.2.6 and nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Message:
    """One dispatched message."""

    event: str
    id: str
    data: Any


class Following:
    """Open stream. `retry_ms` and `last_id`: newest values of these fields."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer, self.retry_ms, self.last_id = answer, 0, ""
        self.lines = answer.iter_lines()

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the stream ends."""
        fields: dict[str, str] = {}
        for line in self.lines:
            if not line:
                if "data" in fields:
                    yield Message(fields.get("event", "message"), self.last_id, json.loads(fields["data"]))
                fields = {}
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not name:  # a comment
                continue
            if name == "id":
                self.last_id = value
            elif name == "retry":
                self.retry_ms = int(value)
            else:
                fields[name] = value

    def next(self, event: str = "") -> Message:
        """Return the next message, of this kind."""
        return next(message for message in self if event in {"", message.event})


@contextmanager
def following(client: httpx.Client, query: str = "", last_id: str = "") -> Iterator[Following]:
    """Open a stream."""
    headers = {"last-event-id": last_id} if last_id else {}
    with client.stream("GET", f"/v1/changes{query}", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        yield Following(answer)
