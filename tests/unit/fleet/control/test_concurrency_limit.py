"""Limit of concurrent requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from fleet.controller.control.concurrency_limit import ConcurrencyLimit


def test_so_many_are_inside_and_nobody_twice() -> None:
    door = ConcurrencyLimit(2, 0.0)
    with ExitStack() as inside:
        assert inside.enter_context(door.entered("a"))
        assert inside.enter_context(door.entered("b"))
        with door.entered("c") as free:
            assert not free
        with door.entered("a") as free:
            assert not free
    with door.entered("a") as free, door.entered("c") as other:
        assert free
        assert other


def test_who_fails_inside_gives_the_place_back() -> None:
    door = ConcurrencyLimit(1, 0.0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            _fail(door)


def _fail(door: ConcurrencyLimit) -> None:
    with door.entered("a") as free:
        assert free
        raise ZeroDivisionError


def test_as_many_as_there_are_places_wait_and_the_others_do_not() -> None:
    door, over, tried = ConcurrencyLimit(2, 30.0), threading.Event(), threading.Barrier(3)

    def stay(who: str) -> bool:
        with door.entered(who) as free:
            if free and not over.is_set():
                tried.wait(30)
                over.wait(30)
            return free

    with ThreadPoolExecutor(4) as threads:
        first = [threads.submit(stay, who) for who in "ab"]
        tried.wait(30)
        waiting = [threads.submit(stay, who) for who in "cd"]
        while len(door._inside) < 4:
            over.wait(0.001)
        with door.entered("e") as free:
            assert not free, "at once, not after half a minute"
        over.set()
        assert all(one.result(30) for one in (*first, *waiting))
