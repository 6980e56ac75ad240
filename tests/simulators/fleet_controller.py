"""Minimal fleet controller in memory: the routes for devices, over real HTTPS, with a signed repository."""

from __future__ import annotations

import gzip
import hashlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.simulators.fleet_authority import FleetAuthority, key_of
from tests.simulators.fleet_repository import FleetRepository

Answer = tuple[int, dict[str, str], bytes]
PROBLEM = {"Content-Type": "application/problem+json"}


class RefusedError(Exception):
    """Refusal with a status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Call:
    """One request. `device`, `serial`: from the client certificate, "" without one."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    device: str
    serial: str


@dataclass
class Told:
    """Reports of one device: documents by (stream, boot epoch, number), dropped numbers, and a count of duplicates."""

    rows: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    lost: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    again: int = 0
    inventory: dict[str, Any] | None = None
    diagnostics: dict[int, Any] = field(default_factory=dict)

    def of(self, stream: str) -> list[dict[str, Any]]:
        """Return the rows of a stream, in order."""
        return [row for key, row in sorted(self.rows.items()) if key[0] == stream]


class FleetController:
    """Controller for devices.

    `tokens`: unused tokens with their devices; `serials`: the same, reusable; `assigned`: slots and files by device;
    `extra`: other fields of its assignment; `ill[path]` replaces a route.
    """

    def __init__(self, folder: Path, repository: FleetRepository) -> None:
        self.repository, self.authority = repository, FleetAuthority(folder)
        self.tokens: dict[str, str] = {}
        self.serials: dict[str, str] = {}
        self.assigned: dict[str, tuple[dict[str, str], Sequence[str]]] = {}
        self.extra: dict[str, dict[str, Any]] = {}
        self.revoked: set[str] = set()
        self.ill: dict[str, Callable[[Call], Answer]] = {}
        self.told: dict[str, Told] = {}
        self.asked: list[Call] = []
        self.diagnostics: dict[str, list[dict[str, Any]]] = {}
        self.poll_s = 30.0
        self.url = ""
        self._used: dict[str, tuple[str, bytes]] = {}
        self._signed: dict[str, tuple[Any, bytes]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[FleetController]:
        """Run on a free loopback port."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        server.socket = self.authority.server_context().wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://localhost:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    # ---- routes ------------------------------------------------------------------------------------------------------
    def answer(self, call: Call) -> Answer:
        """Respond as a controller does."""
        with self._lock:
            self.asked.append(call)
            if call.path in self.ill:
                return self.ill[call.path](call)
            try:
                return self._route(call)
            except RefusedError as error:
                document = {"title": "refused", "status": error.status, "detail": str(error)}
                return error.status, PROBLEM, json.dumps(document).encode()

    def _route(self, call: Call) -> Answer:
        if call.path.startswith("/repository/"):
            file = self.repository.public / call.path.removeprefix("/repository/")
            return _file(file.read_bytes(), call) if file.is_file() else (404, {}, b"")
        if (call.method, call.path) == ("POST", "/v1/enrol"):
            return _json(self._enrol(json.loads(call.body)))
        if not call.device:
            raise RefusedError(401, "show a certificate of this fleet")
        if call.serial in self.revoked:
            raise RefusedError(403, "this certificate is revoked")
        route = f"{call.method} {call.path.removeprefix('/v1/self/')}"
        routes = {
            "GET assignment": self._assignment,
            "PUT inventory": self._inventory,
            "POST telemetry": self._telemetry,
            "POST certificate": self._certificate,
            "GET diagnostics": lambda call: _json({"requests": self.diagnostics.get(call.device, [])}),
            "POST diagnostics": self._diagnostics,
        }
        if route not in routes:
            raise RefusedError(404, f"there is no {call.path}")
        return routes[route](call)

    def _enrol(self, asked: dict[str, Any]) -> dict[str, Any]:
        token, key = asked["token"], key_of(asked["csr"])
        device = self.tokens.pop(token, "") or self.serials.get(asked["serial"], "")
        if not device and self._used.get(token, ("", b""))[1] == key:
            device = self._used[token][0]  # the response was lost
        if not device:
            raise RefusedError(401, "this enrolment token is not valid for this device")
        if token:
            self._used[token] = (device, key)
        return {
            "device": device,
            "certificate": self.authority.answer(asked["csr"], device),
            "chain": self.authority.file.read_text(),
            "root": json.loads(self.repository.root_bytes(1)),
            "repository": f"{self.url}/repository/",
            "assignment": f"{self.url}/v1/self/assignment",
            "controller": self.url,
            "poll_s": self.poll_s,
        }

    def _certificate(self, call: Call) -> Answer:
        certificate = self.authority.answer(json.loads(call.body)["csr"], call.device)
        return _json({"certificate": certificate, "chain": self.authority.file.read_text()})

    def _assignment(self, call: Call) -> Answer:
        slots, files = self.assigned.get(call.device, ({}, ()))
        nonce = call.query.get("nonce", [""])[0]
        extra = dict(self.extra.get(call.device, {}))
        wanted = (dict(slots), tuple(files), self.repository.now, nonce, json.dumps(extra))  # as text: True is not 1
        if self._signed.get(call.device, (None, b""))[0] != wanted:
            changes: dict[str, Any] = {"nonce": nonce, "poll_s": self.poll_s, "extra": extra}
            content = self.repository.assignment(call.device, slots, files, **changes)
            self._signed[call.device] = (wanted, content)
        return _file(self._signed[call.device][1], call)

    def _inventory(self, call: Call) -> Answer:
        self._of(call).inventory = json.loads(_plain(call))
        return _json({})

    def _diagnostics(self, call: Call) -> Answer:
        answer = json.loads(_plain(call))
        self._of(call).diagnostics[answer["id"]] = answer
        return _json({})

    def _telemetry(self, call: Call) -> Answer:
        told = self._of(call)
        sources: dict[tuple[str, int], None] = {}
        for line in _plain(call).splitlines():
            entry = json.loads(line)
            source = (entry["stream"], entry["boot_epoch"])
            sources[source] = None
            lost = told.lost.setdefault(source, set())
            if "last" in entry:
                numbers = set(range(entry["seq"], entry["last"] + 1))
                assert sum(entry["dropped"].values()) == len(numbers), entry
                lost |= {number for number in numbers if (*source, number) not in told.rows}
            elif (*source, entry["seq"]) in told.rows:
                told.again += 1
            else:
                told.rows[(*source, entry["seq"])] = entry
        acknowledged = [{"stream": s[0], "boot_epoch": s[1], "seq": _contiguous(told, s)} for s in sources]
        return _json({"acknowledged": acknowledged})

    def _of(self, call: Call) -> Told:
        return self.told.setdefault(call.device, Told())

    # ---- HTTP --------------------------------------------------------------------------------------------------------
    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fleet = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 20

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                who = _peer(self.connection)
                call = Call(self.command, parts.path, parse_qs(parts.query), headers, body, *who)
                status, more, content = fleet.answer(call)
                self.send_response(status)
                for name, value in {**more, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_PUT = do_GET  # noqa: N815  http.server's names

            def log_message(self, *_: object) -> None:
                """Log nothing: tests read `asked`."""

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # the device hung up, or showed what TLS refuses
                    self.close_connection = True

            def finish(self) -> None:
                try:
                    super().finish()
                except OSError:
                    self.close_connection = True

        return Handler


def _peer(connection: Any) -> tuple[str, str]:
    assert isinstance(connection, ssl.SSLSocket)
    found: Any = connection.getpeercert() or {}
    names = [value for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    return (names[0] if names else "", f"{int(found['serialNumber'], 16):x}" if found else "")


def _plain(call: Call) -> bytes:
    return gzip.decompress(call.body) if call.headers.get("content-encoding") == "gzip" else call.body


def _contiguous(told: Told, source: tuple[str, int]) -> int:
    seq = 0
    while (*source, seq + 1) in told.rows or seq + 1 in told.lost[source]:
        seq += 1
    return seq


def _json(document: dict[str, Any]) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()


def _file(content: bytes, call: Call) -> Answer:
    etag = f'"{hashlib.sha256(content).hexdigest()}"'
    if call.headers.get("if-none-match") == etag:
        return 304, {"ETag": etag}, b""
    return 200, {"ETag": etag}, content
