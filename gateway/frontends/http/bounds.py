"""What an HTTP server bounds, and the forms in which a frontend refuses."""

from __future__ import annotations

from typing import Protocol

from gateway.domain.errors import RequestError

Headers = tuple[tuple[str, str], ...]


class Bounds(Protocol):
    """Settings that every HTTP frontend has; what each means stands in the settings of the frontend."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_buffered_bytes(self) -> int: ...
    @property
    def max_header_bytes(self) -> int: ...
    @property
    def max_requests(self) -> int: ...
    @property
    def max_connections(self) -> int: ...
    @property
    def backlog(self) -> int: ...
    @property
    def header_timeout_s(self) -> float: ...
    @property
    def body_timeout_s(self) -> float: ...
    @property
    def write_timeout_s(self) -> float: ...
    @property
    def keep_alive_s(self) -> int: ...
    @property
    def retry_after_s(self) -> float: ...
    @property
    def unix_socket_mode(self) -> int: ...


class SlowBody(Exception):  # noqa: N818  answered 408, which is no Fault
    """The body did not arrive in time."""


class Answer(Protocol):
    """A refusal as it goes out."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def media_type(self) -> str: ...
    @property
    def body(self) -> bytes: ...


class Refuse(Protocol):
    """How a frontend words its refusals."""

    def error(self, error: RequestError | SlowBody) -> Answer:
        """The answer to a request that cannot be served."""

    def plain(self, status: int, message: str, headers: Headers = ()) -> Answer:
        """The answer where no Fault applies: what is no HTTP, an unknown path, a defect of ours."""
