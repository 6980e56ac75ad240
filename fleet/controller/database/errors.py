"""Errors of statements. `fault` says what a caller should do, as for every refused request."""

from __future__ import annotations

from sqlalchemy.exc import DontWrapMixin

from gateway.common.domain.errors import Fault, RequestError


class DatabaseError(RequestError, DontWrapMixin):
    """Failure of a transaction, of which nothing happened."""


class AbsentError(DatabaseError):
    """Reference to an object that does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.NOT_FOUND, message)


class RefusedError(DatabaseError):
    """Value that cannot be stored: too long, out of range, not text."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.INVALID, message)


class ConflictError(DatabaseError):
    """Object that exists already, or that was changed since it was read: read and decide again (HTTP 409)."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.INVALID, message)


class FencedError(DatabaseError):
    """Loss of the leadership to another replica: what this one decided is void."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.UNAVAILABLE, message)


class AwayError(DatabaseError):
    """Database that does not answer, is busy, or whose disk is full; the same may succeed later."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(Fault.UNAVAILABLE, message, retry_after_s=retry_after_s)
