"""Errors of statements. `fault` says what a caller should do, as for every refused request."""

from __future__ import annotations

from sqlalchemy.exc import DontWrapMixin

from gateway.domain.errors import Fault, RequestError


class DatabaseError(RequestError, DontWrapMixin):
    """A transaction failed, and nothing of it happened."""


class AbsentError(DatabaseError):
    """The named object does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.NOT_FOUND, message)


class RefusedError(DatabaseError):
    """A value cannot be stored: too long, out of range, not text."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.INVALID, message)


class ConflictError(DatabaseError):
    """It exists already, or was changed since it was read: read again and decide again (HTTP 409)."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.INVALID, message)


class FencedError(DatabaseError):
    """Another replica leads now: what this one decided is void."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.UNAVAILABLE, message)


class AwayError(DatabaseError):
    """The database does not answer, is busy, or its disk is full; the same may succeed later."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(Fault.UNAVAILABLE, message, retry_after_s=retry_after_s)
