"""Refusals of the controller: the problem document (RFC 9457) of each error, with its type."""

from __future__ import annotations

from fleet.problem_types import OF_FAULT, ProblemType, of_status
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import Headers, Problem, refusal_headers, retry_after

RETRY_AFTER_S = 5.0
"""Sent where waiting helps and the error has no time of its own."""


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
        self.problem = _problem(kind, status, kind.fault, detail, (*headers, *waiting))


def problem_of(error: RequestError | ProblemError, status: int | None = None) -> Problem:
    """Return the refusal that is sent; `status` replaces the Fault's where it is more exact (409 of a conflict)."""
    if isinstance(error, ProblemError):
        return error.problem
    kind = of_status(status) if status else OF_FAULT[error.fault]
    return _problem(kind, kind.status, error.fault, error.message, refusal_headers(error, RETRY_AFTER_S))


def plain_problem(status: int, detail: str, headers: Headers = ()) -> Problem:
    """Return the refusal of a request that the framework refused: an unknown path, a wrong method."""
    kind = of_status(status)
    return _problem(kind, status, kind.fault, detail, headers)


def _problem(kind: ProblemType, status: int, fault: Fault, detail: str, headers: Headers) -> Problem:
    return Problem(status, fault, detail, headers, kind.uri, kind.title)
