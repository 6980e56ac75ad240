"""The batch plan as a state machine: first in first out, nobody lost, nobody run twice, nobody run in vain."""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.engine.batching import Ticket, gather, plan, row_signature, scatter

BATCH_ROWS = 8


def ticket(loop: asyncio.AbstractEventLoop, rows: int, width: int = 1, deadline_ns: int | None = None) -> Ticket:
    inputs = {"x": np.zeros((rows, width), np.float32)}
    return Ticket(inputs, rows, loop.create_future(), 0, deadline_ns, row_signature(inputs))


class Planning(RuleBasedStateMachine):
    """Tickets come, callers leave, time passes, plans are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now_ns = 0
        self.waiting: deque[Ticket] = deque()
        self.arrived: list[Ticket] = []
        self.left: list[Ticket] = []
        self.ran: list[Ticket] = []

    def teardown(self) -> None:
        self.loop.close()

    @rule(rows=st.integers(1, 12), width=st.integers(1, 2), wait_ns=st.none() | st.integers(0, 5))
    def arrive(self, rows: int, width: int, wait_ns: int | None) -> None:
        deadline_ns = None if wait_ns is None else self.now_ns + wait_ns
        self.waiting.append(ticket(self.loop, rows, width, deadline_ns))
        self.arrived.append(self.waiting[-1])

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(list(self.waiting))).future.cancel()

    @rule(ns=st.integers(1, 4))
    def pass_time(self, ns: int) -> None:
        self.now_ns += ns

    @rule()
    def take(self) -> None:
        before = len(self.waiting)
        decided = plan(self.waiting, self.now_ns, BATCH_ROWS)
        taken = decided.batch + decided.expired + decided.abandoned
        assert before - len(self.waiting) == len(taken)
        assert all(not t.future.done() for t in decided.batch + decided.expired)
        assert all(t.future.done() for t in decided.abandoned)
        assert all(t.deadline_ns is None or t.deadline_ns > self.now_ns for t in decided.batch)
        assert all(t.deadline_ns is not None and t.deadline_ns <= self.now_ns for t in decided.expired)
        assert sum(t.rows for t in decided.batch) <= BATCH_ROWS or len(decided.batch) == 1
        assert len({t.signature for t in decided.batch}) <= 1
        assert decided.batch or not self.waiting
        self.ran += decided.batch
        self.left += taken

    @invariant()
    def nobody_is_lost_or_taken_twice(self) -> None:
        assert sorted(map(id, self.left + list(self.waiting))) == sorted(map(id, self.arrived))

    @invariant()
    def order_is_kept(self) -> None:
        order = {id(t): place for place, t in enumerate(self.arrived)}
        assert [order[id(t)] for t in self.ran] == sorted(order[id(t)] for t in self.ran)
        assert [order[id(t)] for t in self.waiting] == sorted(order[id(t)] for t in self.waiting)


TestPlanning = Planning.TestCase
TestPlanning.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_batch_is_as_large_as_the_rows_allow() -> None:
    loop = asyncio.new_event_loop()
    waiting = deque(ticket(loop, rows) for rows in (3, 3, 2, 1))
    assert [t.rows for t in plan(waiting, 0, BATCH_ROWS).batch] == [3, 3, 2]
    assert [t.rows for t in waiting] == [1]
    loop.close()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_what_is_gathered_is_scattered_to_its_owner(rows: list[int]) -> None:
    loop = asyncio.new_event_loop()
    batch = [ticket(loop, count, width=2) for count in rows]
    for index, one in enumerate(batch):
        one.inputs["x"][:] = index  # type: ignore[index]
    stacked = gather(batch)
    assert stacked["x"].shape == (sum(rows), 2)
    lent = {"y": stacked["x"] * 10}
    parts = scatter(batch, lent)
    lent["y"][:] = -1
    for index, (count, part) in enumerate(zip(rows, parts, strict=True)):
        assert np.array_equal(part["y"], np.full((count, 2), index * 10))
    loop.close()


def test_a_single_request_is_not_copied_on_the_way_in() -> None:
    loop = asyncio.new_event_loop()
    one = ticket(loop, 3)
    assert gather([one])["x"] is one.inputs["x"]
    loop.close()
