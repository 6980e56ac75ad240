"""Turns of adapters: never two at a time, in the order of arrival, none for a caller that has left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from gateway.serving.runtimes.adapter_turns import TURN_S, AdapterTurns


class Run(threading.Thread):
    """Run that waits for its turn, notes that it began, and goes on until it is released."""

    def __init__(self, turns: AdapterTurns, adapter: str, begun: list[str]) -> None:
        super().__init__(daemon=True)
        self.turns, self.adapter, self.begun = turns, adapter, begun
        self.waits, self.released, self.is_wanted = threading.Event(), threading.Event(), True
        self.start()

    def wanted(self) -> bool:
        self.waits.set()
        return self.is_wanted

    def run(self) -> None:
        with self.turns.turn(self.adapter, self.wanted) as is_admitted:
            if is_admitted:
                self.begun.append(self.adapter)
                self.waits.set()
                self.released.wait()

    def end(self) -> None:
        self.released.set()
        self.join()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def start(clock: list[float]) -> Callable[[str], Run]:
    turns, begun = AdapterTurns(lambda: clock[0]), list[str]()

    def started(adapter: str) -> Run:
        run = Run(turns, adapter, begun)
        run.waits.wait()
        return run

    return started


def until(run: Run, count: int) -> None:
    while len(run.begun) < count:
        time.sleep(0.01)


def test_another_adapter_waits_and_all_that_wait_for_it_begin_together(start: Callable[[str], Run]) -> None:
    first, same = start("a"), start("a")
    others = [start("b"), start("c"), start("b")]
    assert first.begun == ["a", "a"]
    first.end()
    same.end()
    until(first, 4)
    assert first.begun[2:] == ["b", "b"]
    others[0].end()
    others[2].end()
    until(first, 5)
    assert first.begun[4] == "c"
    others[1].end()


def test_the_batch_takes_more_until_another_has_waited_long_enough(
    start: Callable[[str], Run], clock: list[float]
) -> None:
    first, other = start("a"), start("")
    clock[0] = TURN_S * 0.9
    second = start("a")
    assert first.begun == ["a", "a"]
    clock[0] = TURN_S
    third = start("a")
    assert first.begun == ["a", "a"]
    first.end()
    second.end()
    until(first, 3)
    assert first.begun[2] == ""
    other.end()
    until(first, 4)
    third.end()


def test_a_caller_that_leaves_has_no_turn(start: Callable[[str], Run]) -> None:
    first, gone, last = start("a"), start("b"), start("c")
    gone.is_wanted = False
    gone.join()
    first.end()
    until(first, 2)
    assert first.begun == ["a", "c"]
    last.end()


def test_who_waited_for_a_caller_that_leaves_goes_on(start: Callable[[str], Run], clock: list[float]) -> None:
    first, gone = start("a"), start("b")
    clock[0] = TURN_S
    second = start("a")
    assert first.begun == ["a"]
    gone.is_wanted = False
    gone.join()
    until(first, 2)
    first.end()
    second.end()


def test_two_adapters_never_have_a_turn_at_a_time() -> None:
    turns, lock, present, errors = AdapterTurns(), threading.Lock(), list[str](), list[list[str]]()

    def run(adapter: str) -> bool:
        with turns.turn(adapter, lambda: True) as is_admitted:
            with lock:
                present.append(adapter)
                if len(set(present)) > 1:
                    errors.append(list(present))
            time.sleep(0)
            with lock:
                present.remove(adapter)
        return is_admitted

    random = Random(1)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, [random.choice("abc") for _ in range(2000)]))
    assert not errors
