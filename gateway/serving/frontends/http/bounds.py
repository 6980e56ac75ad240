"""Limits of an HTTP server, and the interface of a frontend's refusals."""

from __future__ import annotations

from typing import Protocol

from gateway.common.domain.errors import RequestError
from gateway.common.wire.asgi import AsgiRefusal, Headers
from gateway.common.wire.bounds import PortBounds

STRANGERS_PART = 4
"""Divisor of the connections that remain for peers that will be refused anyway: a quarter, in addition to the others'.

A quarter is enough to send them the refusal, and too few to keep the others out.
"""


class Bounds(PortBounds, Protocol):
    """Settings that every HTTP frontend has; the settings of the frontend document each."""

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


DEFECT = "internal error; the gateway's log says more"
"""Message of a response that attributes a failure to the server."""


class SlowBody(Exception):  # noqa: N818  answered 408, which is no Fault
    """The body did not arrive in time."""


class Refuse(Protocol):
    """Form of a frontend's refusals."""

    def at(self, path: str) -> Refuse:
        """Return the form of a path: APIs on one port may have forms of their own."""

    def error(self, error: RequestError | SlowBody) -> AsgiRefusal:
        """Return the answer to a request that cannot be served."""

    def plain(self, status: int, message: str, headers: Headers = ()) -> AsgiRefusal:
        """Return the answer if no Fault applies: invalid HTTP, an unknown path, a defect."""
