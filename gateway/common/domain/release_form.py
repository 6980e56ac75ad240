"""Form of the signed JSON documents that name a release: parts that those of all kinds share. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

SCHEMA = 1
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
"""Format of times (UTC)."""
T = TypeVar("T")


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: JSON, UTF-8, sorted keys, with a final newline."""
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def read_form(content: bytes, limit_bytes: int, what: str, build: Callable[[Mapping[str, Any]], T]) -> T:
    """Return the release that `build` makes of a document's object. `what`: name of the document, for errors.

    Raise ValueError with the problem, also for KeyError, TypeError and AttributeError of `build`.
    """
    if len(content) > limit_bytes:
        raise ValueError(f"{what} has {len(content)} bytes, at most {limit_bytes} are read")
    try:
        document = json.loads(content)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r:.40} is not known, {SCHEMA} is")
        return build(document)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{what} is damaged: {type(error).__name__} {error!s:.200}") from None


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Refuse duplicate keys (ValueError): parsers differ in which of two equal keys they take."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("an object has a key twice")
    return document


def read_text(value: Any, pattern: re.Pattern[str]) -> str:
    """Return a text that matches `pattern`. Raise ValueError."""
    if not (isinstance(value, str) and pattern.fullmatch(value)):
        raise ValueError(f"{value!r:.80} does not match {pattern.pattern}")
    return value


def read_list(entries: Any, limit: int) -> list[Any]:
    """Return a list of at most `limit` entries. Raise ValueError."""
    if not isinstance(entries, list) or len(entries) > limit:
        raise ValueError(f"expected a list of at most {limit} entries")
    return entries


def read_time(text: str) -> datetime:
    """Return a time that is written in `TIME_FORMAT`. Raise ValueError, TypeError."""
    return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=timezone.utc)
