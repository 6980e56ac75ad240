"""Whatever a server says, a source answers with a document within its limit or with FetchError."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.transfer.web import WebSource
from tests.simulators.bad_server import BadServer, say
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples

QUICK = settings_with(FetchSettings(read_timeout_s=0.2, document_deadline_s=2, blob_deadline_s=2), attempts=1)
CONTENT = b"content" * 100
STATUS = st.sampled_from(["200 OK", "206 P", "302 F", "304 N", "404 N", "416 R", "503 L", "999 X", "0 Z", "-1 Q", ""])
VALUES = st.sampled_from(
    ["", "0", "7", "700", "-7", "9" * 30, "chunked", "gzip", "identity", "close", "/x", "http://[", "//", "\x00"]
)
RANGES = st.sampled_from(["bytes 0-699/700", "bytes 7-699/700", "bytes */700", "bytes=0-", "bytes 7-699/*", "é"])
NAMES = ["Content-Length", "Transfer-Encoding", "Content-Encoding", "Content-Range", "Content-Type", "Location"]
LINES = st.lists(
    st.tuples(st.sampled_from([*NAMES, "Retry-After", "ETag", "Connection", "X", ""]), VALUES | RANGES), max_size=5
)
BODIES = st.sampled_from(
    [b"", CONTENT, CONTENT[7:], CONTENT + b"x", b"7\r\ncontent\r\n0\r\n\r\n", b"fffffffff\r\n", b"\r\n"]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Draw an answer that is nearly HTTP."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in draw(LINES))
    whole = f"HTTP/1.1 {draw(STATUS)}\r\n{lines}\r\n".encode() + draw(BODIES)
    cut = draw(st.one_of(st.none(), st.integers(0, len(whole))))
    junk = draw(st.one_of(st.just(b""), st.binary(max_size=20)))
    return whole[:cut] + junk


class Received:
    """A receiver in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @property
    def offset(self) -> int:
        return len(self.content)

    def append(self, chunk: bytes) -> None:
        self.content += chunk


@pytest.fixture(scope="module")
def server() -> Iterator[BadServer]:
    with BadServer([say(b"")]).running() as running:
        yield running


CALM = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@CALM
@given(said=answers(), etag=st.sampled_from(["", '"1"']))
def test_a_document_or_an_error(server: BadServer, said: bytes, etag: str) -> None:
    server.script[:] = [say(said)]
    source = WebSource(server.url, QUICK)
    with suppress(FetchError):
        found = source.read("file", 700, etag=etag)
        assert found.content is None or len(found.content) <= 700
        assert found.content is not None or etag
    source.close()


@CALM
@given(said=answers(), start=st.sampled_from([0, 7, 699]))
def test_all_bytes_or_an_error_and_what_was_there_stays(server: BadServer, said: bytes, start: int) -> None:
    server.script[:] = [say(said)]
    source, received = WebSource(server.url, QUICK), Received(CONTENT[:start])
    with suppress(FetchError):
        source.copy("blob", received, len(CONTENT))
        assert received.offset == len(CONTENT)
    assert received.content[:start] == CONTENT[:start]
    assert received.offset <= len(CONTENT)
    source.close()


def test_the_sample_can_succeed(server: BadServer) -> None:
    server.script[:] = [say(f"HTTP/1.1 200 OK\r\nContent-Length: {len(CONTENT)}\r\n\r\n".encode() + CONTENT)]
    source, received = WebSource(server.url, QUICK), Received(b"")
    source.copy("blob", received, len(CONTENT))
    assert hashlib.sha256(received.content).digest() == hashlib.sha256(CONTENT).digest()
    source.close()
