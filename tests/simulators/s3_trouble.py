"""Faulty proxy in front of an S3: it damages chosen requests, responses or connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

STEPS = {("POST", "uploads"): "begin", ("POST", "uploadId"): "complete", ("DELETE", "uploadId"): "abort"}
ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>We encountered an error</Message></Error>"


@dataclass
class Call:
    """One request. A fault passes on what it does not change."""

    request: BaseHTTPRequestHandler
    server: str

    def body(self, share: float = 1.0) -> bytes:
        """Read this share of the request's body."""
        return self.request.rfile.read(int(int(self.request.headers.get("content-length") or 0) * share))

    def passed(self) -> tuple[int, dict[str, str], bytes]:
        """Forward the request. Return status, headers and body of the S3's response."""
        connection = HTTPConnection(self.server, timeout=30)
        connection.putrequest(self.request.command, self.request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.request.headers.items():
            connection.putheader(name, value)
        connection.endheaders(self.body())
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def answer(self, status: int, lines: dict[str, str], content: bytes) -> None:
        """Send this response to the client."""
        self.request.send_response_only(status)
        kept = {name: value for name, value in lines.items() if name not in {"connection", "transfer-encoding"}}
        for name, value in {"content-length": str(len(content)), **kept, "connection": "close"}.items():
            self.request.send_header(name, value)
        self.request.end_headers()
        self.request.wfile.write(content)


Deed = Callable[[Call], None]


def pass_on(call: Call) -> None:
    """Forward without a fault."""
    call.answer(*call.passed())


def refuse(status: int) -> Deed:
    """Return a fault that responds with an error instead of forwarding."""

    def deed(call: Call) -> None:
        call.body()
        call.answer(status, {}, ERROR)

    return deed


def say_nothing(call: Call) -> None:
    """Respond with an empty success, without forwarding."""
    call.body()
    call.answer(200, {}, b"")


def fail_late(call: Call) -> None:
    """Respond with 200 and an error in the body, as S3 does when completing an upload takes long."""
    call.body()
    call.answer(200, {"content-type": "application/xml"}, ERROR)


def cut_there(call: Call) -> None:
    """Close the connection in the middle of the request."""
    call.body(0.5)


def cut_back(call: Call) -> None:
    """Forward the request, then close the connection before the response."""
    call.passed()


def mistake(call: Call) -> None:
    """Forward, and replace the ETag."""
    status, lines, content = call.passed()
    call.answer(status, {**lines, "etag": '"00000000000000000000000000000000"'}, content)


@dataclass
class TroubledS3:
    """State of the proxy. `troubles`: faults of the next requests by step (`part 2`); `seen`: all steps."""

    url: str = ""
    troubles: dict[str, list[Deed]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    def next(self, step: str) -> Deed:
        """Return the fault of this request."""
        self.seen.append(step)
        waiting = self.troubles.get(step)
        return waiting.pop(0) if waiting else pass_on


@contextmanager
def troubled(endpoint: str) -> Iterator[TroubledS3]:
    """Run a proxy in front of the S3 at `endpoint` until the block ends."""
    state, server_name = TroubledS3(), urlsplit(endpoint).netloc

    class Between(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            self.close_connection = True
            with suppress(OSError):  # the client closed the connection
                state.next(_step(self.command, self.path))(Call(self, server_name))

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815  http.server's names

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def _step(method: str, path: str) -> str:
    query = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if method == "PUT":
        return f"part {query['partNumber'][0]}" if "partNumber" in query else "put"
    return next((step for (verb, word), step in STEPS.items() if verb == method and word in query), method.lower())
