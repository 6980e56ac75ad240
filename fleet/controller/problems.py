"""Refusals in the format of RFC 9457: `application/problem+json` with `fault`, and a detail that names the remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fleet.problem_types import OF_FAULT, ProblemType, of_status
from gateway.domain.errors import Fault, RequestError

Headers = tuple[tuple[str, str], ...]
DETAIL_LIMIT_CHARACTERS = 1024
RETRY_AFTER_S = 5.0
"""Sent where waiting helps and the error has no time of its own."""

STATUSES: Mapping[Fault, int] = {fault: kind.status for fault, kind in OF_FAULT.items()}
"""HTTP status of each fault."""
_WAITING_HELPS = frozenset({Fault.OVERLOADED, Fault.UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class Problem:
    """Refused request: its type, the status where that is more exact than the type's, detail, headers."""

    kind: ProblemType
    status: int
    fault: Fault
    detail: str
    headers: Headers = ()
    media_type: ClassVar[str] = "application/problem+json"

    def body(self, instance: str = "") -> bytes:
        """Return the document. `instance` is the URI by which the log identifies this request."""
        document = {
            "type": self.kind.uri,
            "title": self.kind.title,
            "status": self.status,
            "detail": _bounded(self.detail),
            "fault": self.fault.value,
        }
        return json.dumps(document | ({"instance": instance} if instance else {}), ensure_ascii=False).encode()


class ProblemError(Exception):
    """Refusal whose status belongs to no Fault: 405, 408, 412, 429 and the like.

    `kind`: the type of the problem, if the status has several.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        retry_after_s: float | None = None,
        headers: Headers = (),
        kind: ProblemType | None = None,
    ) -> None:
        super().__init__(detail)
        waiting: Headers = () if retry_after_s is None else (retry_after(retry_after_s),)
        kind = kind or of_status(status)
        self.problem = Problem(kind, status, kind.fault, detail, (*headers, *waiting))


def problem_of(error: RequestError | ProblemError, status: int | None = None) -> Problem:
    """Return the refusal that is sent; `status` replaces the Fault's where it is more exact (409 of a conflict)."""
    if isinstance(error, ProblemError):
        return error.problem
    headers: Headers = ()
    if error.fault is Fault.UNAUTHENTICATED:
        headers = (("www-authenticate", "Bearer"),)  # RFC 9110, 11.6.1; client certificates have no scheme
    elif error.fault in _WAITING_HELPS:
        headers = (retry_after(RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s),)
    kind = of_status(status) if status else OF_FAULT[error.fault]
    return Problem(kind, kind.status, error.fault, error.message, headers)


def plain_problem(status: int, detail: str, headers: Headers = ()) -> Problem:
    """Return the refusal of a request that the framework refused: an unknown path, a wrong method."""
    kind = of_status(status)
    return Problem(kind, status, kind.fault, detail, headers)


def retry_after(wait_s: float) -> tuple[str, str]:
    """Return the header: whole seconds, at least one (RFC 9110, 10.2.3)."""
    return ("retry-after", str(max(1, math.ceil(wait_s))))


def _bounded(text: str) -> str:
    """Replace lone surrogates by question marks, and shorten: names in `text` may come from peers."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= DETAIL_LIMIT_CHARACTERS else text[: DETAIL_LIMIT_CHARACTERS - 1] + "…"
