"""Whatever a daemon that was taken over answers: what the agent needs of it, or an error that the agent expects."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.probation import ProbationSettings
from gateway.device.agent.answers import FORMS, TEXT_LIMIT_CHARS, plain, read_answer
from gateway.device.agent.control import DaemonClient, DaemonRefusedError
from gateway.device.agent.settings import ControlClientSettings
from gateway.device.agent.update.watch import ProbationWatch
from tests.simulators.constants import settings_with
from tests.simulators.http_script import scripted

NEW = Activation("meter", "models/acme/meter/2/release", "a" * 64, ("only",), ("b" * 64,), 1)
KEYS = (*FORMS, "other")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_what_is_read_has_the_types_that_it_is_used_with(document: dict[str, Any]) -> None:
    try:
        answer = read_answer(json.dumps(document).encode())
    except ValueError:
        return
    for candidate in answer.get("candidates", ()):
        assert isinstance(candidate.get("variant", ""), str)
    assert max(answer.get("temperatures_c", {}).values(), default=0.0) < float("inf")
    assert answer.get("requests", 0) + answer.get("p50_us", 0.0) < float("inf")


@pytest.mark.parametrize("content", [b"[]", b"[" * 100_000, b'{"p50_us": 1e999}', b'{"x": NaN}', b"\xff", b"1"])
def test_what_is_no_answer(content: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_answer(content)


def test_an_inventory_of_a_board_that_does_not_tell_its_model() -> None:
    assert read_answer(b'{"arch": "x86_64", "board": {"model": null}}')["arch"] == "x86_64"


def test_what_an_answer_lacks_is_as_no_answer() -> None:
    answer = read_answer(b'{"models": [{}]}')
    for asked in (answer, answer["models"][0]):
        with pytest.raises(UnreachableError, match="has no version"):
            asked["version"]


def test_words_of_the_daemon_steer_no_terminal_and_fill_no_disk() -> None:
    assert plain("a\x1b[2Jb\nc") == "a [2Jb c"
    assert len(plain("x" * 10_000_000)) == TEXT_LIMIT_CHARS + 1
    assert len(read_answer(json.dumps({"reason": "x" * 100_000}).encode())["reason"]) == TEXT_LIMIT_CHARS + 1


DOCUMENTS = (b"{}", b"[]", b'{"models": [1]}', b'{"candidates": {"a": 1}}', b'{"candidates": [{}], "models": [{}]}')


@pytest.mark.parametrize("content", DOCUMENTS)
def test_neither_a_plan_nor_a_probation_ends_in_a_trace(tmp_path: Path, content: bytes) -> None:
    with scripted(tmp_path / "s", 200, content) as path:
        control = DaemonClient(ControlClientSettings(str(path)))
        with pytest.raises(UnreachableError):
            [candidate["fits"] for candidate in control.plan(NEW)]
        with pytest.raises(UnreachableError):
            ProbationWatch(control, NEW, ProbationSettings(), time.monotonic)


def test_a_refusal_of_megabytes_is_cut(tmp_path: Path) -> None:
    content = json.dumps({"fault": ["x"], "detail": "y" * 1_500_000}).encode()
    with scripted(tmp_path / "s", 409, content) as path, pytest.raises(DaemonRefusedError) as caught:
        DaemonClient(ControlClientSettings(str(path))).commit()
    assert (caught.value.fault, len(caught.value.detail)) == ("['x']", TEXT_LIMIT_CHARS + 1)


def test_a_byte_now_and_then_buys_no_time(tmp_path: Path) -> None:
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(BrokenPipeError):  # it hangs up first
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(b" ")

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            with pytest.raises(UnreachableError, match="timed out"):
                DaemonClient(settings_with(ControlClientSettings(str(tmp_path / "s")), timeout_s=0.3)).status()
        finally:
            over.set()
            thread.join()
