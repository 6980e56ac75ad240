"""Refusals in the form of RFC 9457: `application/problem+json` with `fault`, and a detail with the remedy."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

from gateway.domain.errors import Fault, RequestError, VariantError
from gateway.frontends.http.bounds import SlowBody
from gateway.frontends.status import STATUS, WAITING_HELPS, error_text
from gateway.wire.asgi import Headers

FAULTS = {
    HTTPStatus.NOT_FOUND: Fault.NOT_FOUND,
    HTTPStatus.SERVICE_UNAVAILABLE: Fault.OVERLOADED,
    HTTPStatus.INTERNAL_SERVER_ERROR: Fault.INTERNAL,
}
"""Fault by status for answers that were no RequestError; INVALID for every other status."""


@dataclass(frozen=True, slots=True)
class ControlProblem:
    """Status code, fault, detail and headers of a refused request."""

    status: int
    fault: Fault
    detail: str
    headers: Headers = ()
    media_type: ClassVar[str] = "application/problem+json"

    @property
    def body(self) -> bytes:
        """Return the problem document. `type` is about:blank: the status is the problem's kind (RFC 9457, 4.2.1)."""
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": error_text(self.detail),
            "fault": self.fault.value,
        }
        return json.dumps(document, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Problems:
    """Refusals of the control API; `retry_after_s` is the hint if the error has none of its own."""

    retry_after_s: float

    def error(self, error: RequestError | SlowBody) -> ControlProblem:
        """Return the answer to a request that failed."""
        if isinstance(error, SlowBody):
            return ControlProblem(HTTPStatus.REQUEST_TIMEOUT, Fault.EXPIRED, str(error), (("connection", "close"),))
        headers: Headers = ()
        if error.fault in WAITING_HELPS:
            hint_s = self.retry_after_s if error.retry_after_s is None else error.retry_after_s
            headers = (("retry-after", str(max(1, math.ceil(hint_s)))),)
        return ControlProblem(STATUS[error.fault].http, error.fault, error.message, headers)

    def release(self, error: VariantError) -> ControlProblem:
        """Return the answer for a release that does not verify or cannot serve here.

        The status is 409, or 503 if the error is transient.
        """
        if error.transient:
            return self.error(RequestError(Fault.UNAVAILABLE, str(error)))
        return ControlProblem(HTTPStatus.CONFLICT, Fault.INVALID, str(error))

    def plain(self, status: int, message: str, headers: Headers = ()) -> ControlProblem:
        """Return the answer if no Fault applies."""
        return ControlProblem(status, FAULTS.get(HTTPStatus(status), Fault.INVALID), message, headers)
