"""Repository over HTTP, as an ordinary or a misbehaving web server would serve it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.simulators.bad_server import BadServer, Behaviour, Exchange, answer, serve
from tests.simulators.fleet_repository import FleetRepository


class FleetServer:
    """Web server. `ill`: behaviours by path prefix ("" for all) in place of files.

    With `director` (its slots), a poll with a nonce gets a document with this nonce, signed on demand.
    """

    def __init__(self, repository: FleetRepository) -> None:
        self._repository = repository
        self.ill: dict[str, Behaviour] = {}
        self.director: Mapping[str, Any] | None = None
        self.changes: Mapping[str, Any] = {}
        """Fields to replace in documents that are signed on demand."""
        self._bad = BadServer([self._route])

    @contextmanager
    def running(self) -> Iterator[FleetServer]:
        """Run on a free loopback port."""
        with self._bad.running():
            yield self

    @property
    def url(self) -> str:
        """The URL with a trailing slash."""
        return self._bad.url

    @property
    def asked(self) -> Sequence[str]:
        """All requested paths so far, with their queries."""
        return [exchange.path for exchange in self._bad.exchanges]

    def _route(self, exchange: Exchange) -> None:
        parts = urlsplit(exchange.path)
        path = parts.path.removeprefix("/")
        ill = [behave for begin, behave in self.ill.items() if path.startswith(begin)]
        (ill[0] if ill else self._honest(path, parse_qs(parts.query), exchange))(exchange)

    def _honest(self, path: str, query: Mapping[str, Sequence[str]], exchange: Exchange) -> Behaviour:
        if "nonce" in query and self.director is not None:
            device = path.removeprefix("assignments/").removesuffix(".json")
            return serve(
                self._repository.assignment(device, self.director, **{"nonce": query["nonce"][0], **self.changes})
            )
        file = self._repository.public / path
        if not file.is_file():
            return answer("404 Not Found")
        content = file.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if exchange.headers.get("if-none-match") == etag:
            return answer("304 Not Modified", f"ETag: {etag}")
        return serve(content, f"ETag: {etag}")
