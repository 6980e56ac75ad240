"""Refusals in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}` for everything below /v1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

import msgspec

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import HTTP_STATUS, Headers, error_text, refusal_headers, retry_after
from gateway.common.domain.text_model import TOO_LONG
from gateway.serving.frontends.http.bounds import SlowBody

PREFIX = "/v1/"
"""Beginning of the paths whose refusals have this form."""
TYPES: Mapping[int, tuple[str, str | None]] = {
    HTTPStatus.UNAUTHORIZED: ("invalid_request_error", "invalid_api_key"),
    HTTPStatus.FORBIDDEN: ("permission_error", "permission_denied"),
    HTTPStatus.NOT_FOUND: ("invalid_request_error", "unknown_url"),
    HTTPStatus.METHOD_NOT_ALLOWED: ("invalid_request_error", "method_not_supported"),
    HTTPStatus.REQUEST_TIMEOUT: ("invalid_request_error", "request_timeout"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("invalid_request_error", "request_too_large"),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate_limit_error", "rate_limit_exceeded"),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("server_error", "internal_error"),
    HTTPStatus.NOT_IMPLEMENTED: ("invalid_request_error", "not_offered"),
    HTTPStatus.SERVICE_UNAVAILABLE: ("server_error", "service_unavailable"),
    HTTPStatus.GATEWAY_TIMEOUT: ("server_error", "deadline_exceeded"),
}
"""Type and code of an error by its status; every other status is an invalid request."""


class FieldError(RequestError):
    """Refusal of a field of the body, `param`, with OpenAI's `code`."""

    def __init__(self, message: str, param: str | None, code: str | None = None, fault: Fault = Fault.INVALID) -> None:
        super().__init__(fault, message)
        self.param, self.code = param, code


@dataclass(frozen=True, slots=True)
class OpenAIRefusal:
    """Refused request, as it is sent."""

    status: int
    message: str
    headers: Headers = ()
    param: str | None = None
    code: str | None = None
    media_type: ClassVar[str] = "application/json"

    @property
    def body(self) -> bytes:
        """Return the JSON body, which is also that of an event in a stream."""
        kind, code = TYPES.get(self.status, ("invalid_request_error", None))
        error = {"message": error_text(self.message), "type": kind, "param": self.param, "code": self.code or code}
        return msgspec.json.encode({"error": error})


@dataclass(frozen=True, slots=True)
class OpenAIRefusals:
    """Refusals of OpenAI's API; `retry_after_s` is the hint if the error has none of its own."""

    retry_after_s: float

    def at(self, _path: str) -> OpenAIRefusals:
        """Implement `Refuse.at`."""
        return self

    def error(self, error: RequestError | SlowBody) -> OpenAIRefusal:
        """Return the refusal that the client gets. A used quota is 429, as clients expect, not 503."""
        if isinstance(error, SlowBody):
            return OpenAIRefusal(HTTPStatus.REQUEST_TIMEOUT, str(error), (("connection", "close"),))
        if error.by_quota:
            wait_s = self.retry_after_s if error.retry_after_s is None else error.retry_after_s
            used, reset_s = error.by_quota, f"{math.ceil(wait_s)}s"
            limits = (f"x-ratelimit-remaining-{used}", "0"), (f"x-ratelimit-reset-{used}", reset_s)
            return OpenAIRefusal(HTTPStatus.TOO_MANY_REQUESTS, error.message, (retry_after(wait_s), *limits))
        param, code = (error.param, error.code) if isinstance(error, FieldError) else (None, None)
        if error.fault is Fault.NOT_FOUND:
            param, code = "model", "model_not_found"
        elif error.fault is Fault.INVALID and TOO_LONG in error.message:
            code = "context_length_exceeded"
        headers = refusal_headers(error, self.retry_after_s)
        return OpenAIRefusal(HTTP_STATUS[error.fault], error.message, headers, param, code)

    def plain(self, status: int, message: str, headers: Headers = ()) -> OpenAIRefusal:
        """Return the refusal if no Fault applies."""
        return OpenAIRefusal(status, message, headers)
