"""Repository on a web server, over HTTP with bounds of our own.

Status 4xx is final. Status 5xx, broken connections and slow servers are retried, with jitter, until the deadline or too
many attempts in a row without progress. A blob is continued where it stopped.
"""

from __future__ import annotations

import random
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, MaxRetryError, SSLError

from gateway.agent.fetch.connection import ConnectionPool, HungUpError, RequestState
from gateway.agent.fetch.pace import NS, TokenBucket, TransferPace, backoff_ns, least_bytes
from gateway.agent.fetch.source import FetchError, Receiver, SourceDocument
from gateway.agent.settings import FetchSettings
from gateway.domain.retry import retry_after_s

Answer = urllib3.BaseHTTPResponse
Result = TypeVar("Result")
LOCKED_OUT = "; this device is not authenticated: enrol it again with a new token (edge-agent enrol)"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


class _PassingError(Exception):
    """Failure of one attempt; another may succeed."""

    def __init__(self, problem: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.status, self.retry_after_s = status, retry_after_s


class WebSource:
    """Files below `base_url`, one request at a time. Close it after use.

    `connections`: may be shared; their settings apply. `now_ns` and `pause` are the monotonic clock's; `chance` draws
    from [0, 1).
    """

    def __init__(
        self,
        base_url: str,
        settings: FetchSettings | None = None,
        *,
        connections: ConnectionPool | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        pause: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Raise ConfigurationError if certificates or the proxy are not usable."""
        self._connections = connections or ConnectionPool(settings or FetchSettings())
        self._settings = self._connections.settings
        self._base = base_url if not base_url or base_url.endswith("/") else f"{base_url}/"
        self._connections.prepare(self._base)
        self._line = RequestState(self._settings, now_ns)
        self._now_ns, self._pause, self._chance = now_ns, pause, chance
        self._bucket = TokenBucket(self._settings.rate_limit_bytes_per_s, self._settings.rate_burst_bytes, now_ns())

    @property
    def name(self) -> str:
        """URL without its secret parts."""
        return _without_secrets(self._base)

    def close(self) -> None:
        """Close the connections, even if they are shared."""
        self._connections.close()

    def read(
        self, path: str, limit_bytes: int, *, etag: str = "", query: Mapping[str, str] | None = None
    ) -> SourceDocument:
        """Return a whole file of at most `limit_bytes`; no content if the copy named by `etag` is current.

        Raise FetchError.
        """
        url = f"{self._base}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        deadline_s = self._settings.document_deadline_s
        return self._tries(url, deadline_s, lambda: self._document(url, limit_bytes, etag), lambda: 0)

    def copy(self, path: str, receiver: Receiver, size_bytes: int) -> None:
        """Append to `receiver` until it has exactly `size_bytes`, from its offset if the server supports ranges."""
        url = f"{self._base}{path}"
        ranges = [True]

        def once() -> None:
            if receiver.offset < size_bytes:
                self._rest(url, receiver, size_bytes, ranges)

        self._tries(url, self._settings.blob_deadline_s, once, lambda: receiver.offset)

    def _tries(self, url: str, deadline_s: float, once: Callable[[], Result], progress: Callable[[], int]) -> Result:
        patience = self._line.patience = TransferPace(self._settings, deadline_s, self._now_ns())
        failures, reached = 0, progress()
        while True:
            patience.begin(self._now_ns())
            try:
                return once()
            except _PassingError as error:
                if progress() - reached >= least_bytes(self._settings):
                    failures, reached = 0, progress()
                failures += 1
                pause_ns = backoff_ns(self._settings, failures, self._chance(), error.retry_after_s)
                if failures >= self._settings.attempts or pause_ns >= patience.remaining_ns(self._now_ns()):
                    raise self._given_up(url, error, failures, deadline_s) from error
                self._pause(pause_ns / NS)

    def _given_up(self, url: str, error: _PassingError, failures: int, deadline_s: float) -> FetchError:
        message = (
            f"{_without_secrets(url)} could not be fetched: {error} "
            f"(failure {failures} in a row, within {deadline_s:g} s); it is tried again at the next poll"
        )
        return FetchError(message, status=error.status, retry_after_s=error.retry_after_s)

    def _document(self, url: str, limit_bytes: int, etag: str) -> SourceDocument:
        with self._answer(url, {"If-None-Match": etag} if etag else {}) as answer:
            if answer.status == 304 and etag:
                return SourceDocument(None, etag)
            stated = _stated_length(answer)
            if answer.status != 200 or _encoded(answer) or (stated or 0) > limit_bytes:
                raise _unusable(url, answer, f"a plain file of at most {limit_bytes} bytes")
            if stated is None and answer.headers.get("Transfer-Encoding", "").lower() != "chunked":
                raise _PassingError("it does not say how long the file is, so whether all of it came cannot be known")
            content = bytearray()
            for piece in self._pieces(answer):
                content += piece
                if len(content) > limit_bytes:
                    raise _unusable(url, answer, f"at most {limit_bytes} bytes, more came")
            _held_to(stated, len(content))
            return SourceDocument(bytes(content), answer.headers.get("ETag", ""))

    def _rest(self, url: str, receiver: Receiver, size_bytes: int, ranges: list[bool]) -> None:
        start = receiver.offset if ranges[0] else 0
        with self._answer(url, {"Range": f"bytes={start}-"} if start else {}) as answer:
            if start and not (answer.status == 200 or _continues(answer, start, size_bytes)):
                ranges[0] = False  # from now on request the whole file and skip the bytes that are here
                raise _PassingError(f"it answered {_summary(answer)} when asked for bytes {start} on", answer.status)
            start = start if answer.status == 206 else 0
            stated = _stated_length(answer)
            if (not start and answer.status != 200) or _encoded(answer) or stated not in {None, size_bytes - start}:
                raise _unusable(url, answer, f"{size_bytes - start} plain bytes from byte {start} on")
            self._receive(url, answer, receiver, size_bytes, receiver.offset - start)
            _held_to(size_bytes, receiver.offset)

    def _receive(self, url: str, answer: Answer, receiver: Receiver, size_bytes: int, skip_bytes: int) -> None:
        for piece in self._pieces(answer):
            kept, skip_bytes = piece[skip_bytes:], max(0, skip_bytes - len(piece))
            if receiver.offset + len(kept) > size_bytes:
                raise _unusable(url, answer, f"{size_bytes} bytes, more came")
            if kept:
                receiver.append(kept)
            self._rest_a_while(len(piece))
            if receiver.offset == size_bytes:
                return

    def _rest_a_while(self, count_bytes: int) -> None:
        pause_ns = self._bucket.take(count_bytes, self._now_ns())
        if pause_ns and self._line.patience:
            pause_ns = min(pause_ns, self._line.patience.remaining_ns(self._now_ns()))
            self._pause(pause_ns / NS)
            self._line.patience.paused(pause_ns)

    def _pieces(self, answer: Answer) -> Iterator[bytes]:
        while piece := answer.read1(self._settings.piece_bytes, decode_content=False):
            yield piece

    @contextmanager
    def _answer(self, url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        """Yield the answer after redirects, with its status checked. Failures become _PassingError or FetchError."""
        try:
            answer = self._follow(
                url, {**headers, "Accept-Encoding": "identity", "User-Agent": self._settings.user_agent}
            )
            try:
                _check_status(url, answer, self._settings.retry_after_limit_s)
                yield answer
            finally:
                self._finish(answer)
        except HungUpError as error:
            raise _PassingError(str(error)) from error
        except (SSLError, LocationValueError, MaxRetryError) as error:
            hint = "; see ca_file, certificate_file and the clock" if isinstance(error, SSLError) else ""
            raise FetchError(f"{_without_secrets(url)} could not be fetched: {error}{hint}", final=True) from error
        except HTTPError as error:
            raise _PassingError(f"{type(error).__name__}: {error!s:.300}") from error

    def _follow(self, url: str, headers: Mapping[str, str]) -> Answer:
        for _ in range(self._settings.redirects + 1):
            answer = self._request(url, headers)
            target = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not target:
                return answer
            self._finish(answer)
            url = _redirected(url, target)
        raise FetchError(
            f"{_without_secrets(url)} was redirected more than {self._settings.redirects} times", final=True
        )

    def _request(self, url: str, headers: Mapping[str, str]) -> Answer:
        if not url.lower().startswith(("http://", "https://")):
            raise FetchError(f"{_without_secrets(url)} is no http or https URL", final=True)
        remaining_ns = self._line.patience.remaining_ns(self._now_ns()) if self._line.patience else 0
        if not remaining_ns:
            raise HungUpError("its deadline has passed")
        timeout = urllib3.Timeout(connect=min(self._settings.connect_timeout_s, remaining_ns / NS), read=None)
        return self._connections.ask(self._line, self._base, "GET", url, headers=headers, timeout=timeout)

    def _finish(self, answer: Answer) -> None:
        """Read the rest if it is small, so that the connection can be reused; else close it."""
        try:
            if (_stated_length(answer) or 0) <= self._settings.piece_bytes and answer.status >= 300:
                answer.read1(self._settings.piece_bytes, decode_content=False)
        except (HTTPError, HungUpError):
            pass  # the connection is closed
        finally:
            answer.close()


def _check_status(url: str, answer: Answer, retry_after_limit_s: float) -> None:
    if answer.status in {200, 206, 304, 416}:
        return
    after_s = min(retry_after_s(answer.headers.get("Retry-After", ""), datetime.now(UTC)), retry_after_limit_s)
    if answer.status >= 500:
        raise _PassingError(f"the server answered {_summary(answer)}", answer.status, after_s)
    remedy = LOCKED_OUT if answer.status == 401 else ""
    raise FetchError(
        f"{_without_secrets(url)} could not be fetched: the server answered {_summary(answer)}{remedy}",
        status=answer.status,
        final=True,
        retry_after_s=after_s,
    )


def _redirected(url: str, target: str) -> str:
    try:
        there = urllib.parse.urljoin(url, target)
        schemes = urllib.parse.urlsplit(url).scheme, urllib.parse.urlsplit(there).scheme
    except ValueError as error:
        raise FetchError(
            f"{_without_secrets(url)} redirects to {target!r:.200}, which is no URL", final=True
        ) from error
    if schemes[1] not in {"http", "https"} or schemes == ("https", "http"):
        raise FetchError(
            f"{_without_secrets(url)} redirects to {_without_secrets(there)}, which is not followed", final=True
        )
    return there


def _stated_length(answer: Answer) -> int | None:
    value = answer.headers.get("Content-Length", "")
    return int(value) if _NUMBER.fullmatch(value) else None


def _encoded(answer: Answer) -> bool:
    return answer.headers.get("Content-Encoding", "identity") != "identity"


def _continues(answer: Answer, start: int, size_bytes: int) -> bool:
    """Return True if the answer is exactly the rest of the file (RFC 9110, 14.4)."""
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != 206 or not found:
        return False
    first, last, whole = found.groups()
    return int(first) == start and int(last) == size_bytes - 1 and whole in {"*", str(size_bytes)}


def _held_to(stated: int | None, came: int) -> None:
    if stated is not None and came != stated:
        raise _PassingError(f"it ended after {came} of {stated} bytes")


def _summary(answer: Answer) -> str:
    named = ("Content-Length", "Content-Range", "Content-Encoding")
    said = "".join(f", {name} {answer.headers[name]!r:.80}" for name in named if name in answer.headers)
    return f"{answer.status} {answer.reason or ''!s:.80}".strip() + said


def _unusable(url: str, answer: Answer, wanted: str) -> FetchError:
    problem = f"is not what its metadata says: wanted {wanted}, the server answered {_summary(answer)}"
    return FetchError(f"{_without_secrets(url)} {problem}", status=answer.status, final=True)


def _without_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:500]
