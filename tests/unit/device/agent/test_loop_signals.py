"""Signals that come at any moment while `edge-agent run` waits: between two questions, or within its work."""

from __future__ import annotations

import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gateway.device.agent import loop as loops
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.cycle import _Signals
from gateway.device.agent.loop import Loop
from gateway.device.agent.pauses import CycleResult
from gateway.device.agent.settings import WakeClientSettings

HANG_S = 15.0
LONG_S = 600.0
SHORT_S = 0.3
LISTENED = ("/gateway/device/agent/", "/threading.py")
"""A signal comes before each instruction of these."""
BROKERS = [None, "mqtt://127.0.0.1:1"]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1)
    kept = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def _told_of_a_hang() -> Iterator[None]:
    """Raise TimeoutError on a hang, like pytest-timeout does by SIGALRM, which the loop takes for itself.

    A lock is left by an exception, too.
    """
    main = threading.main_thread().ident
    assert main

    def hangs(*_: object) -> None:
        raise TimeoutError("it hangs")

    signal.signal(signal.SIGUSR1, hangs)
    timer = threading.Timer(HANG_S, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    yield
    timer.cancel()
    timer.join()


class Blow:
    """A signal, once, before the instruction at `place` after the first question, or as the loop falls asleep."""

    def __init__(self, number: int, place: int) -> None:
        self._number, self._left = number, place
        self.begun = self.struck = self.asleep = False
        """True if it may come, if it came, and if it came no sooner than that."""

    @contextmanager
    def falling(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        kept = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 asks for it in settrace
        with monkeypatch.context() as patch:
            patch.setattr(select, "select", self._select)
            sys.settrace(self._step)
            try:
                yield
            finally:
                sys.settrace(kept)

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        if not any(part in frame.f_code.co_filename for part in LISTENED):
            return None
        frame.f_trace_opcodes = True
        if self.begun and event == "opcode":
            self._left -= 1
            if not self._left:
                self._strike()
        return self._step

    def _select(self, *arguments: Any, select: Callable[..., Any] = select.select) -> Any:
        if not self.struck and arguments[-1] and not select(*arguments[:-1], 0.0)[0]:
            self.asleep = True
            self._strike()
        return select(*arguments)

    def _strike(self) -> None:
        self.struck = True
        signal.raise_signal(self._number)


def looping(folder: Path, url: str | None, turn: Callable[[int], CycleResult]) -> Loop:
    """Return a loop whose cycles, counted from 1, are `turn`."""
    (folder / "device.json").write_text('{"device": "door-1"}')
    loop, numbers = Loop(folder, AgentConfig(wake=WakeClientSettings(url=url))), count(1)
    loop._cycle = lambda: turn(next(numbers))  # type: ignore[method-assign]
    return loop


def ended(loop: Loop) -> int | str | None:
    """Run the loop; return its exit code."""
    try:
        return loop.run()
    except SystemExit as stopped:
        return stopped.code


@pytest.mark.usefixtures("_told_of_a_hang")
@pytest.mark.parametrize("url", BROKERS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_no_moment_is_wrong_for_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, url: str | None
) -> None:
    """A stop ends it, with no broker asked any more; SIGHUP brings a question."""

    def connect(*_: object) -> None:
        tried.append(loop._stopping)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(loops, "ending_at_once", nullcontext)
    for place in count(1):
        blow, asked, tried = Blow(number, place), list[int](), list[bool]()

        def turn(which: int, blow: Blow = blow, asked: list[int] = asked) -> CycleResult:
            asked.append(which)
            if which == 2:
                signal.raise_signal(signal.SIGTERM)
            blow.begun = True
            return CycleResult(LONG_S, failed=True)

        loop = looping(tmp_path, url, turn)
        with blow.falling(monkeypatch):
            assert ended(loop) == 0, place
        assert True not in tried, place
        assert (2 in asked) == (number == signal.SIGHUP), place
        if blow.asleep:
            break
    assert place > 20


@pytest.mark.parametrize("url", BROKERS)
def test_who_is_asked_at_once_by_a_signal_is_left_alone_afterwards(tmp_path: Path, url: str | None) -> None:
    at_s: list[float] = []

    def turn(which: int) -> CycleResult:
        at_s.append(time.monotonic())
        if which != 2:
            signal.raise_signal(signal.SIGHUP if which == 1 else signal.SIGTERM)
        return CycleResult(SHORT_S if which == 2 else LONG_S, failed=True)

    assert ended(looping(tmp_path, url, turn)) == 0
    assert at_s[2] - at_s[1] >= SHORT_S


@pytest.mark.usefixtures("_told_of_a_hang")
def test_no_moment_is_wrong_for_a_signal_to_the_child_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in count(1):
        blow, signals = Blow(signal.SIGHUP, place), _Signals()
        blow.begun = True
        with blow.falling(monkeypatch):
            assert signals.event.wait(LONG_S)
            signals.again()
        if blow.asleep:
            break
    assert place > 5
