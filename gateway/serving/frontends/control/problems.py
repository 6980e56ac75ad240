"""Refusals of the control API, as problem documents (RFC 9457)."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.problem import HTTP_STATUS, Headers, Problem, refusal_headers
from gateway.serving.frontends.http.bounds import SlowBody

FAULTS = {
    HTTPStatus.NOT_FOUND: Fault.NOT_FOUND,
    HTTPStatus.SERVICE_UNAVAILABLE: Fault.OVERLOADED,
    HTTPStatus.INTERNAL_SERVER_ERROR: Fault.INTERNAL,
}
"""Fault by status for answers that were no RequestError; INVALID for every other status."""


@dataclass(frozen=True, slots=True)
class Problems:
    """Refusals of the control API; `retry_after_s` is the hint if the error has none of its own."""

    retry_after_s: float

    def at(self, _path: str) -> Problems:
        """Implement `Refuse.at`."""
        return self

    def error(self, error: RequestError | SlowBody) -> Problem:
        """Return the answer to a request that failed."""
        if isinstance(error, SlowBody):
            return Problem(HTTPStatus.REQUEST_TIMEOUT, Fault.EXPIRED, str(error), (("connection", "close"),))
        headers = refusal_headers(error, self.retry_after_s)
        return Problem(HTTP_STATUS[error.fault], error.fault, error.message, headers)

    def release(self, error: VariantError) -> Problem:
        """Return the answer for a release that does not verify or cannot serve here.

        The status is 409, or 503 if the error is transient.
        """
        if error.transient:
            return self.error(RequestError(Fault.UNAVAILABLE, str(error)))
        return Problem(HTTPStatus.CONFLICT, Fault.INVALID, str(error))

    def plain(self, status: int, message: str, headers: Headers = ()) -> Problem:
        """Return the answer if no Fault applies."""
        return Problem(status, FAULTS.get(HTTPStatus(status), Fault.INVALID), message, headers)
