"""Shared parts of payload readers: content types, the refusal of a payload, and bounds on what it may become."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from functools import lru_cache

from gateway.common.domain.errors import Fault, RequestError


def invalid(message: str) -> RequestError:
    """Return a refusal: the sender must change the payload, or the operator the route."""
    return RequestError(Fault.INVALID, f"{message} (EG-607)")


ROWS_LIMIT = 100_000
"""Most rows of one message."""
VALUES_LIMIT = 1_000_000
"""Most values of one message, rows times channels: 8 MB."""


def check_rows(rows: Sized | int) -> None:
    """Raise RequestError INVALID for more than ROWS_LIMIT rows."""
    count = rows if isinstance(rows, int) else len(rows)
    if count > ROWS_LIMIT:
        raise invalid(f"the payload has {count} rows; at most {ROWS_LIMIT} are taken in one message")


SUFFIXES = {"json": "application/json", "cbor": "application/cbor"}
"""Media types whose syntax a type with a suffix has (RFC 6839, RFC 8949), such as `application/vnd.x+json`."""
TYPES_REMEMBERED, TYPE_REMEMBERED_CHARS = 256, 256


@dataclass(frozen=True, slots=True)
class ContentType:
    """Media type in lower case, and its parameters. A type with one of SUFFIXES, but SenML's, is that of the suffix."""

    media: str
    parameters: Mapping[str, str]


def read_content_type(text: str) -> ContentType:
    """Split `media/type; name=value`. Results for short texts are cached."""
    return _remembered_type(text) if len(text) <= TYPE_REMEMBERED_CHARS else _split_type(text)


def _split_type(text: str) -> ContentType:
    media, *rest = text.split(";")
    pairs = (part.partition("=") for part in rest)
    media = media.strip().lower()
    _, plus, suffix = media.rpartition("+")
    if plus and not media.startswith("application/senml+"):
        media = SUFFIXES.get(suffix, media)
    return ContentType(media, {name.strip().lower(): value.strip(' "') for name, _, value in pairs})


_remembered_type = lru_cache(maxsize=TYPES_REMEMBERED)(_split_type)
