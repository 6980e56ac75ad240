"""Content types: media type and parameters. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

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
