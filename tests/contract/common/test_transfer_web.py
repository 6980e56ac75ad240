"""Documents from servers that behave, and from servers that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from gateway.common.transfer.answers import RequestRules
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError, FileFacts, SourceDocument
from gateway.common.transfer.web import WebSource
from tests.simulators.bad_server import BadServer, Behaviour, answer, cut, endless, say, serve, silence, trickle
from tests.simulators.constants import settings_with

QUICK = settings_with(
    FetchSettings(connect_timeout_s=2, read_timeout_s=0.2, document_deadline_s=3),
    minimum_rate_bytes_per_s=1000,
    minimum_rate_window_s=0.3,
    attempts=3,
    backoff_base_s=0.001,
)
LIMIT = 1000
CLOSE = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
RULES = RequestRules(retried=frozenset({425}), again="ask again tomorrow", remedies={401: "say who you are"})
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def asking(
    *script: Behaviour, settings: FetchSettings = QUICK, **options: Any
) -> Iterator[tuple[WebSource, BadServer]]:
    with BadServer(list(script)).running() as server:
        source = WebSource(server.url, settings, **{"rules": RULES, **options})
        try:
            yield source, server
        finally:
            source.close()


def refused(*script: Behaviour, settings: FetchSettings = QUICK) -> tuple[FetchError, int]:
    """Return the error, and how many requests it took."""
    with asking(*script, settings=settings) as (source, server):
        with pytest.raises(FetchError) as caught:
            source.read("file", LIMIT)
        return caught.value, len(server.exchanges)


def test_a_file_comes_whole_with_its_tag() -> None:
    with asking(serve(b"content", 'ETag: "1"')) as (source, server):
        assert source.read("a/file", 7) == SourceDocument(b"content", '"1"')
    request = server.exchanges[0]
    assert request.path == "/a/file"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"] == "edge-agent"
    assert "range" not in request.headers


def test_what_has_not_changed_is_not_sent() -> None:
    with asking(say(b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n\r\n')) as (source, server):
        assert source.read("file", LIMIT, etag='"1"', query={"nonce": "a b"}) == SourceDocument(None, '"1"')
    assert server.exchanges[0].headers["if-none-match"] == '"1"'
    assert server.exchanges[0].path == "/file?nonce=a+b"


def test_304_without_being_asked_is_refused() -> None:
    error, _ = refused(say(b"HTTP/1.1 304 Not Modified\r\n\r\n"))
    assert error.final


def test_one_connection_serves_all_requests_those_that_fail_too() -> None:
    with asking(serve(b"1"), answer("404 Not Found", body=b"no"), serve(b"2")) as (source, server):
        assert source.read("1", LIMIT).content == b"1"
        with pytest.raises(FetchError, match="404 Not Found"):
            source.read("2", LIMIT)
        assert source.read("3", LIMIT).content == b"2"
        assert server.connections == 1


@pytest.mark.parametrize(
    "status", ["400 Bad", "401 Who", "403 No", "404 Not Found", "410 Gone", "416 Range", "429 Slow"]
)
def test_4xx_is_final(status: str) -> None:
    error, requests = refused(answer(status))
    assert (error.status, error.final, requests) == (int(status[:3]), True, 1)
    assert ("say who you are" in str(error)) == status.startswith("401")


def test_a_missing_file_is_missing_although_the_answer_breaks_off() -> None:
    error, requests = refused(say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{"))
    assert (error.status, error.final, error.kind, requests) == (404, True, "", 1)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"type": "/problems/denied", "title": "x"}', "/problems/denied"),
        (b'{"title": "x"}', ""),
        (b'{"type": "/prob', ""),
        (b"[" * 20_000, ""),
        (b"7", ""),
        (b"", ""),
    ],
)
def test_a_refusal_has_the_type_of_its_problem_document(body: bytes, kind: str) -> None:
    error, _ = refused(answer("403 No", body=body))
    assert (error.status, error.kind) == (403, kind)


def test_a_status_that_the_caller_lists_is_tried_again() -> None:
    with asking(answer("425 Too Early"), serve(b"content")) as (source, server):
        assert source.read("file", LIMIT).content == b"content"
        assert len(server.exchanges) == 2


def test_headers_are_the_callers_for_each_url() -> None:
    with asking(serve(b"there")) as (there, other):
        rules = RequestRules(headers=lambda url: {"Authorization": "mine"} if not url.startswith(other.url) else {})
        with asking(answer("302 Found", f"Location: {other.url}x"), rules=rules) as (source, server):
            assert source.read("file", LIMIT).content == b"there"
        assert server.exchanges[0].headers["authorization"] == "mine"
        assert "authorization" not in other.exchanges[0].headers
        there.close()


@pytest.mark.parametrize(
    ("reply", "size_bytes"),
    [
        (answer("206 Partial Content", "Content-Range: bytes 0-0/1234", 'ETag: "a"', body=b"x"), 1234),
        (answer("200 OK", 'ETag: "a"', body=b"whole"), 5),
        (answer("416 Range", "Content-Range: bytes */0", 'ETag: "a"'), 0),
    ],
)
def test_a_file_is_measured_without_its_content(reply: Behaviour, size_bytes: int) -> None:
    with asking(reply) as (source, server):
        assert source.measure("file") == FileFacts(size_bytes, '"a"')
        assert server.exchanges[0].headers["range"] == "bytes=0-0"


@pytest.mark.parametrize("head", ["Content-Range: bytes 0-0/*", "Content-Encoding: gzip", "X: y"])
def test_a_file_of_unknown_size_is_refused(head: str) -> None:
    with asking(answer("206 Partial Content", head, body=b"x")) as (source, _), pytest.raises(FetchError) as caught:
        source.measure("file")
    assert caught.value.final


@pytest.mark.parametrize("status", ["100 Continue", "204 Nothing", "206 Partial", "226 Odd", "300 Many", "305 Proxy"])
def test_other_answers_than_the_file_are_refused(status: str) -> None:
    error, _ = refused(answer(status))
    assert "file" in str(error)


@pytest.mark.parametrize("status", ["500 Broken", "502 Gate", "503 Later", "599 What"])
def test_5xx_is_tried_again_so_often(status: str) -> None:
    error, requests = refused(answer(status))
    assert (error.status, error.final, requests) == (int(status[:3]), False, QUICK.attempts)
    assert status in str(error)


def test_5xx_passes() -> None:
    with asking(answer("503 Later"), answer("500 Broken"), serve(b"content")) as (source, server):
        assert source.read("file", LIMIT).content == b"content"
        assert len(server.exchanges) == 3


@pytest.mark.parametrize("told", ["7", "date"])
def test_a_server_that_asks_for_quiet_is_heard(told: str) -> None:
    pauses: list[float] = []
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=8), usegmt=True)
    busy = answer("503 Later", f"Retry-After: {date if told == 'date' else told}")
    settings = settings_with(FetchSettings(document_deadline_s=60), backoff_base_s=0.001)
    with asking(busy, serve(b"content"), pause=pauses.append, settings=settings) as (source, _):
        assert source.read("file", LIMIT).content == b"content"
    assert 5 < pauses[0] <= 8


@pytest.mark.parametrize("told", ["999999999999999999", "-1", "soon", "Mon, 99 Foo 2026 00:00:00 GMT", "1e9", ""])
def test_a_silly_retry_after_is_not_believed(told: str) -> None:
    settings = settings_with(
        FetchSettings(document_deadline_s=60), backoff_base_s=0.001, retry_after_limit_s=0.002, attempts=2
    )
    error, requests = refused(answer("503 Later", f"Retry-After: {told}"), settings=settings)
    assert (error.status, requests) == (503, 2)
    assert error.retry_after_s <= 0.002


def test_a_pause_beyond_the_deadline_is_left_to_the_caller() -> None:
    error, requests = refused(answer("503 Later", "Retry-After: 30"))
    assert (error.retry_after_s, error.final, requests) == (30, False, 1)


def test_a_final_answer_says_how_long_to_be_quiet() -> None:
    error, _ = refused(answer("429 Too Many", "Retry-After: 30"))
    assert error.retry_after_s == 30


ILL: dict[str, Behaviour] = {
    "a byte now and then": trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", 0.05),
    "a header now and then": trickle(b"HTTP/1.1 200 OK\r\nX-Slow: ", 0.05),
    "a status line now and then": trickle(b"HTTP/1.1 2", 0.05),
    "a chunk size now and then": trickle(CHUNKED + b"0000", 0.05),
    "nothing at all": silence,
    "continue, continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hangs up at once": say(b""),
    "hangs up in the head": say(b"HTTP/1.1 200 OK\r\nContent-"),
    "hangs up in the body": cut(b"x" * 900, 10),
    "hangs up in a chunk": say(CHUNKED + b"20\r\nxx"),
    "a chunk of no size": say(CHUNKED + b"zz\r\nxx\r\n"),
    "garbage": say(b"\x00\xff\x17 this is no HTTP \r\n\r\n" * 9),
    "a greeting of another protocol": say(b"220 mail.example ESMTP\r\n"),
    "a header line without end": endless(b"HTTP/1.1 200 OK\r\nX: "),
    "headers without end": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000),
    "no length": say(CLOSE + b"four"),
    "no length, and no end": endless(CLOSE),
    "two lengths": say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nxxx"),
}


@pytest.mark.parametrize("behaviour", ILL.values(), ids=ILL)
def test_a_server_that_does_ill_is_given_up(behaviour: Behaviour) -> None:
    error, _ = refused(behaviour)  # a request without an answer may not have been read when it is given up
    assert not error.final
    assert "file could not be fetched" in str(error)
    assert f"failure {QUICK.attempts} in a row" in str(error)


@pytest.mark.parametrize("behaviour", ILL.values(), ids=ILL)
def test_a_server_that_did_ill_once_is_forgiven(behaviour: Behaviour) -> None:
    with asking(behaviour, serve(b"content")) as (source, _):
        assert source.read("file", LIMIT).content == b"content"


LIES: dict[str, Behaviour] = {
    "says that it is larger than the limit": answer("200 OK", body=b"x" * (LIMIT + 1)),
    "says nothing, and is": say(CHUNKED + b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"),
    "has no end, in chunks": endless(CHUNKED, b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n"),
    "is compressed": answer("200 OK", "Content-Encoding: gzip", body=b"\x1f\x8b"),
    "is compressed in a way nobody knows": answer("200 OK", "Content-Encoding: zzz", body=b"x"),
}


@pytest.mark.parametrize("behaviour", LIES.values(), ids=LIES)
def test_a_file_that_cannot_be_right_is_refused_at_once(behaviour: Behaviour) -> None:
    error, requests = refused(behaviour)
    assert (error.final, requests) == (True, 1)


def test_more_than_was_stated_is_not_read_and_harms_no_later_answer() -> None:
    longer = say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfourHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    with asking(longer, serve(b"good")) as (source, _):
        assert source.read("1", LIMIT).content == b"four"
        assert source.read("2", LIMIT).content == b"good"


@pytest.mark.parametrize("wrong", ["-1", "x", "1" * 5000, "4.0", "+4"])
def test_a_length_that_is_no_number_is_none(wrong: str) -> None:
    error, _ = refused(say(f"HTTP/1.1 200 OK\r\nContent-Length: {wrong}\r\n\r\nfour".encode()))
    assert not error.final


def test_chunks_will_do() -> None:
    with asking(say(CHUNKED + b"4\r\nfour\r\n0\r\n\r\n")) as (source, _):
        assert source.read("file", LIMIT).content == b"four"


def redirect(to: str, status: str = "302 Found") -> Behaviour:
    return answer(status, f"Location: {to}")


@pytest.mark.parametrize("status", ["301 a", "302 b", "303 c", "307 d", "308 e"])
def test_redirects_are_followed(status: str) -> None:
    with asking(redirect("/there", status), serve(b"content")) as (source, server):
        assert source.read("here", LIMIT).content == b"content"
        assert [exchange.path for exchange in server.exchanges] == ["/here", "/there"]


@pytest.mark.parametrize(
    ("to", "requests"),
    [
        ("/loop", 6),
        ("file:///etc/passwd", 1),
        ("ftp://127.0.0.1/", 1),
        ("http://[", 1),
        ("http://a b/", 1),
        ("https:", 1),
    ],
)
def test_redirects_to_nowhere_are_not(to: str, requests: int) -> None:
    error, asked = refused(redirect(to))
    assert (error.final, asked) == (True, requests)


def test_a_redirect_without_a_place_is_no_answer() -> None:
    error, _ = refused(answer("302 Found"))
    assert error.final


def test_a_server_that_is_not_there_is_tried_again() -> None:
    with BadServer([silence]).running() as server:
        url = server.url
    source = WebSource(url, QUICK, rules=RULES)
    with pytest.raises(FetchError, match=r"failure 3 in a row.*ask again tomorrow") as caught:
        source.read("file", LIMIT)
    assert not caught.value.final


def test_secrets_in_an_address_are_not_shown() -> None:
    source = WebSource("http://name:secret@127.0.0.1:1/base?key=secret", QUICK)
    assert "secret" not in source.name
    with pytest.raises(FetchError) as caught:
        source.read("file", LIMIT)
    assert "secret" not in str(caught.value)


def counted(step_s: float) -> Callable[[], int]:
    """Return a clock that goes on by `step_s` whenever it is read."""
    ticks = iter(range(10**9))
    return lambda: round(next(ticks) * step_s * 1e9)


def test_the_deadline_holds_for_all_attempts_together() -> None:
    settings = settings_with(
        FetchSettings(document_deadline_s=10, read_timeout_s=100), attempts=10**6, backoff_base_s=0
    )
    with asking(answer("503 Later"), settings=settings, now_ns=counted(0.5)) as (source, server):
        with pytest.raises(FetchError, match="within 10 s"):
            source.read("file", LIMIT)
        assert 1 < len(server.exchanges) < 20


def test_proxies_of_the_environment_count_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    with BadServer([serve(b"by proxy")]).running() as proxy, asking(serve(b"direct")) as (source, server):
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        assert source.read("file", LIMIT).content == b"direct"
        assert WebSource(server.url, QUICK).read("file", LIMIT).content == b"direct"
        for settings in (FetchSettings(environment_proxy=True), FetchSettings(proxy=proxy.url)):
            other = WebSource(server.url, settings)
            assert other.read("file", LIMIT).content == b"by proxy"
            other.close()
        assert proxy.exchanges[0].path == f"{server.url}file"


@pytest.mark.parametrize("where", ["http://[", "ftp://example.org", "nonsense", "", "http://"])
def test_an_address_that_is_none_is_an_error_like_any_other(where: str) -> None:
    source = WebSource(
        where, settings_with(FetchSettings(proxy="", ca_file="", certificate_file="", key_file=""), attempts=1)
    )
    assert isinstance(source.name, str)
    with pytest.raises(FetchError):
        source.read("file", LIMIT)
