"""Refusals in the format of RFC 9457: `application/problem+json` with `fault`, and a detail that names the remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

from gateway.domain.errors import Fault, RequestError

Headers = tuple[tuple[str, str], ...]
DETAIL_LIMIT_CHARACTERS = 1024
RETRY_AFTER_S = 5.0
"""Sent where waiting helps and the error has no time of its own."""

STATUSES: Mapping[Fault, int] = {
    Fault.INVALID: 400,
    Fault.UNAUTHENTICATED: 401,
    Fault.DENIED: 403,
    Fault.NOT_FOUND: 404,
    Fault.TOO_LARGE: 413,
    Fault.THROTTLED: 429,
    Fault.OVERLOADED: 503,
    Fault.EXPIRED: 504,
    Fault.UNAVAILABLE: 503,
    Fault.UNSUPPORTED: 501,
    Fault.INTERNAL: 500,
}
"""HTTP status of each fault."""
_WAITING_HELPS = frozenset({Fault.OVERLOADED, Fault.UNAVAILABLE})
_FAULTS = {status: fault for fault, status in reversed(list(STATUSES.items()))} | {
    408: Fault.EXPIRED,
    429: Fault.OVERLOADED,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Status code, fault, detail and headers of a refused request."""

    status: int
    fault: Fault
    detail: str
    headers: Headers = ()
    media_type: ClassVar[str] = "application/problem+json"

    def body(self, instance: str = "") -> bytes:
        """Return the document.

        `type` is about:blank: the status identifies the problem (RFC 9457, 4.2.1). `instance` is the URI by which the
        log identifies this request.
        """
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": _bounded(self.detail),
            "fault": self.fault.value,
        }
        return json.dumps(document | ({"instance": instance} if instance else {}), ensure_ascii=False).encode()


class ProblemError(Exception):
    """A refusal whose status belongs to no Fault: 405, 408, 409, 416, 429 and the like."""

    def __init__(self, status: int, detail: str, *, retry_after_s: float | None = None, headers: Headers = ()) -> None:
        super().__init__(detail)
        waiting: Headers = () if retry_after_s is None else (retry_after(retry_after_s),)
        self.problem = Problem(status, _FAULTS.get(status, Fault.INVALID), detail, (*headers, *waiting))


def problem_of(error: RequestError | ProblemError, status: int | None = None) -> Problem:
    """Return the refusal that is sent; `status` replaces the Fault's where it is more exact (409 of a conflict)."""
    if isinstance(error, ProblemError):
        return error.problem
    headers: Headers = ()
    if error.fault is Fault.UNAUTHENTICATED:
        headers = (("www-authenticate", "Bearer"),)  # RFC 9110, 11.6.1; client certificates have no scheme
    elif error.fault in _WAITING_HELPS:
        headers = (retry_after(RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s),)
    return Problem(status or STATUSES[error.fault], error.fault, error.message, headers)


def plain_problem(status: int, detail: str, headers: Headers = ()) -> Problem:
    """Return the refusal of a request that the framework refused: an unknown path, a wrong method."""
    return Problem(status, _FAULTS.get(status, Fault.INVALID), detail, headers)


def retry_after(wait_s: float) -> tuple[str, str]:
    """Return the header: whole seconds, at least one (RFC 9110, 10.2.3)."""
    return ("retry-after", str(max(1, math.ceil(wait_s))))


def _bounded(text: str) -> str:
    """Replace lone surrogates by question marks, and shorten: names in `text` may come from peers."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= DETAIL_LIMIT_CHARACTERS else text[: DETAIL_LIMIT_CHARACTERS - 1] + "…"
