"""One POST to a server that may be slow, gone or hostile."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.controller.authority.ca import new_authority
from fleet.controller.monitoring.post import ANSWER_LIMIT_BYTES, Post, PostResult

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


@contextmanager
def saying(answer: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield the URL of a server that reads a request's beginning, says these bytes and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            try:
                with server.accept()[0] as plain:
                    plain.settimeout(10)
                    with context.wrap_socket(plain, server_side=True) if context else plain as peer:
                        peer.recv(65_536)
                        peer.sendall(answer)
            except OSError:
                return  # the client has hung up

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"{'https' if context else 'http'}://127.0.0.1:{server.getsockname()[1]}/x?secret=1"
        thread.join(10)


def sent(url: str, timeout_s: float = 5.0) -> PostResult:
    post = Post(timeout_s, ssl.create_default_context())
    try:
        return post.send(url, b"{}", {"content-type": "application/json"}, NOW)
    finally:
        post.close()


@pytest.mark.parametrize(
    ("said", "status", "delivered", "taken"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, True, True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200, True, True),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", 302, False, True),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", 503, False, False),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", 500, False, True),
        (b"", 0, False, True),
        (b"no HTTP at all\r\n\r\n", 0, False, True),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000 + b"\r\n", 0, False, True),
        (b"HTTP/1.1 200 " + b"x" * 100_000, 0, False, True),
    ],
)
def test_whatever_is_answered(said: bytes, status: int, delivered: bool, taken: bool) -> None:
    with saying(said) as url:
        answer = sent(url)
    assert (answer.status, answer.delivered, answer.taken) == (status, delivered, taken)
    assert "secret" not in answer.problem


def test_of_a_long_answer_only_a_beginning_is_read() -> None:
    with saying(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 500_000) as url:
        answer = sent(url)
    assert answer.delivered
    assert 0 < len(answer.content) <= ANSWER_LIMIT_BYTES


def test_who_says_nothing_is_waited_for_no_longer_than_was_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = sent(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.05)
    assert (answer.status, answer.taken) == (0, True)
    assert "timed out" in answer.problem


def test_nobody_there_has_taken_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    answer = sent(url)
    assert (answer.status, answer.taken) == (0, False)


def test_a_server_that_nobody_vouches_for_is_told_nothing(tmp_path: Path) -> None:
    certificate, key = new_authority(datetime.now(UTC)).issue_server(["127.0.0.1"], datetime.now(UTC))
    (tmp_path / "pair.pem").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    with saying(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", context) as url:
        answer = sent(url)
    assert (answer.status, answer.taken) == (0, False)
    assert "certificate verify failed" in answer.problem
