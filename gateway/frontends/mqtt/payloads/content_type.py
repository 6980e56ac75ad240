"""Content types: media type and parameters. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

TYPES_REMEMBERED, TYPE_REMEMBERED_CHARS = 256, 256


@dataclass(frozen=True, slots=True)
class ContentType:
    """Media type in lower case, and its parameters."""

    media: str
    parameters: Mapping[str, str]


def read_content_type(text: str) -> ContentType:
    """Split `media/type; name=value`. Results for short texts are cached."""
    return _remembered_type(text) if len(text) <= TYPE_REMEMBERED_CHARS else _split_type(text)


def _split_type(text: str) -> ContentType:
    media, *rest = text.split(";")
    pairs = (part.partition("=") for part in rest)
    return ContentType(media.strip().lower(), {name.strip().lower(): value.strip(' "') for name, _, value in pairs})


_remembered_type = lru_cache(maxsize=TYPES_REMEMBERED)(_split_type)
