"""The event loop leaves half of a core to runs that wait for it, and pauses for nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.engine import pauses
from gateway.serving.engine.pauses import CHECK_NS, LONGEST_NS, SLICE_NS, Pauses, delay_ns, pause_ns

MS = 1_000_000
TIMES = st.integers(0, 10_000 * MS)


@given(TIMES, TIMES)
def test_a_pause_is_what_is_missing_to_half_of_the_time(used_ns: int, slept_ns: int) -> None:
    paused_ns = pause_ns(used_ns, used_ns + slept_ns)
    assert 0 <= paused_ns <= LONGEST_NS
    assert paused_ns == LONGEST_NS or slept_ns + paused_ns == max(used_ns, slept_ns)


class Machine:
    """The clocks of a device, moved by hand: an event loop that is never idle, and threads that wait for its core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = self.used_ns = 1000 * MS
        self.delays: dict[int, int] = {}
        self.looks = self.slept_ns = 0
        monkeypatch.setattr(pauses.time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(pauses.time, "thread_time_ns", lambda: self.used_ns)
        monkeypatch.setattr(pauses.time, "sleep", self._sleep)
        monkeypatch.setattr(pauses, "delay_ns", self._look)

    def _sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.slept_ns += round(seconds * 1e9)

    def _look(self, thread: int) -> int:
        self.looks += 1
        return self.delays.get(thread, 0)

    def work(self, of: Pauses, ms: int, *, waits: float) -> None:
        """Run passes of 0.1 ms; each running thread waits for that part of the time for a core."""
        for _ in range(ms * 10):
            self.now_ns += MS // 10
            self.used_ns += MS // 10
            for thread in of.waiting:
                self.delays[thread] = self.delays.get(thread, 0) + int(waits * MS / 10)
            of.pause()


def test_a_run_that_waits_for_the_core_gets_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, of = Machine(monkeypatch), Pauses(5)
    of.begin(machine.now_ns, None)
    machine.work(of, 1000, waits=0.9)
    assert 0.95 * 1000 * MS <= machine.slept_ns <= 1000 * MS
    assert machine.looks <= 2 * 1000 * MS / CHECK_NS + 1


@pytest.mark.parametrize(("wait_ms", "waits"), [(5, 0.0), (5, 0.15), (10_000, 0.9)])
def test_without_such_a_run_the_loop_does_not_pause(
    monkeypatch: pytest.MonkeyPatch, wait_ms: int, waits: float
) -> None:
    """It has another core, it waits for little, or its requests have not waited long."""
    machine, of = Machine(monkeypatch), Pauses(wait_ms)
    of.begin(machine.now_ns, None)
    machine.work(of, 1000, waits=waits)
    assert machine.slept_ns == 0


@pytest.mark.parametrize(("models", "pauses_at_all"), [("mm", False), ("mn", True)])
def test_a_model_with_another_run_that_has_a_core_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, models: str, pauses_at_all: bool
) -> None:
    machine, of = Machine(monkeypatch), Pauses(5)
    of.waiting = dict(enumerate([(machine.now_ns, model) for model in models]))
    monkeypatch.setattr(pauses, "delay_ns", lambda thread: machine.delays[0] if thread == 0 else 0)
    machine.work(of, 1000, waits=0.9)
    assert (machine.slept_ns > 0) == pauses_at_all


def test_a_loop_that_is_idle_half_of_the_time_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, of = Machine(monkeypatch), Pauses(0)
    of.begin(machine.now_ns, None)
    for _ in range(500):
        machine.now_ns += SLICE_NS
        machine.work(of, SLICE_NS // MS, waits=1.0)
    assert machine.slept_ns == 0


def test_a_thread_notes_its_own_runs() -> None:
    """The end of one that was given up meanwhile is nothing new."""
    of, seen = Pauses(0), list[dict[int, tuple[int, object]]]()

    def run() -> None:
        of.begin(7, "m")
        seen.append(dict(of.waiting))
        of.forget(threading.get_native_id())
        of.end()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [{thread.native_id: (7, "m")}]
    assert of.waiting == {}


def test_the_kernel_says_how_long_a_thread_has_waited() -> None:
    """Another process takes the only core that this thread may use, until the kernel counts that it waits."""
    thread, cores = threading.get_native_id(), os.sched_getaffinity(0)
    before_ns, core = delay_ns(thread), min(cores)
    endless = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-S", "-c", endless])
    try:
        os.sched_setaffinity(thread, {core})
        while delay_ns(thread) <= before_ns:
            sum(range(10_000))
    finally:
        os.sched_setaffinity(thread, cores)
        busy.kill()
        busy.wait()
    assert delay_ns(0) == 0, "no such thread"
