"""The client of the daemon's control socket, against a server of one scripted answer after the other."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.common.domain.activation import Activation, activation_document
from gateway.common.domain.errors import UnreachableError
from gateway.device.agent.control import DaemonClient, DaemonRefusedError
from gateway.device.agent.settings import ControlClientSettings
from tests.simulators.constants import settings_with

ACTIVATION = Activation("meter", "models/acme/meter/2/release", "a" * 64, ("only",), ("b" * 64,), 1)


def answer(status: str, document: object) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


@contextmanager
def daemon(folder: Path, *answers: bytes, wait: bool = False) -> Iterator[tuple[DaemonClient, list[bytes]]]:
    """Yield a client, and what it asked. One connection for each answer; with `wait` the last one is never ended."""
    path, asked, over = folder / "s", list[bytes](), threading.Event()

    def serve(listener: socket.socket) -> None:
        for content in answers:
            connection, _ = listener.accept()
            with connection:
                asked.append(_request(connection))
                connection.sendall(content)
                if wait and content is answers[-1]:
                    over.wait()

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield (
                DaemonClient(
                    settings_with(
                        ControlClientSettings(str(path), load_timeout_s=0.5), timeout_s=0.5, answer_limit_bytes=1000
                    )
                ),
                asked,
            )
        finally:
            over.set()
            thread.join()


def _request(connection: socket.socket) -> bytes:
    content = b""
    while b"\r\n\r\n" not in content:
        content += connection.recv(65536)
    head, _, body = content.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    wanted = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < wanted:
        body += connection.recv(65536)
    return head.split(b"\r\n")[0] + b" " + body


def test_every_command_is_what_the_daemon_expects(tmp_path: Path) -> None:
    statistics = answer("200 OK", {"models": [{"version": "1", "requests": 5}]})
    answers = [answer("200 OK", {"candidates": [{"variant": "only"}]}), statistics, *[answer("200 OK", {})] * 4]
    with daemon(tmp_path, *answers) as (control, asked):
        assert control.plan(ACTIVATION) == [{"variant": "only"}]
        assert control.statistics("a b") == {"1": {"version": "1", "requests": 5}}
        control.load(ACTIVATION)
        control.route("meter", {"1": 95, "2": 5}, shadow="2", lease_s=30.0)
        control.unload("meter", "2", 0.1)
        control.commit()
    sent = [line.split(b" ", 3) for line in asked]
    assert [line[0] + b" " + line[1] for line in sent] == [
        b"POST /v1/plan",
        b"GET /v1/statistics?model=a%20b",
        b"POST /v1/models/meter/load",
        b"PUT /v1/models/meter/route",
        b"POST /v1/models/meter/unload",
        b"POST /v1/commit",
    ]
    assert json.loads(sent[2][3]) == activation_document(ACTIVATION)
    assert json.loads(sent[3][3]) == {"weights": {"1": 95, "2": 5}, "shadow": "2", "lease_s": 30.0}


def test_a_refusal_says_what_the_daemon_said(tmp_path: Path) -> None:
    problem = {"type": "about:blank", "title": "x", "status": 409, "detail": "its golden set fails", "fault": "INVALID"}
    refused = pytest.raises(DaemonRefusedError, match="its golden set fails")
    with daemon(tmp_path, answer("409 Conflict", problem)) as (control, _), refused as caught:
        control.load(ACTIVATION)
    assert caught.value.fault == "INVALID"


@pytest.mark.parametrize("status", ["503 Service Unavailable", "408 Request Timeout"])
def test_what_another_time_may_answer_otherwise_is_no_refusal(tmp_path: Path, status: str) -> None:
    with (
        daemon(tmp_path, answer(status, {"detail": "not now"})) as (control, _),
        pytest.raises(UnreachableError, match="not now"),
    ):
        control.commit()


RUBBISH = {
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
    "no JSON": answer("200 OK", b"<html>"),
    "no object": answer("200 OK", [1]),
    "too much": answer("200 OK", {"long": "x" * 2000}),
    "less than announced": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_no_answer(tmp_path: Path, kind: str) -> None:
    with daemon(tmp_path, RUBBISH[kind]) as (control, _), pytest.raises(UnreachableError, match="does not answer on"):
        control.status()


def test_a_daemon_that_is_silent(tmp_path: Path) -> None:
    with (
        daemon(tmp_path, b"HTTP/1.1 200", wait=True) as (control, _),
        pytest.raises(UnreachableError, match="timed out"),
    ):
        control.status()


def test_no_daemon_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"is edge-gateway\.service running"):
        DaemonClient(ControlClientSettings(str(tmp_path / "s"))).vitals()
