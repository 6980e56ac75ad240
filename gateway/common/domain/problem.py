"""Refusals over HTTP, for every server of both programs: the status of each fault, headers, and problem documents.

A problem document is `application/problem+json` (RFC 9457) with `fault`, and with a detail that names the remedy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

from gateway.common.domain.errors import Fault, RequestError

Headers = tuple[tuple[str, str], ...]

HTTP_STATUS: Mapping[Fault, int] = {
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
WAITING_HELPS = frozenset({Fault.OVERLOADED, Fault.THROTTLED, Fault.UNAVAILABLE})
"""Faults whose refusals carry a hint when to try again."""
MESSAGE_LIMIT_CHARS = 1024
"""Most characters of an error text: gRPC's is sent in a trailer, of which clients accept 8 KiB.

Names in it come from peers.
"""
MESSAGE_LIMIT_BYTES = 2304
"""Most bytes of an error text in other scripts: gRPC sends each byte as three."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Refused request. A `type` of about:blank means that the status is the problem's kind (RFC 9457, 4.2.1).

    `title`: "" for the status's phrase. `instance`: URI by which the log identifies the request, "" for none.
    """

    status: int
    fault: Fault
    detail: str
    headers: Headers = ()
    type: str = "about:blank"
    title: str = ""
    instance: str = ""
    media_type: ClassVar[str] = "application/problem+json"

    @property
    def body(self) -> bytes:
        """Return the problem document."""
        document = {
            "type": self.type,
            "title": self.title or HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": error_text(self.detail),
            "fault": self.fault.value,
        } | ({"instance": self.instance} if self.instance else {})
        return json.dumps(document, ensure_ascii=False).encode()


def refusal_headers(error: RequestError, retry_after_s: float) -> Headers:
    """Return the headers of a refusal; `retry_after_s` is the hint if the error has none of its own.

    Client certificates have no authentication scheme, so the only challenge is Bearer (RFC 9110, 11.6.1).
    """
    if error.fault is Fault.UNAUTHENTICATED:
        return (("www-authenticate", "Bearer"),)
    if error.fault in WAITING_HELPS:
        return (retry_after(retry_after_s if error.retry_after_s is None else error.retry_after_s),)
    return ()


def retry_after(wait_s: float) -> tuple[str, str]:
    """Return the header: whole seconds (RFC 9110, 10.2.3), at least one, since an immediate retry never helps."""
    return ("retry-after", str(max(1, math.ceil(wait_s))))


def error_text(text: str) -> str:
    """Return `text`, shortened to the limits; lone surrogates (a file name may hold some) become question marks."""
    text = text.encode(errors="replace").decode()
    if len(text) <= MESSAGE_LIMIT_CHARS and len(text.encode()) <= MESSAGE_LIMIT_BYTES:
        return text
    most = MESSAGE_LIMIT_BYTES - len("…".encode())
    return text[: MESSAGE_LIMIT_CHARS - 1].encode()[:most].decode(errors="ignore") + "…"
