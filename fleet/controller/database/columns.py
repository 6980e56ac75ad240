"""Types of columns, equal on SQLite and PostgreSQL: bounded, exact, and checked before they reach the database."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import BigInteger, Dialect, Integer, LargeBinary, Text
from sqlalchemy.types import TypeDecorator

from fleet.controller.database.errors import RefusedError

LARGEST = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
RowNumber = BigInteger().with_variant(Integer, "sqlite")
"""Number that the database assigns: SQLite does that for INTEGER only."""


class Words(TypeDecorator[str]):
    """Text of at most `limit_bytes` in UTF-8. PostgreSQL stores no NUL, and UTF-8 has no lone surrogates."""

    impl = Text
    cache_ok = True

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Check the text. Raise RefusedError."""
        if value is None:
            return None
        try:
            size_bytes = len(value.encode())
        except UnicodeEncodeError:
            raise RefusedError(f"{value!r:.80} is not text: it has half of a surrogate pair") from None
        if "\0" in value:
            raise RefusedError(f"{value!r:.80} has a NUL character, which cannot be stored")
        if size_bytes > self.limit_bytes:
            raise RefusedError(f"{value!r:.80} has {size_bytes} bytes, at most {self.limit_bytes} are stored")
        return str(value)


class Moment(TypeDecorator[datetime]):
    """Time in UTC, as microseconds since 1970."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Convert to microseconds. Raise RefusedError for a time without a time zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise RefusedError(f"{value} has no time zone; times are UTC")
        return (value - EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """Return the time with the time zone UTC."""
        return None if value is None else EPOCH + timedelta(microseconds=value)


class Whole(TypeDecorator[int]):
    """Number from 0 to 2**63 - 1."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        """Check the number. Raise RefusedError."""
        if value is not None and not (type(value) is int and 0 <= value <= LARGEST):
            raise RefusedError(f"{value!r:.80} is not a number from 0 to {LARGEST}")
        return value


class JsonColumn(TypeDecorator[Any]):
    """Plain JSON values, as text in one canonical form: keys sorted, ASCII, at most `limit_bytes`."""

    impl = Text
    cache_ok = True

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert to text. Raise RefusedError."""
        return None if value is None else document_text(value, self.limit_bytes)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Return the parsed document: mappings as dict, sequences as list."""
        return None if value is None else json.loads(value)


class BinaryColumn(TypeDecorator[bytes]):
    """Bytes, at most `limit_bytes`."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Check the size. Raise RefusedError."""
        if value is not None and len(value) > self.limit_bytes:
            raise RefusedError(f"{len(value)} bytes are too many, at most {self.limit_bytes} are stored")
        return value


def document_text(value: Any, limit_bytes: int) -> str:
    """Return JSON in its canonical form. Raise RefusedError for what is not JSON, or too large."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise RefusedError(f"not a JSON document: {error!s:.200}") from None
    if len(text) > limit_bytes:
        raise RefusedError(f"the document has {len(text)} bytes, at most {limit_bytes} are stored")
    return text


def _plain(value: Any) -> Any:
    """Convert mappings and sets that json does not know. Sets are sorted, so that one set has one text."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "items"):
        return dict(value.items())
    raise TypeError(f"{type(value).__name__} is not a JSON value")
