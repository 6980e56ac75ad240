"""What a statement can end in. All say by `fault` what a caller should do, as every refused request does."""

from __future__ import annotations

from sqlalchemy.exc import DontWrapMixin

from gateway.domain.errors import Fault, RequestError


class DatabaseError(RequestError, DontWrapMixin):
    """Nothing of the transaction happened."""


class AbsentError(DatabaseError):
    """What was named is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.NOT_FOUND, message)


class RefusedError(DatabaseError):
    """A value that is not kept: too long, out of range, not text."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.INVALID, message)


class ConflictError(DatabaseError):
    """It is there already, or somebody else changed it since it was read: read again and decide again (HTTP 409)."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.INVALID, message)


class FencedError(DatabaseError):
    """Another replica leads by now: what this one decided is void."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.UNAVAILABLE, message)


class AwayError(DatabaseError):
    """The database does not answer, is busy, or its disk is full; the same may succeed later."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(Fault.UNAVAILABLE, message, retry_after_s=retry_after_s)
