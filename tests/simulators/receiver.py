"""HTTP server that accepts POSTs with scripted responses, as a webhook or a collector."""

from __future__ import annotations

import gzip
import http.server
import queue
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Posted:
    """A request. `content` is decompressed."""

    path: str
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """Response to the next request. `status` 0: close the connection without a response."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


class Receiver:
    """Server. `posted`: requests in order; `answers`: used once each, then 200; `context`: for TLS."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.posted: list[Posted] = []
        self.answers: list[Said] = []
        self.connections = 0
        self._arrived: queue.Queue[Posted] = queue.Queue()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                receiver.connections += 1
                super().setup()

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    content = gzip.decompress(content)
                headers = {name.lower(): value for name, value in self.headers.items()}
                posted = Posted(self.path, headers, content)
                receiver.posted.append(posted)
                receiver._arrived.put(posted)
                said = receiver.answers.pop(0) if receiver.answers else Said()
                if said.status:
                    self.send_response(said.status)
                    for name, value in said.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(said.content)))
                    self.end_headers()
                    self.wfile.write(said.content)
                else:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self._server.server_address[1]}"

    def wait(self, timeout_s: float = 60.0) -> Posted:
        """Return the next request that was not returned before."""
        return self._arrived.get(timeout=timeout_s)

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        """Run until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@contextmanager
def receiving(*answers: Said, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver."""
    receiver = Receiver(context)
    receiver.answers = list(answers)
    with receiver.running():
        yield receiver
