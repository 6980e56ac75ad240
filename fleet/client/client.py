"""One controller, one caller: requests in, plain JSON values out, refusals as the errors that a command line tells."""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from fleet.client.messages import Message, Messages
from fleet.client.settings import ClientSettings
from fleet.problem_types import IN_PROGRESS
from gateway import __version__
from gateway.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError
from gateway.domain.retry import retry_after_s

LATER = frozenset({429, 503})
"""Nothing of the request was done; it is asked again after a pause."""
RETRY_AFTER_S = 1.0
KEY_HEADER = "idempotency-key"
STREAM = {"accept": "text/event-stream"}
SHORTEST_S = 0.1
"""Wait for a message whose time is over."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
Query = Mapping[str, object]
Json = dict[str, Any]
_Answered = tuple[urllib3.BaseHTTPResponse, bytes]


@dataclass(frozen=True, slots=True)
class Access:
    """Where the controller is, who signs its certificate ("": whom the system trusts), who asks."""

    url: str
    token: str = field(repr=False)
    ca_file: str = ""


class _Document(Json):
    """A JSON object of an answer; whoever lacks what a controller always says is none."""

    def __init__(self, fields: Json, url: str) -> None:
        super().__init__(fields)
        self._url = url

    def __missing__(self, name: str) -> object:
        raise UnreachableError(f"{self._url} says nothing of {name!r}; is this an edge-fleet controller?")


class _LostError(Exception):
    """No answer came. `sent`: the request may have been carried out."""

    def __init__(self, problem: str, *, sent: bool) -> None:
        super().__init__(problem)
        self.sent = sent


class Client:
    """Keeps one connection. `ask` and `pages` raise ConfigurationError for what was asked wrongly (400),
    UnreachableError where no answer is to be had, RequestError for other refusals."""

    def __init__(
        self, access: Access, settings: ClientSettings | None = None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """Raises ConfigurationError for an address or a file that cannot be used."""
        self._settings, self._sleep = settings or ClientSettings(), sleep
        self._url, self.reconnect_s = _checked(access), self._settings.backoff_s
        self._pool = urllib3.PoolManager(
            ssl_context=_context(access.ca_file) if self._url.startswith("https:") else None,
            retries=False,
            headers={
                "accept": "application/json",
                "authorization": f"Bearer {access.token}",
                "user-agent": f"edge-fleet/{__version__}",
            },
        )

    def ask(
        self, method: str, path: str, query: Query | None = None, body: object = None, *, if_match: str = "*"
    ) -> Json:
        """The answer's document, an empty one where none came. `body`: what is sent as JSON. `if_match`: state that
        `read` found; the controller refuses where the resource has another one by then."""
        headers = {} if method == "GET" else {"if-match": if_match}
        if method == "POST":  # the controller carries it out once, however often it is sent
            headers[KEY_HEADER] = f'"{uuid.uuid4()}"'
        _, content = self._answered(method, f"{path}{_query(query or {})}", body, headers)
        return self._read(content or b"{}")

    def read(self, path: str) -> tuple[Json, str]:
        """A resource, and the name of the state that it is in (its ETag)."""
        response, content = self._answered("GET", path, None, {})
        return self._read(content), response.headers.get("etag", "")

    def pages(self, path: str, query: Query | None = None, *, cursor: str = "after") -> Iterator[Json]:
        """The items of a list, page after page. `cursor`: what its next page is asked for by."""
        asked = {"limit": self._settings.page_rows, **(query or {})}
        while True:
            page = self.ask("GET", path, asked)
            if not {"items", "next"} <= page.keys():
                raise UnreachableError(f"{self._url}{path} answers no list; is this an edge-fleet controller?")
            yield from page["items"]
            if page["next"] is None:
                return
            asked[cursor] = page["next"]

    def changes(self, query: Query, after: str = "", until_s: float | None = None) -> Iterator[Message]:
        """Messages of one connection to /v1/changes, behind the id `after`, until the controller ends it or the
        monotonic time `until_s` comes. Raises UnreachableError where there is no connection, or where it breaks."""
        target, read_s = f"/v1/changes{_query({**query, 'after': after})}", self._patience_s(until_s)
        messages = Messages(self._settings.answer_limit_bytes, self.reconnect_s)
        try:
            with (
                self._translated(),
                closing(self._sent("GET", target, None, STREAM, read_s)) as opened,
            ):
                if opened.status >= 300:
                    self._reconnect_in(_pause_s(opened) if opened.status in LATER else self.reconnect_s)
                    raise _refusal(opened.status, self._content(opened), self._url)
                for content in opened.stream():
                    yield from messages.feed(content)
                    self._reconnect_in(messages.retry_s)
        except (_LostError, ValueError) as error:
            if until_s is None or time.monotonic() < until_s:
                raise UnreachableError(str(error)) from None

    def _reconnect_in(self, pause_s: float) -> None:
        self.reconnect_s = min(pause_s, self._settings.wait_limit_s)

    def _patience_s(self, until_s: float | None) -> float:
        """How long is waited for a message: no longer than until then."""
        left_s = float("inf") if until_s is None else max(until_s - time.monotonic(), SHORTEST_S)
        return min(self._settings.read_timeout_s, left_s)

    def _answered(self, method: str, target: str, body: object, headers: Mapping[str, str]) -> _Answered:
        """Ask until there is an answer other than "later"; after a lost connection only what has a key. Raises what
        the answer refuses."""
        lost = False
        for attempt in range(1, self._settings.attempts + 1):
            is_last = attempt == self._settings.attempts
            try:
                response, content = self._once(method, target, body, headers)
            except _LostError as error:
                lost = lost or error.sent
                if is_last or not lost or KEY_HEADER not in headers:
                    raise UnreachableError(str(error)) from None
                wait_s = self._settings.backoff_s * 2 ** (attempt - 1)
            else:
                if is_last or not _is_later(response, content):
                    break
                wait_s = _pause_s(response)
            self._sleep(min(wait_s, self._settings.wait_limit_s))
        if response.status >= 300:
            raise _refusal(response.status, content, self._url)
        return response, content

    def _once(self, method: str, target: str, body: object, more: Mapping[str, str]) -> _Answered:
        with self._translated():
            response = self._sent(method, target, body, more)
            return response, self._content(response)

    def _sent(
        self, method: str, target: str, body: object, more: Mapping[str, str], read_s: float | None = None
    ) -> urllib3.BaseHTTPResponse:
        sent = None if body is None else json.dumps(body).encode()
        headers = {**self._pool.headers, **more, **({"content-type": "application/json"} if sent is not None else {})}
        settings, url = self._settings, f"{self._url}{target}"
        timeout = urllib3.Timeout(settings.connect_timeout_s, read_s or settings.read_timeout_s)
        return self._pool.request(
            method, url, body=sent, headers=headers, timeout=timeout, redirect=False, preload_content=False
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise UnreachableError for a certificate that is not believed, _LostError for other errors of connections."""
        try:
            yield
        except SSLError as error:
            problem = f"its certificate is not believed ({error!s:.200}); name who signed it with --ca FILE"
            raise UnreachableError(f"{self._url}: {problem}") from None
        except (HTTPError, OSError) as error:
            sent_it = not isinstance(error, (NewConnectionError, ConnectTimeoutError))
            raise _LostError(f"{self._url} does not answer: {_words(error)}", sent=sent_it) from None

    def _content(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """All of it; a connection with something left in it is closed."""
        limit_bytes = self._settings.answer_limit_bytes
        try:
            content = response.read(limit_bytes + 1, decode_content=True)
            if len(content) <= limit_bytes:
                response.release_conn()
                return content
        except (HTTPError, OSError):
            response.close()
            raise
        response.close()
        raise UnreachableError(f"{self._url}: the answer is larger than {limit_bytes} bytes")

    def _read(self, content: bytes) -> Json:
        try:
            document = json.loads(content, object_hook=lambda fields: _Document(fields, self._url))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            problem = f"answers something else than a JSON object ({content[:60]!r}); is this an edge-fleet controller?"
            raise UnreachableError(f"{self._url} {problem}")
        return document


def path_of(*parts: object) -> str:
    """Such as /v1/devices/NAME/labels. Raises ConfigurationError for what would be more than one part of a path, or
    none: servers decode first and split then."""
    for part in map(str, parts):
        if "/" in part or part in {"", ".", ".."}:
            raise ConfigurationError(f"{part!r:.140} is no name")
    return "/" + "/".join(quote(str(part), safe="") for part in ("v1", *parts))


def _checked(access: Access) -> str:
    parts = urlsplit(access.url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"{access.url!r:.200} is no controller's address; write https://HOST[:PORT]")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ConfigurationError(f"{access.url!r:.200} would send the token in the clear; use https://")
    return access.url.rstrip("/")


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigurationError(f"holds no certificates that can be read: {why}", file=ca_file) from None


def _query(query: Query) -> str:
    """Without what is not said; 0 is (the wave of canaries)."""
    said = {name: value for name, value in query.items() if value not in (None, "", [], ()) and value is not False}
    plain = {name: "true" if value is True else value for name, value in said.items()}
    return f"?{urlencode(plain, doseq=True)}" if plain else ""


def _pause_s(response: urllib3.BaseHTTPResponse) -> float:
    return retry_after_s(response.headers.get("retry-after", ""), datetime.now(UTC)) or RETRY_AFTER_S


def _is_later(response: urllib3.BaseHTTPResponse, content: bytes) -> bool:
    """Whether the same request may be answered otherwise after a pause."""
    return response.status in LATER or (response.status == IN_PROGRESS.status and IN_PROGRESS.uri.encode() in content)


def _refusal(status: int, content: bytes, url: str) -> Exception:
    """What a problem document (RFC 9457) says, or the status where none came."""
    try:
        document = json.loads(content)
        detail, fault = str(document["detail"]), Fault(document["fault"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return UnreachableError(f"{url} answers {status}; is this an edge-fleet controller?")
    if status in LATER:
        return UnreachableError(f"{url}: {detail}")
    if status == 400:
        return ConfigurationError(detail)
    return RequestError(fault, detail)


def _words(error: Exception) -> str:
    """urllib3's errors begin with the representation of a connection."""
    return str(error).rpartition(": ")[2][:200] or type(error).__name__
