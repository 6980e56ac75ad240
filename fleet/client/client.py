"""Client of one controller for one caller: requests in, plain JSON values out, refusals as errors of the commands."""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from fleet.problem_types import IN_PROGRESS
from gateway import __version__
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError
from gateway.common.domain.retry import longest_pause_s, retry_after_s


@dataclass(frozen=True, slots=True)
class ServerSentMessage:
    """One message. `event` "" and no data: a heartbeat."""

    event: str = ""
    id: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class Messages:
    """Parser of Server-Sent Events (WHATWG HTML, 9.2.6). `retry_s`: wait before the next connection."""

    def __init__(self, limit_bytes: int, retry_s: float) -> None:
        self._limit_bytes, self.retry_s = limit_bytes, retry_s
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, content: bytes) -> Iterator[ServerSentMessage]:
        """Yield the messages that end in `content`. Raise ValueError for one that is too large, or no JSON object."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > self._limit_bytes:
            raise ValueError(f"a message is larger than {self._limit_bytes} bytes")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r").decode(errors="replace"))

    def _line(self, line: str) -> Iterator[ServerSentMessage]:
        name, _, value = line.partition(":")
        if not line and "data" in self._fields:
            data = json.loads(self._fields["data"])
            if not isinstance(data, dict):
                raise ValueError("a message holds no JSON object")
            yield ServerSentMessage(self._fields.get("event", ""), self._fields.get("id", ""), data)
        elif line and not name:
            yield ServerSentMessage()
        elif name == "retry" and value.strip().isdecimal():
            self.retry_s = int(value) / 1000
        if not line:
            self._fields = {}
        elif name in {"event", "id", "data"}:
            self._fields[name] = value.removeprefix(" ")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Timeouts, retries and sizes."""

    connect_timeout_s: float = 10.0  # for establishing a connection
    read_timeout_s: float = 60.0  # between two parts of an answer
    answer_limit_bytes: int = 33_554_432  # 32 MiB: largest answer that is read
    attempts: int = 5  # of a request that is answered "later", or of a POST whose connection broke
    backoff_s: float = 1.0  # pause after the first connection that broke; each next one is twice as long
    wait_limit_s: float = 30.0  # longest pause between two of them, whatever the controller says
    piece_bytes: int = 8_388_608  # 8 MiB of a file in one request; at most 64 MiB there
    page_rows: int = 500  # rows of a list that one request returns


LATER = frozenset({429, 503})
"""Statuses after which nothing of the request was done; it is sent again after a pause."""
RETRY_AFTER_S = 1.0
KEY_HEADER = "idempotency-key"
STREAM = {"accept": "text/event-stream"}
SHORTEST_S = 0.1
"""Shortest wait for a message, in seconds."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
Query = Mapping[str, object]
Json = dict[str, Any]
Record = TypeVar("Record")
_Answered = tuple[urllib3.BaseHTTPResponse, bytes]


@dataclass(frozen=True, slots=True)
class Access:
    """Controller and caller. `ca_file`: CA of the controller's certificate ("": the CAs that the system trusts)."""

    url: str
    token: str = field(repr=False)
    ca_file: str = ""


class _Document(Json):
    """JSON object of an answer. Access to a missing field means that the server is not a controller."""

    def __init__(self, fields: Json, url: str) -> None:
        super().__init__(fields)
        self._url = url

    def __missing__(self, name: str) -> object:
        raise UnreachableError(f"{self._url} answers without {name!r}; is this an edge-fleet controller?")


class _LostError(Exception):
    """No answer came. `sent`: the request may have been carried out."""

    def __init__(self, problem: str, *, sent: bool) -> None:
        super().__init__(problem)
        self.sent = sent


class Client:
    """Client with one connection to `url`, which has no slash at its end.

    `ask` and `pages` raise ConfigurationError for a wrong request (400), UnreachableError if there is no answer,
    RequestError for other refusals.
    """

    def __init__(
        self, access: Access, settings: ClientSettings | None = None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """Create a client. Raise ConfigurationError for an address or a file that cannot be used."""
        self.settings, self._sleep = settings or ClientSettings(), sleep
        parts = urlsplit(access.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(f"{access.url!r:.200} is not a controller's address; write https://HOST[:PORT]")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ConfigurationError(f"{access.url!r:.200} would send the token in the clear; use https://")
        self.url, self.reconnect_s = access.url.rstrip("/"), self.settings.backoff_s
        self._pool = urllib3.PoolManager(
            ssl_context=_context(access.ca_file) if self.url.startswith("https:") else None,
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
        """Send a request. Return the answer's document, an empty one if the answer has none.

        `body`: is sent as JSON; bytes are sent as they are. `if_match`: state that `read` returned, "" for none; the
        controller refuses the request if the resource has another one by then.
        """
        headers = {} if method == "GET" or not if_match else {"if-match": if_match}
        if method == "POST":  # the controller carries it out once, however often it is sent
            headers[KEY_HEADER] = f'"{uuid.uuid4()}"'
        _, content = self._answered(method, f"{path}{_query(query or {})}", body, headers)
        return self._read(content or b"{}")

    def read(self, path: str) -> tuple[Json, str]:
        """Return a resource and the name of its state (its ETag)."""
        content, tag = self.fetch(path)
        return self._read(content), tag

    def fetch(self, path: str) -> tuple[bytes, str]:
        """Return a resource as it is sent, and its ETag."""
        response, content = self._answered("GET", path, None, {})
        return content, response.headers.get("etag", "")

    def pause(self, failures: int) -> None:
        """Wait after this number of consecutive failures; each time twice as long."""
        self._sleep(longest_pause_s(failures, self.settings.backoff_s, self.settings.wait_limit_s))

    def pages(self, path: str, query: Query | None = None, *, cursor: str = "after") -> Iterator[Json]:
        """Yield the items of a list, page by page. `cursor`: name of the parameter that requests the next page."""
        asked = {"limit": self.settings.page_rows, **(query or {})}
        while True:
            page = self.ask("GET", path, asked)
            if not {"items", "next"} <= page.keys():
                raise UnreachableError(f"{self.url}{path} does not answer a list; is this an edge-fleet controller?")
            yield from page["items"]
            if page["next"] is None:
                return
            asked[cursor] = page["next"]

    def changes(self, query: Query, after: str = "", until_s: float | None = None) -> Iterator[ServerSentMessage]:
        """Yield messages of one connection to /v1/changes, after the id `after`.

        It ends when the controller ends it or at the monotonic time `until_s`. Raise UnreachableError if the connection
        fails or breaks.
        """
        left_s = float("inf") if until_s is None else max(until_s - time.monotonic(), SHORTEST_S)
        target, read_s = f"/v1/changes{_query({**query, 'after': after})}", min(self.settings.read_timeout_s, left_s)
        messages = Messages(self.settings.answer_limit_bytes, self.reconnect_s)
        try:
            with (
                self._translated(),
                closing(self._sent("GET", target, None, STREAM, read_s)) as opened,
            ):
                if opened.status >= 300:
                    self._reconnect_in(_pause_s(opened) if opened.status in LATER else self.reconnect_s)
                    raise _refusal(opened.status, self._content(opened), self.url)
                for content in opened.stream():
                    yield from messages.feed(content)
                    self._reconnect_in(messages.retry_s)
        except (_LostError, ValueError, RecursionError, OverflowError) as error:
            if until_s is None or time.monotonic() < until_s:
                raise UnreachableError(str(error)) from None

    def _reconnect_in(self, pause_s: float) -> None:
        self.reconnect_s = min(pause_s, self.settings.wait_limit_s)

    def _answered(self, method: str, target: str, body: object, headers: Mapping[str, str]) -> _Answered:
        """Send a request until there is an answer other than "later". Raise what the answer refuses.

        After a lost connection, only a request with an idempotency key is sent again.
        """
        lost = False
        for attempt in range(1, self.settings.attempts + 1):
            is_last = attempt == self.settings.attempts
            try:
                response, content = self._once(method, target, body, headers)
            except _LostError as error:
                lost = lost or error.sent
                if is_last or not lost or KEY_HEADER not in headers:
                    raise UnreachableError(str(error)) from None
                wait_s = longest_pause_s(attempt, self.settings.backoff_s, self.settings.wait_limit_s)
            else:
                if is_last or not (
                    response.status in LATER
                    or (response.status == IN_PROGRESS.status and IN_PROGRESS.uri.encode() in content)
                ):
                    break
                wait_s = _pause_s(response)
            self._sleep(min(wait_s, self.settings.wait_limit_s))
        if response.status >= 300:
            raise _refusal(response.status, content, self.url)
        return response, content

    def _once(self, method: str, target: str, body: object, more: Mapping[str, str]) -> _Answered:
        with self._translated():
            response = self._sent(method, target, body, more)
            return response, self._content(response)

    def _sent(
        self, method: str, target: str, body: object, more: Mapping[str, str], read_s: float | None = None
    ) -> urllib3.BaseHTTPResponse:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        headers = {**self._pool.headers, **more, **({"content-type": kind} if sent is not None else {})}
        settings, url = self.settings, f"{self.url}{target}"
        timeout = urllib3.Timeout(connect=settings.connect_timeout_s, read=read_s or settings.read_timeout_s)
        return self._pool.request(
            method, url, body=sent, headers=headers, timeout=timeout, redirect=False, preload_content=False
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise UnreachableError for a certificate that is not trusted, _LostError for other errors of connections."""
        try:
            yield
        except SSLError as error:
            problem = f"its certificate is not trusted ({error!s:.200}); name its CA with --ca FILE"
            raise UnreachableError(f"{self.url}: {problem}") from None
        except (HTTPError, OSError) as error:
            sent_it = not isinstance(error, (NewConnectionError, ConnectTimeoutError))
            raise _LostError(f"{self.url} does not answer: {_words(error)}", sent=sent_it) from None

    def _content(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """Return the whole body. A connection with unread data is closed."""
        limit_bytes = self.settings.answer_limit_bytes
        try:
            content = response.read(limit_bytes + 1, decode_content=True)
            if len(content) <= limit_bytes:
                response.release_conn()
                return content
        except (HTTPError, OSError):
            response.close()
            raise
        response.close()
        raise UnreachableError(f"{self.url}: the answer is larger than {limit_bytes} bytes")

    def _read(self, content: bytes) -> Json:
        try:
            document = json.loads(content, object_hook=lambda fields: _Document(fields, self.url))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            problem = f"does not answer with a JSON object ({content[:60]!r}); is this an edge-fleet controller?"
            raise UnreachableError(f"{self.url} {problem}")
        return document


def record_of(kind: type[Record], document: Json) -> Record:
    """Return a dataclass with those fields of a document that it has: newer controllers send more."""
    known = [one.name for one in fields(cast("Any", kind)) if one.name in document or one.default is MISSING]
    return kind(**{name: document[name] for name in known})


def path_of(*parts: object) -> str:
    """Return a path such as /v1/devices/NAME/labels.

    Raise ConfigurationError for a part that would be several parts of a path, or none: servers decode before they
    split.
    """
    for part in map(str, parts):
        if "/" in part or part in {"", ".", ".."}:
            raise ConfigurationError(f"{part!r:.140} is not a name")
    return "/" + "/".join(quote(str(part), safe="") for part in ("v1", *parts))


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigurationError(f"holds no readable certificates: {why}", file=ca_file) from None


def _query(query: Query) -> str:
    """Return the query string without empty values; 0 is kept (it is the wave of canaries)."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], ()) and value is not False}
    plain = {name: "true" if value is True else value for name, value in given.items()}
    return f"?{urlencode(plain, doseq=True)}" if plain else ""


def _pause_s(response: urllib3.BaseHTTPResponse) -> float:
    return retry_after_s(response.headers.get("retry-after", ""), datetime.now(timezone.utc)) or RETRY_AFTER_S


def _refusal(status: int, content: bytes, url: str) -> Exception:
    """Return the error for a problem document (RFC 9457), or for the status if there is none."""
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
    """Return the message of an error of urllib3 without the representation of the connection."""
    return str(error).rpartition(": ")[2][:200] or type(error).__name__
