"""Threads shared among models: the bound holds, none starves, the least consumer goes next, a hang stops no other."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.serving.engine.limiter import Limiter, Share, ThreadShares
from tests.simulators.examples import examples

THREADS = 4


class Sharing(RuleBasedStateMachine):
    """State machine of models that ask, run and end, like their workers: each asks again only after its run."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = ThreadShares(THREADS)
        firsts = [Share(threads) for threads in (1, 2, 4, 9)]
        self.models = [*firsts, firsts[0].peer(), firsts[1].peer(), firsts[1].peer()]
        self.waiting: list[Share] = []
        self.running: list[Share] = []
        self.now_ns = 0

    def granted(self, granted: list[Share]) -> None:
        for share in granted:
            self.waiting.remove(share)
            self.running.append(share)

    @precondition(lambda self: len(self.waiting) + len(self.running) < len(self.models))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        share = data.draw(st.sampled_from([s for s in self.models if s not in self.waiting + self.running]))
        self.waiting.append(share)
        self.granted(self.shares.ask(share, self.now_ns))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), ran_ns=st.integers(0, 1000), again=st.booleans())
    def end(self, data: st.DataObject, ran_ns: int, again: bool) -> None:
        share = data.draw(st.sampled_from(self.running))
        self.running.remove(share)
        if again:
            self.waiting.append(share)
        self.now_ns += ran_ns
        self.granted(self.shares.end(share, ran_ns, again=again, now_ns=self.now_ns))

    @invariant()
    def first_runs_use_no_more_threads_than_there_are(self) -> None:
        by_model = {id(share.use): min(share.threads, THREADS) for share in self.running}
        assert sum(by_model.values()) + self.shares.free == THREADS
        assert self.shares.free >= 0
        used = sum(min(share.threads, THREADS) for share in self.running)
        assert used - sum(by_model.values()) == self.shares.further
        assert all(share.use.running == sum(r.use is share.use for r in self.running) for share in self.models)

    @invariant()
    def the_least_served_waits_only_for_threads(self) -> None:
        """Check that a model without a run waits for other models' first runs only, and all further runs for it."""
        assert {*map(id, self.waiting)} == {*map(id, self.shares.waiting)}
        if firsts := [share for share in self.shares.waiting if not share.use.running]:
            first = min(firsts, key=lambda share: share.consumed_ns)
            assert min(first.threads, THREADS) > self.shares.free
        elif self.waiting:
            further = min(self.shares.waiting, key=lambda share: share.consumed_ns)
            left = self.shares.free - self.shares.further - self.shares._kept_threads(self.now_ns)
            assert min(further.threads, THREADS) > left
            kept_until_ns = min((use.kept_until_ns for use in self.shares._kept), default=0)
            kept_only = min(further.threads, THREADS) <= self.shares.free - self.shares.further
            assert self.shares.retry_ns == (kept_until_ns if kept_only else 0)


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


def test_a_further_run_takes_only_what_is_left_and_delays_no_other_model() -> None:
    shares, many = ThreadShares(2), Share(1)
    again, other, third = many.peer(), Share(1), Share(1)
    assert shares.ask(many) == [many]
    assert shares.ask(again) == [again]
    assert shares.ask(other) == [other], "as if the further run did not exist"
    assert shares.ask(third) == []
    assert shares.end(again, 5, again=True) == [], "a model without a run goes first"
    assert shares.end(many, 5, again=False) == [third]
    assert shares.end(other, 5, again=False) == [again]


def test_a_further_run_becomes_the_models_first_one() -> None:
    shares, many = ThreadShares(1), Share(1)
    again, other = many.peer(), Share(1)
    shares.ask(many)
    assert shares.ask(again) == []
    assert shares.insist(again)
    assert shares.ask(other) == []
    assert shares.end(many, 1, again=False) == []
    assert (shares.free, shares.further) == (0, 0)
    assert shares.end(again, 1, again=False) == [other]


def test_a_busy_model_keeps_its_threads_for_as_long_as_its_run_took() -> None:
    shares, many, small = ThreadShares(2), Share(1), Share(1)
    again = many.peer()
    shares.ask(many, 0)
    shares.ask(small, 0)
    assert shares.ask(again, 1) == []
    assert shares.end(small, 20, again=False, now_ns=20) == []
    assert shares.end(many, 39, again=True, now_ns=39) == [again], "one of its runs, but no further one"
    assert shares.ask(small, 39) == [small]
    assert shares.end(small, 1, again=False, now_ns=40) == []
    assert shares.end(again, 2, again=True, now_ns=41) == [many, again]


@pytest.mark.parametrize("waits_before", [False, True])
def test_a_further_run_begins_when_the_keeping_of_threads_ends(waits_before: bool) -> None:
    limiter, many, other = Limiter(2, 20.0), Share(1), Share(1)
    further, entered = many.peer(), threading.Event()
    thread = threading.Thread(target=lambda: (limiter.enter(further), entered.set()))
    limiter.enter(other)
    limiter.enter(many)
    if waits_before:
        thread.start()
        while further not in limiter._shares.waiting:
            pass
    limiter.leave(other, 50_000_000, again=False)
    if not waits_before:
        thread.start()
    assert not entered.wait(0.02)
    assert entered.wait(5.0)
    thread.join()


def race(first: Share, second: Share, first_ns: int, second_ns: int, runs: int = 200) -> tuple[int, int]:
    """Time that two models that always have work consume of one thread."""
    shares, spent = ThreadShares(1), {id(first): 0, id(second): 0}
    running = [*shares.ask(first), *shares.ask(second)]
    for _ in range(runs):
        (share,) = running
        ran_ns = first_ns if share is first else second_ns
        spent[id(share)] += ran_ns
        running = shares.end(share, ran_ns, again=True)
    return spent[id(first)], spent[id(second)]


@pytest.mark.parametrize(("one_ns", "other_ns"), [(1, 1), (1, 50), (70, 3)])
def test_models_with_runs_of_any_length_consume_alike(one_ns: int, other_ns: int) -> None:
    one, other = race(Share(1), Share(1), one_ns, other_ns)
    assert abs(one - other) <= max(one_ns, other_ns)


def test_who_was_idle_does_not_come_back_with_a_credit() -> None:
    shares, busy, idle = ThreadShares(1), Share(1), Share(1)
    shares.ask(busy)
    shares.end(busy, 1_000_000, again=True)
    shares.ask(idle)
    assert idle.consumed_ns == busy.consumed_ns


def test_a_run_that_needs_many_threads_is_not_overtaken_for_ever() -> None:
    shares, wide, narrow = ThreadShares(4), Share(4), [Share(1) for _ in range(3)]
    for share in narrow:
        shares.ask(share)
    assert shares.ask(wide) == []
    late = Share(1)
    late.use.consumed_ns = 1
    assert shares.ask(late) == [], "the wide one came first and is served less"
    granted = [shares.end(share, 10, again=False) for share in narrow]
    assert granted == [[], [], [wide]]


def test_accelerators_take_no_threads() -> None:
    limiter = Limiter(1, 0.0)
    processor, accelerator = Share(1), Share(0)
    limiter.enter(processor)
    limiter.enter(accelerator)
    limiter.leave(accelerator, 1, again=False)
    limiter.leave(processor, 1, again=False)


def test_a_model_waits_for_the_other_and_goes_when_it_ends() -> None:
    limiter, one, other = Limiter(1, 30.0), Share(1), Share(1)
    limiter.enter(one)
    entered = threading.Event()
    thread = threading.Thread(target=lambda: (limiter.enter(other), entered.set()))
    thread.start()
    while other not in limiter._shares.waiting:
        pass
    assert not entered.is_set()
    limiter.leave(one, 5, again=False)
    thread.join()
    limiter.leave(other, 5, again=False)
    assert limiter._shares.free == 1


def test_a_run_that_hangs_holds_the_others_up_for_a_bounded_time() -> None:
    limiter, hanging, other = Limiter(1, 0.001), Share(1), Share(1)
    limiter.enter(hanging)
    limiter.enter(other)
    limiter.leave(other, 5, again=False)
    limiter.leave(hanging, 5, again=False)
    assert limiter._shares.free == 1


def test_two_workers_that_always_have_work_consume_alike() -> None:
    limiter, spent_ns = Limiter(1, 30.0), {1: 0, 40: 0}
    ready = threading.Barrier(2)

    def work(ran_ns: int, runs: int) -> None:
        share = Share(1)
        limiter.enter(share)
        ready.wait() if ran_ns == 40 else None
        for _ in range(runs):
            spent_ns[ran_ns] += ran_ns
            limiter.leave(share, ran_ns, again=True)
            limiter.enter(share)
            if spent_ns[40] >= 4000:
                break
        limiter.leave(share, ran_ns, again=False)

    short, long = threading.Thread(target=work, args=(1, 10**6)), threading.Thread(target=work, args=(40, 10**6))
    long.start()
    while not ready.n_waiting:  # it has the turn before the other one begins
        pass
    short.start()
    while len(limiter._shares.waiting) < 1:
        pass
    ready.wait()
    short.join()
    long.join()
    assert abs(spent_ns[1] - spent_ns[40]) <= 80


def test_a_turn_that_came_before_the_wait_for_it_counts_once() -> None:
    limiter, first, second = Limiter(1, 30.0), Share(1), Share(1)
    limiter.enter(first)
    limiter._shares.ask(second)
    second.asked = True
    limiter.leave(first, 1, again=False)
    limiter.enter(second)
    limiter.leave(second, 1, again=False)
    limiter.enter(first)
    entered = threading.Event()
    thread = threading.Thread(target=lambda: (limiter.enter(second), entered.set()))
    thread.start()
    while second not in limiter._shares.waiting:
        pass
    assert not entered.wait(0.02), "the thread is the first one's"
    limiter.leave(first, 1, again=False)
    thread.join()


def test_a_run_that_is_in_nobodys_way_begins_only_where_nobody_waits() -> None:
    shares, running, large, idle = ThreadShares(2), Share(1), Share(2), Share(1)
    shares.ask(running)
    assert shares.begin_if_free(idle)
    assert not shares.begin_if_free(Share(1)), "too few threads"
    shares.end(idle, 1, again=False)
    shares.ask(large)
    assert not shares.begin_if_free(idle), "somebody waits"
    assert shares.end(running, 1, again=False) == [large]
    shares.end(large, 1, again=False)
    assert shares.begin_if_free(idle)
    assert shares.free == 1
