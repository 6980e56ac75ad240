"""What an HTTP server bounds, and the forms in which a frontend refuses."""

from __future__ import annotations

from typing import Protocol

from gateway.domain.errors import RequestError
from gateway.wire.asgi import Answer, Headers
from gateway.wire.bounds import PortBounds

STRANGERS_PART = 4
"""Peers that will be refused anyway get a quarter of the connections, beside those of the others: enough to be told so,
and not enough to keep the others out."""


class Bounds(PortBounds, Protocol):
    """Settings that every HTTP frontend has; what each means stands in the settings of the frontend."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_buffered_bytes(self) -> int: ...
    @property
    def max_requests(self) -> int: ...
    @property
    def max_connections(self) -> int: ...
    @property
    def retry_after_s(self) -> float: ...


class SlowBody(Exception):  # noqa: N818  answered 408, which is no Fault
    """The body did not arrive in time."""


class Refuse(Protocol):
    """How a frontend words its refusals."""

    def error(self, error: RequestError | SlowBody) -> Answer:
        """The answer to a request that cannot be served."""

    def plain(self, status: int, message: str, headers: Headers = ()) -> Answer:
        """The answer where no Fault applies: what is no HTTP, an unknown path, a defect of ours."""
