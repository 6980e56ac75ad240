"""The queue as a state machine: priorities, turns, bounds, policies; no request is lost, taken twice or starved."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.serving.engine.queue import CALLERS_LIMIT, CREDIT, Queue, ServiceRecord
from gateway.serving.engine.settings import POLICIES, QueueSettings
from gateway.serving.engine.ticket import Ticket
from tests.simulators.examples import examples
from tests.simulators.sink import ticket

BATCH_ROWS = 8
REQUESTS = 6
CALLERS = st.sampled_from(["ann", "bob", "eve"])


class Queueing(RuleBasedStateMachine):
    """State machine in which tickets come, callers leave, time passes, runs are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.waiting: list[Ticket] = []
        self.displaced: list[Ticket] = []

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: str) -> None:
        self.queue = Queue(QueueSettings("m", policy, REQUESTS, priority=2))

    @rule(
        rows=st.integers(1, 12),
        width=st.integers(1, 2),
        wait_ns=st.none() | st.integers(0, 5),
        stream=st.tuples(CALLERS, st.sampled_from(["", "front"])),
        priority=st.integers(0, 3),
    )
    def arrive(self, rows: int, width: int, wait_ns: int | None, stream: tuple[str, str], priority: int) -> None:
        deadline_ns = None if wait_ns is None else self.now_ns + wait_ns
        new = ticket(rows, width, deadline_ns=deadline_ns, caller=stream[0], stream=stream[1], priority=priority)
        full = len(self.waiting) == REQUESTS
        displaced = self.queue.offer(new)
        if displaced is not new:
            self.waiting.append(new)
        if displaced is not None and displaced is not new:
            self.waiting.remove(displaced)
            older = (displaced.request.caller, displaced.request.stream) == stream
            assert older if self.queue.policy == "latest" else full
        if displaced is new:
            assert full, "a place was free"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(self.waiting))
        assert self.queue.remove(leaver)
        assert not self.queue.remove(leaver)
        self.waiting.remove(leaver)

    @rule(ns=st.integers(1, 4))
    def pass_time(self, ns: int) -> None:
        self.now_ns += ns

    @rule()
    def take(self) -> None:
        head = self.queue.head()
        plan = self.queue.take(self.now_ns, BATCH_ROWS)
        taken = plan.batch + plan.expired
        assert (head in taken) if head is not None else not taken
        for one in taken:
            self.waiting.remove(one)
        assert all(t.request.deadline_ns is None or t.request.deadline_ns > self.now_ns for t in plan.batch)
        assert all(t.request.deadline_ns is not None and t.request.deadline_ns <= self.now_ns for t in plan.expired)
        assert plan.rows == sum(t.form.rows for t in plan.batch)
        assert plan.rows <= BATCH_ROWS or len(plan.batch) == 1
        assert len({t.form.signature for t in plan.batch}) <= 1
        assert plan.batch or not self.waiting
        levels = [t.request.priority or 2 for t in plan.batch]
        assert levels == sorted(levels)
        assert not plan.batch or levels[0] <= min((t.request.priority or 2 for t in self.waiting), default=9)

    @invariant()
    def nobody_is_lost_and_the_bound_holds(self) -> None:
        assert self.queue.length == len(self.waiting) <= REQUESTS
        assert {*map(id, self.queue)} == {*map(id, self.waiting)}

    @invariant()
    def the_latest_policy_keeps_one_of_each_stream(self) -> None:
        if self.queue.policy == "latest":
            streams = [(t.request.caller, t.request.stream) for t in self.waiting]
            assert len(streams) == len(set(streams))


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


def queue_of(*tickets: Ticket, **changes: object) -> Queue:
    queue = Queue(QueueSettings("m", **{"requests": 100, **changes}))  # type: ignore[arg-type]
    assert [queue.offer(one) for one in tickets] == [None] * len(tickets)
    return queue


def test_the_run_is_as_large_as_the_rows_allow() -> None:
    queue = queue_of(*(ticket(rows) for rows in (3, 3, 2, 1)))
    assert [t.form.rows for t in queue.take(0, BATCH_ROWS).batch] == [3, 3, 2]
    assert [t.form.rows for t in queue] == [1]


@given(st.lists(st.tuples(CALLERS, st.integers(1, 3)), min_size=1, max_size=40), st.integers(1, 8))
def test_each_callers_requests_are_taken_in_their_order(arriving: list[tuple[str, int]], batch_rows: int) -> None:
    tickets = [ticket(rows, caller=caller) for caller, rows in arriving]
    queue = queue_of(*tickets)
    taken: list[Ticket] = []
    while queue.length:
        taken += queue.take(0, batch_rows).batch
    for caller in ("ann", "bob", "eve"):
        assert [t for t in taken if t.request.caller == caller] == [t for t in tickets if t.request.caller == caller]


@given(st.integers(1, 60), st.integers(1, 8))
def test_a_flood_holds_up_another_caller_by_one_request_only(flood: int, others: int) -> None:
    queue = queue_of(*(ticket(caller="eve") for _ in range(flood)))
    late = [ticket(caller=f"caller {index}") for index in range(others)]
    for one in late:
        queue.offer(one)
    order = list(itertools.chain.from_iterable(queue.take(0, 1).batch for _ in range(flood + others)))
    assert max(order.index(one) for one in late) <= others


def test_callers_take_turns_across_runs() -> None:
    queue = queue_of(*(ticket(caller=caller) for caller in "aaabbc"))
    taken = [[t.request.caller for t in queue.take(0, 2).batch] for _ in range(3)]
    assert taken == [["a", "b"], ["c", "a"], ["b", "a"]]


def test_a_more_urgent_request_goes_first_and_none_of_ours_is_the_models() -> None:
    queue = queue_of(ticket(priority=3), ticket(), ticket(priority=1), priority=2)
    assert [t.request.priority for t in queue.take(0, 8).batch] == [1, 0, 3]


def test_a_full_queue_refuses_the_newcomer() -> None:
    queue, new = queue_of(ticket(), ticket(), requests=2), ticket()
    assert queue.offer(new) is new
    assert queue.length == 2


@pytest.mark.parametrize("policy", ["reject", "latest"])
def test_a_full_queue_gives_a_caller_with_fewer_the_newest_place_of_the_one_with_most(policy: str) -> None:
    flood = [ticket(caller="eve", stream=str(index)) for index in range(4)]
    queue = queue_of(*flood, policy=policy, requests=4)
    assert queue.offer(ticket(caller="ann", stream="a")) is flood[3]
    assert queue.offer(ticket(caller="ann", stream="b")) is flood[2]
    refused = [ticket(caller=caller, stream="c") for caller in ("ann", "eve")]
    assert [queue.offer(new) for new in refused] == refused
    assert queue.offer(ticket(caller="bob", stream="d")).request.caller in {"ann", "eve"}  # type: ignore[union-attr]


def test_a_caller_with_most_keeps_places_that_are_more_urgent() -> None:
    queue, new = (
        queue_of(*(ticket(caller="eve", priority=1) for _ in range(3)), requests=3),
        ticket(caller="ann", priority=2),
    )
    assert queue.offer(new) is new


def served_in_periods(queue: Queue, callers: Sequence[str], periods: int, per_run: int = 4) -> Counter[str]:
    """Serve callers that arrive in the same order in every period, one request after every `per_run` arrivals."""
    served: Counter[str] = Counter()
    for arrival, caller in enumerate([*callers] * periods):
        queue.offer(ticket(caller=caller))
        if arrival % per_run == 0:
            served.update(one.request.caller for one in queue.take(0, 1).batch)
    return served


@pytest.mark.parametrize("places", [1, 4, 40])
def test_periodic_callers_are_served_equally_by_a_full_queue(places: int) -> None:
    callers = [f"camera {number}" for number in range(16)]
    served = served_in_periods(queue_of(requests=places), callers, periods=64)
    assert max(served[caller] for caller in callers) - min(served[caller] for caller in callers) <= 2


def test_a_caller_that_comes_late_does_not_make_up_for_what_the_others_got() -> None:
    queue = queue_of(requests=4)
    served_in_periods(queue, ["ann", "bob"], periods=500)
    served = served_in_periods(queue, ["ann", "bob", "eve", "eve", "eve", "eve"], periods=100)
    assert max(served.values()) - min(served.values()) <= CREDIT + 1


def test_a_record_of_too_many_callers_begins_again() -> None:
    service = ServiceRecord()
    for number in range(CALLERS_LIMIT + 1):
        service.add(str(number))
    assert service.of("0") == service.of(str(CALLERS_LIMIT)) == 1


def test_places_held_for_requests_in_preparation_count() -> None:
    queue, new = queue_of(ticket(), requests=2), ticket()
    queue.reserved = 1
    assert queue.offer(new) is new


def test_dropping_the_oldest_drops_the_floods_own() -> None:
    polite, flood = ticket(caller="ann"), [ticket(caller="eve") for _ in range(3)]
    queue = queue_of(polite, *flood, policy="oldest", requests=4)
    assert queue.offer(ticket(caller="bob")) is flood[0]
    assert queue.offer(ticket(caller="eve")) is flood[1]


def test_dropping_the_oldest_never_costs_a_more_urgent_one_the_place() -> None:
    queue, new = queue_of(ticket(priority=1), policy="oldest", requests=1), ticket(priority=2)
    assert queue.offer(new) is new
    assert queue.offer(ticket(priority=1)) is not None


def test_the_latest_of_a_stream_takes_the_olders_place_in_the_line() -> None:
    tickets = [ticket(caller="cams", stream=name) for name in ("front", "back", "side")]
    queue = queue_of(*tickets, policy="latest", requests=3)
    newer = ticket(caller="cams", stream="front")
    assert queue.offer(newer) is tickets[0]
    assert queue.take(0, 8).batch == [newer, *tickets[1:]]


def test_streams_of_two_callers_are_two_streams() -> None:
    queue = queue_of(ticket(caller="a", stream="s"), ticket(caller="b", stream="s"), policy="latest")
    assert queue.length == 2


def test_a_newer_frame_of_another_priority_takes_the_place_too() -> None:
    older, newer = ticket(stream="s", priority=2), ticket(stream="s", priority=1)
    queue = queue_of(older, policy="latest")
    assert queue.offer(newer) is older
    assert queue.take(0, 8).batch == [newer]


def test_new_streams_of_a_full_queue_are_refused() -> None:
    queue, new = queue_of(ticket(stream="a"), policy="latest", requests=1), ticket(stream="b")
    assert queue.offer(new) is new


@pytest.mark.parametrize("policy", POLICIES)
def test_clearing_gives_out_everybody(policy: str) -> None:
    tickets = [ticket(caller=str(index), priority=index) for index in range(4)]
    queue = queue_of(*tickets, policy=policy)
    assert sorted(map(id, queue.clear())) == sorted(map(id, tickets))
    assert (queue.length, queue.head()) == (0, None)
