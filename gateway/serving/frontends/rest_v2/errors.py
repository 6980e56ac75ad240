"""Refusals over HTTP: one table of status codes, one JSON form `{"error": "…"}` for everything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from gateway.common.domain.errors import RequestError
from gateway.common.domain.problem import HTTP_STATUS, Headers, error_text, refusal_headers
from gateway.serving.frontends.http.bounds import SlowBody
from gateway.serving.frontends.openai.errors import PREFIX, OpenAIRefusals

REQUEST_TIMEOUT = 408


@dataclass(frozen=True, slots=True)
class RefusedResponse:
    """Status code, body and headers of a refused request."""

    status: int
    message: str
    headers: Headers = ()
    media_type: ClassVar[str] = "application/json"

    @property
    def body(self) -> bytes:
        """Return the JSON body."""
        return json.dumps({"error": error_text(self.message)}, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class RestRefusals:
    """Refusals in REST's form; `retry_after_s` is the hint if the error has none of its own."""

    retry_after_s: float

    def at(self, path: str) -> RestRefusals | OpenAIRefusals:
        """Implement `Refuse.at`."""
        return OpenAIRefusals(self.retry_after_s) if path.startswith(PREFIX) else self

    def error(self, error: RequestError | SlowBody) -> RefusedResponse:
        """Return the refusal that the client gets."""
        if isinstance(error, SlowBody):
            return RefusedResponse(REQUEST_TIMEOUT, str(error), (("connection", "close"),))
        return RefusedResponse(HTTP_STATUS[error.fault], error.message, refusal_headers(error, self.retry_after_s))

    def plain(self, status: int, message: str, headers: Headers = ()) -> RefusedResponse:
        """Return the refusal if no Fault applies."""
        return RefusedResponse(status, message, headers)
