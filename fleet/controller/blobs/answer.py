"""HTTP response to a request for a file, as values: conditions (RFC 9110, 13), ranges (14), GET and HEAD."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime, parsedate_to_datetime

_TAG = re.compile(r'(W/)?("[^"]*")')
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """Metadata of a file. `etag`: strong, with its quotes; `modified`: in whole seconds UTC, None if unknown."""

    etag: str
    size_bytes: int
    modified: datetime | None = None
    media_type: str = "application/octet-stream"
    cache_control: str = "no-cache"


@dataclass(frozen=True, slots=True)
class BlobResponse:
    """Response. `count_bytes` from `offset_bytes` on are sent; none for HEAD, 304, 412 and 416."""

    status: int
    headers: tuple[tuple[str, str], ...]
    offset_bytes: int = 0
    count_bytes: int = 0


def answer(method: str, headers: Mapping[str, str], content: FileMetadata) -> BlobResponse:
    """Return the response to GET or HEAD. `headers` have lower-case names."""
    about: tuple[tuple[str, str], ...] = (
        ("etag", content.etag),
        ("accept-ranges", "bytes"),
        ("cache-control", content.cache_control),
    )
    if content.modified is not None:
        about = (*about, ("last-modified", format_datetime(content.modified, usegmt=True)))
    if not _wanted(headers, content):
        return BlobResponse(412, about)
    if _known(headers, content):
        return BlobResponse(304, about)
    span = _span(headers, content) if method == "GET" else None
    if span == (0, 0):
        return BlobResponse(416, (*about, ("content-range", f"bytes */{content.size_bytes}"), ("content-length", "0")))
    offset, count = span or (0, content.size_bytes)
    fields = (*about, ("content-type", content.media_type), ("content-length", str(count)))
    if span:
        fields = (
            *fields,
            ("content-range", f"bytes {offset}-{offset + count - 1}/{content.size_bytes}"),
        )
    return BlobResponse(206 if span else 200, fields, offset, count if method == "GET" else 0)


def _wanted(headers: Mapping[str, str], content: FileMetadata) -> bool:
    """Evaluate If-Match and If-Unmodified-Since (RFC 9110, 13.1.1 and 13.1.4). The former has precedence."""
    if "if-match" in headers:
        return _matches(headers["if-match"], content.etag, weak=False)
    since = _date(headers.get("if-unmodified-since", ""))
    return since is None or content.modified is None or content.modified <= since


def _known(headers: Mapping[str, str], content: FileMetadata) -> bool:
    """Evaluate If-None-Match and If-Modified-Since (RFC 9110, 13.1.2 and 13.1.3). The former has precedence."""
    if "if-none-match" in headers:
        return _matches(headers["if-none-match"], content.etag, weak=True)
    since = _date(headers.get("if-modified-since", ""))
    return since is not None and content.modified is not None and content.modified <= since


def _matches(value: str, etag: str, *, weak: bool) -> bool:
    if value.strip() == "*":
        return True
    return any(tag == etag and (weak or not prefix) for prefix, tag in _TAG.findall(value))


def _span(headers: Mapping[str, str], content: FileMetadata) -> tuple[int, int] | None:
    """Return offset and count of the range; None for the whole file, (0, 0) for an unsatisfiable range.

    Several ranges are ignored, which RFC 9110, 14.2 permits.
    """
    found = _RANGE.fullmatch(headers.get("range", "").strip().lower())
    if not found or found.groups() == ("", "") or not _same(headers.get("if-range"), content):
        return None
    first, last = found.groups()
    size = content.size_bytes
    if not first:  # suffix range: the last bytes
        count = min(int(last), size)
        return size - count if count else 0, count
    if last and int(last) < int(first):
        return None  # RFC 9110, 14.1.1: an invalid range is ignored
    if int(first) >= size:
        return 0, 0
    return int(first), min(int(last) if last else size - 1, size - 1) - int(first) + 1


def _same(value: str | None, content: FileMetadata) -> bool:
    """Evaluate If-Range (RFC 9110, 13.1.5): a strong tag, or exactly the date."""
    if value is None:
        return True
    if value.endswith('"'):
        return value.strip() == content.etag
    return content.modified is not None and _date(value) == content.modified


def _date(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value)
        return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found.astimezone(timezone.utc)
    except (ValueError, TypeError, OverflowError):
        return None
