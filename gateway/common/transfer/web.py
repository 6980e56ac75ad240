"""Repository on a web server, over HTTP with bounds of our own.

Status 4xx is final. Status 5xx, broken connections and slow servers are retried, with jitter, until the deadline or too
many attempts in a row without progress. A blob is continued where it stopped.
"""

from __future__ import annotations

import random
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, MaxRetryError, SSLError

from gateway.common.transfer.answers import (
    Answer,
    PassingError,
    RequestRules,
    check_status,
    continuation,
    continues,
    encoded,
    held_to,
    redirected,
    stated_length,
    stated_size,
    summary,
    unusable,
    without_secrets,
)
from gateway.common.transfer.connection import ConnectionPool, HungUpError, RequestState
from gateway.common.transfer.pace import NS, TokenBucket, TransferPace, backoff_ns, least_bytes
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError, FileFacts, Receiver, SourceDocument

Result = TypeVar("Result")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


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
        rules: RequestRules | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        pause: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Raise ConfigurationError if certificates or the proxy are not usable."""
        self._connections = connections or ConnectionPool(settings or FetchSettings())
        self._settings, self._rules = self._connections.settings, rules or RequestRules()
        self._base = base_url if not base_url or base_url.endswith("/") else f"{base_url}/"
        self._connections.prepare(self._base)
        self._line = RequestState(self._settings, now_ns)
        self._now_ns, self._pause, self._chance = now_ns, pause, chance
        self._bucket = TokenBucket(self._settings.rate_limit_bytes_per_s, self._settings.rate_burst_bytes, now_ns())

    @property
    def name(self) -> str:
        """URL without its secret parts."""
        return without_secrets(self._base)

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
        return self._tries(
            url, self._settings.document_deadline_s, lambda: self._document(url, limit_bytes, etag), lambda: 0
        )

    def measure(self, path: str) -> FileFacts:
        """Return size and ETag of a file without its content. Raise FetchError."""
        url = f"{self._base}{path}"
        return self._tries(url, self._settings.document_deadline_s, lambda: self._facts(url), lambda: 0)

    def copy(self, path: str, receiver: Receiver, size_bytes: int, *, etag: str = "") -> None:
        """Append to `receiver` until it has exactly `size_bytes`, from its offset if the server supports ranges.

        `etag`: of the file that the receiver's bytes came from; FetchError with status 412 if it is another one now.
        """
        url = f"{self._base}{path}"
        ranges = [True]

        def once() -> None:
            if receiver.offset < size_bytes:
                self._rest(url, receiver, size_bytes, ranges, etag)

        self._tries(url, self._settings.blob_deadline_s, once, lambda: receiver.offset)

    def _tries(self, url: str, deadline_s: float, once: Callable[[], Result], progress: Callable[[], int]) -> Result:
        patience = self._line.patience = TransferPace(self._settings, deadline_s, self._now_ns())
        failures, reached = 0, progress()
        while True:
            patience.begin(self._now_ns())
            try:
                return once()
            except PassingError as error:
                if progress() - reached >= least_bytes(self._settings):
                    failures, reached = 0, progress()
                failures += 1
                pause_ns = backoff_ns(self._settings, failures, self._chance(), error.retry_after_s)
                if failures >= self._settings.attempts or pause_ns >= patience.remaining_ns(self._now_ns()):
                    message = (
                        f"{without_secrets(url)} could not be fetched: {error} "
                        f"(failure {failures} in a row, within {deadline_s:g} s); {self._rules.again}"
                    )
                    raise FetchError(message, status=error.status, retry_after_s=error.retry_after_s) from error
                self._pause(pause_ns / NS)

    def _document(self, url: str, limit_bytes: int, etag: str) -> SourceDocument:
        with self._answer(url, {"If-None-Match": etag} if etag else {}) as answer:
            if answer.status == 304 and etag:
                return SourceDocument(None, etag)
            stated = stated_length(answer)
            if answer.status != 200 or encoded(answer) or (stated or 0) > limit_bytes:
                raise unusable(url, answer, f"a plain file of at most {limit_bytes} bytes")
            if stated is None and answer.headers.get("Transfer-Encoding", "").lower() != "chunked":
                raise PassingError("it does not say how long the file is, so whether all of it came cannot be known")
            content = bytearray()
            for piece in self._pieces(answer):
                content += piece
                if len(content) > limit_bytes:
                    raise unusable(url, answer, f"at most {limit_bytes} bytes, more came")
            held_to(stated, len(content))
            return SourceDocument(bytes(content), answer.headers.get("ETag", ""))

    def _facts(self, url: str) -> FileFacts:
        with self._answer(url, {"Range": "bytes=0-0"}) as answer:
            size_bytes = stated_size(answer)
            if size_bytes is None or encoded(answer):
                raise unusable(url, answer, "a plain file whose length the server states")
            return FileFacts(size_bytes, answer.headers.get("ETag", ""))

    def _rest(self, url: str, receiver: Receiver, size_bytes: int, ranges: list[bool], etag: str) -> None:
        start = receiver.offset if ranges[0] else 0
        with self._answer(url, continuation(start, etag)) as answer:
            if start and not (answer.status == 200 or continues(answer, start, size_bytes)):
                ranges[0] = False  # from now on request the whole file and skip the bytes that are here
                raise PassingError(f"it answered {summary(answer)} when asked for bytes {start} on", answer.status)
            start = start if answer.status == 206 else 0
            stated = stated_length(answer)
            if (not start and answer.status != 200) or encoded(answer) or stated not in {None, size_bytes - start}:
                raise unusable(url, answer, f"{size_bytes - start} plain bytes from byte {start} on")
            self._receive(url, answer, receiver, size_bytes, receiver.offset - start)
            held_to(size_bytes, receiver.offset)

    def _receive(self, url: str, answer: Answer, receiver: Receiver, size_bytes: int, skip_bytes: int) -> None:
        for piece in self._pieces(answer):
            kept, skip_bytes = piece[skip_bytes:], max(0, skip_bytes - len(piece))
            if receiver.offset + len(kept) > size_bytes:
                raise unusable(url, answer, f"{size_bytes} bytes, more came")
            if kept:
                receiver.append(kept)
            pause_ns = self._bucket.take(len(piece), self._now_ns())
            if pause_ns and self._line.patience:
                pause_ns = min(pause_ns, self._line.patience.remaining_ns(self._now_ns()))
                self._pause(pause_ns / NS)
                self._line.patience.paused(pause_ns)
            if receiver.offset == size_bytes:
                return

    def _pieces(self, answer: Answer) -> Iterator[bytes]:
        while piece := answer.read1(self._settings.piece_bytes, decode_content=False):
            yield piece

    @contextmanager
    def _answer(self, url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        """Yield the answer after redirects, with its status checked. Failures become PassingError or FetchError."""
        try:
            answer = self._follow(
                url, {**headers, "Accept-Encoding": "identity", "User-Agent": self._settings.user_agent}
            )
            try:
                check_status(url, answer, self._rules, self._settings.retry_after_limit_s)
                yield answer
            finally:
                self._finish(answer)
        except HungUpError as error:
            raise PassingError(str(error)) from error
        except (SSLError, LocationValueError, MaxRetryError) as error:
            hint = f"; {self._rules.tls_remedy}" if isinstance(error, SSLError) else ""
            raise FetchError(f"{without_secrets(url)} could not be fetched: {error}{hint}", final=True) from error
        except HTTPError as error:
            raise PassingError(f"{type(error).__name__}: {error!s:.300}") from error

    def _follow(self, url: str, headers: Mapping[str, str]) -> Answer:
        for _ in range(self._settings.redirects + 1):
            answer = self._request(url, headers)
            target = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not target:
                return answer
            self._finish(answer)
            url = redirected(url, target)
        raise FetchError(
            f"{without_secrets(url)} was redirected more than {self._settings.redirects} times", final=True
        )

    def _request(self, url: str, headers: Mapping[str, str]) -> Answer:
        if not url.lower().startswith(("http://", "https://")):
            raise FetchError(f"{without_secrets(url)} is no http or https URL", final=True)
        remaining_ns = self._line.patience.remaining_ns(self._now_ns()) if self._line.patience else 0
        if not remaining_ns:
            raise HungUpError("its deadline has passed")
        timeout = urllib3.Timeout(connect=min(self._settings.connect_timeout_s, remaining_ns / NS), read=None)
        sent = {**headers, **self._rules.headers(url)}
        return self._connections.ask(self._line, self._base, "GET", url, headers=sent, timeout=timeout)

    def _finish(self, answer: Answer) -> None:
        """Read the rest if it is small, so that the connection can be reused; else close it."""
        try:
            if (stated_length(answer) or 0) <= self._settings.piece_bytes and answer.status >= 300:
                answer.read1(self._settings.piece_bytes, decode_content=False)
        except (HTTPError, HungUpError):
            pass  # the connection is closed
        finally:
            answer.close()
