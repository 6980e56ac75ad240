"""Outermost layer of the server: each request gets an id, an access log line and, on any failure, a response."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections import Counter
from http import HTTPStatus
from typing import Any

from fleet import events
from fleet.controller.problems import ProblemError, plain_problem, problem_of
from fleet.controller.serving.asgi import Application, Message, Receive, Scope, Send, logged_path, respond
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import Problem

SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Headers added to a response that does not have them."""
LIVE = "/health/live"
"""Path that is answered even at the request limit: a liveness probe must not kill a busy replica."""
NEXT_ROOT = re.compile(r"/repository/metadata/[0-9]{1,10}\.root\.json")
"""Path that every poll asks for, and that exists only after a change of the root's keys (TUF, 5.3.2)."""
STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")
_access = logging.getLogger("fleet.access")
_log = logging.getLogger(__name__)


class AccessLog:
    """ASGI middleware that writes the access log, turns errors into responses, and limits concurrent requests.

    The log line contains neither query nor headers, which may contain secrets.
    """

    def __init__(self, app: Application, max_requests: int, counts: Counter[str]) -> None:
        self._app, self._max_requests, self._counts = app, max_requests, counts
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        scope.setdefault("state", {})["request_id"] = str(uuid.uuid4())
        answer = _Answer(scope, send)
        self._inside += 1
        try:
            self._check_load(scope["path"])
            await self._app(scope, receive, answer.send)
        except (RequestError, ProblemError) as error:
            await answer.refuse(problem_of(error))
        except asyncio.CancelledError:
            # The server stops and the grace is over; this is the request's outermost frame, so it ends here.
            _log.warning(events.REQUEST_CUT_OFF, *answer.named)
            problem = "the controller is stopping; try again later"
            await answer.refuse(problem_of(RequestError(Fault.UNAVAILABLE, problem)))
        except Exception:  # noqa: BLE001  the task of one request: a defect in it must not take down others
            _log.exception(events.REQUEST_CRASHED, *answer.named)
            await answer.refuse(plain_problem(500, "internal error; the controller's log says more"))
        finally:
            self._inside -= 1
            answer.log()

    def _check_load(self, path: str) -> None:
        if self._inside > self._max_requests and path != LIVE:
            self._counts["requests_turned_away"] += 1
            raise RequestError(Fault.OVERLOADED, f"{self._max_requests} requests are in progress; try again later")


class _Answer:
    """Response in progress."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._began_ns = time.monotonic_ns()
        self._status, self._bytes = 0, 0

    @property
    def named(self) -> tuple[str, str]:
        """The request's id and path."""
        return self._scope["state"]["request_id"], logged_path(self._scope)

    async def send(self, message: Message) -> None:
        """Send a message of the response, with added headers."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = self._headers(list(message.get("headers", ())))
        else:
            self._bytes += len(message.get("body", b"")) + message.get("count", 0)
        await self._send(message)

    async def refuse(self, problem: Problem) -> None:
        """Send an error response. If a response has begun, the server closes the connection instead."""
        if not self._status:
            await respond(problem, self._scope, self.send)

    def log(self) -> None:
        """Write the access log line."""
        state: dict[str, Any] = self._scope["state"]
        peer = state.get("peer")
        caller = state.get("caller") or (peer.device or peer.token if peer else "") or "-"
        address = (peer.address if peer else (self._scope.get("client") or ("",))[0]) or "-"
        took_ms = (time.monotonic_ns() - self._began_ns) / 1e6
        number, path = self.named
        asked = (number, address, str(caller)[:128], self._scope["method"][:16], path)
        fields = (*asked, self._status, self._bytes, took_ms)
        if self._is_usual(peer.device if peer else ""):
            _access.debug(events.REQUEST_ANSWERED, *fields)
        else:
            _access.info(events.REQUEST_ANSWERED, *fields)

    def _is_usual(self, device: str) -> bool:
        """Return whether it is routine, for DEBUG level: a success of a device or read, or a search for a next root."""
        looked = self._scope["method"] in {"GET", "HEAD"}
        if looked and self._status == HTTPStatus.NOT_FOUND:
            return NEXT_ROOT.fullmatch(self._scope["path"]) is not None
        return 0 < self._status < HTTPStatus.BAD_REQUEST and (looked or bool(device))

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        present = {bytes(name).lower() for name, _ in headers}
        headers += [header for header in SECURITY_HEADERS if header[0] not in present]
        if self._scope.get("scheme") == "https":
            headers.append(STRICT_TRANSPORT)
        return [*headers, (b"x-request-id", self._scope["state"]["request_id"].encode())]
