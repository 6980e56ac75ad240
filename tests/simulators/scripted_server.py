"""HTTP server with scripted responses, for clients of a controller."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fleet.client.client import Access, Client, ClientSettings
from fleet.controller.problems import plain_problem

Reply = tuple[int, dict[str, str], bytes]
TOKEN = "eft_a-secret-that-no-error-tells"


@dataclass
class Scripted:
    """Server that sends scripted responses; the last one repeats."""

    url: str
    replies: list[Reply] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def client(self, settings: ClientSettings | None = None) -> Client:
        """Return a client that records its waiting times instead of waiting."""
        return Client(Access(self.url, TOKEN), settings, self.slept.append)


@contextmanager
def scripted(tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Run on a free port until the block ends."""

    class Answers(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            script.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            status, headers, content = script.replies.pop(0) if len(script.replies) > 1 else script.replies[0]
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815  as http.server calls them

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        if tls:
            listening.socket = tls.wrap_socket(listening.socket, server_side=True)
        script = Scripted(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield script
        finally:
            listening.shutdown()
            thread.join()


LOST: Reply = (0, {}, b"")
"""The connection breaks instead."""


def good(value: object) -> Reply:
    """Return a JSON response."""
    return 200, {"content-type": "application/json"}, json.dumps(value).encode()


def problem(status: int, detail: str, **headers: str) -> Reply:
    """Return an error response."""
    return status, headers, plain_problem(status, detail).body
