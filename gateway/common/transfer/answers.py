"""Status and headers of answers, read for a bounded transfer. Pure."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

import urllib3
from urllib3.exceptions import HTTPError

from gateway.common.domain.retry import retry_after_s
from gateway.common.transfer.connection import HungUpError
from gateway.common.transfer.source import FetchError

Answer = urllib3.BaseHTTPResponse
PROBLEM_LIMIT_BYTES = 16_384
"""Bytes of a problem document that are read."""
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class RequestRules:
    """Rules of a caller for its requests, and advice for people.

    `headers`: headers for a URL, also after a redirect; it raises FetchError for a URL that must not be requested.
    `retried`: statuses below 500 after which another attempt is made. `again`: what happens after the last attempt.
    `remedies`: by status. `tls_remedy`: for a certificate that is not trusted.
    """

    headers: Callable[[str], Mapping[str, str]] = lambda _url: {}
    retried: frozenset[int] = frozenset()
    again: str = "try it again later"
    remedies: Mapping[int, str] = field(default_factory=dict)
    tls_remedy: str = "see ca_file, certificate_file and the clock"


class PassingError(Exception):
    """Failure of one attempt; another may succeed."""

    def __init__(self, problem: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.status, self.retry_after_s = status, retry_after_s


def check_status(url: str, answer: Answer, rules: RequestRules, retry_after_limit_s: float) -> None:
    """Raise PassingError for a status after which another attempt may succeed, FetchError for any other failure."""
    if answer.status in {200, 206, 304, 416}:
        return
    after_s = min(retry_after_s(answer.headers.get("Retry-After", ""), datetime.now(timezone.utc)), retry_after_limit_s)
    if answer.status >= 500 or answer.status in rules.retried:
        raise PassingError(f"the server answered {summary(answer)}", answer.status, after_s)
    remedy = rules.remedies.get(answer.status, "")
    raise FetchError(
        f"{without_secrets(url)} could not be fetched: the server answered {summary(answer)}{remedy and '; '}{remedy}",
        status=answer.status,
        final=True,
        retry_after_s=after_s,
        challenge=answer.headers.get("WWW-Authenticate", ""),
        kind=_problem_kind(answer),
    )


def _problem_kind(answer: Answer) -> str:
    """Return the `type` of a problem document (RFC 9457), "" if the answer is none."""
    content = bytearray()
    try:
        while len(content) < PROBLEM_LIMIT_BYTES and (piece := answer.read1(PROBLEM_LIMIT_BYTES, decode_content=False)):
            content += piece
        return str(json.loads(content)["type"])
    except (ValueError, RecursionError, TypeError, KeyError, HTTPError, HungUpError):  # the status decides alone
        return ""


def redirected(url: str, target: str) -> str:
    """Return the target of a redirect. Raise FetchError if it is no http(s) URL, or leads from https to http."""
    try:
        there = urllib.parse.urljoin(url, target)
        schemes = urllib.parse.urlsplit(url).scheme, urllib.parse.urlsplit(there).scheme
    except ValueError as error:
        raise FetchError(f"{without_secrets(url)} redirects to {target!r:.200}, which is no URL", final=True) from error
    if schemes[1] not in {"http", "https"} or schemes == ("https", "http"):
        raise FetchError(
            f"{without_secrets(url)} redirects to {without_secrets(there)}, which is not followed", final=True
        )
    return there


def stated_length(answer: Answer) -> int | None:
    """Return the Content-Length, or None."""
    value = answer.headers.get("Content-Length", "")
    return int(value) if _NUMBER.fullmatch(value) else None


def stated_size(answer: Answer) -> int | None:
    """Return the size of the whole file, as the answer to a request for its first byte states it, or None."""
    if answer.status == 200:
        return stated_length(answer)
    whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(whole) if answer.status in {206, 416} and _NUMBER.fullmatch(whole) else None


def continuation(start: int, etag: str) -> dict[str, str]:
    """Return the headers that request a file from byte `start`; with a strong ETag, only if it is still the same.

    A weak ETag promises nothing about bytes (RFC 9110, 8.8.3).
    """
    if not start:
        return {}
    same = {"If-Match": etag} if etag.startswith('"') else {}
    return {"Range": f"bytes={start}-", **same}


def encoded(answer: Answer) -> bool:
    """Return True if the body is compressed or otherwise encoded."""
    return answer.headers.get("Content-Encoding", "identity") != "identity"


def continues(answer: Answer, start: int, size_bytes: int) -> bool:
    """Return True if the answer is exactly the rest of the file (RFC 9110, 14.4)."""
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != 206 or not found:
        return False
    first, last, whole = found.groups()
    return int(first) == start and int(last) == size_bytes - 1 and whole in {"*", str(size_bytes)}


def held_to(stated: int | None, came: int) -> None:
    """Raise PassingError if the body ended early."""
    if stated is not None and came != stated:
        raise PassingError(f"it ended after {came} of {stated} bytes")


def summary(answer: Answer) -> str:
    """Return status, reason and the headers that describe the body."""
    named = ("Content-Length", "Content-Range", "Content-Encoding")
    text = "".join(f", {name} {answer.headers[name]!r:.80}" for name in named if name in answer.headers)
    return f"{answer.status} {answer.reason or ''!s:.80}".strip() + text


def unusable(url: str, answer: Answer, wanted: str) -> FetchError:
    """Return the error for an answer that does not fit what is known about the file."""
    problem = f"is not what its metadata says: wanted {wanted}, the server answered {summary(answer)}"
    return FetchError(f"{without_secrets(url)} {problem}", status=answer.status, final=True)


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:500]
