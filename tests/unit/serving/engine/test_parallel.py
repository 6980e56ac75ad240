"""Runs of one version at a time: shared queue, order of each caller's answers, hung runs, closing, fewer threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, VariantError
from gateway.common.domain.events import RunFailed, RunHung, RunOverlong
from gateway.common.domain.profile import Budget as ProfileBudget
from gateway.common.domain.verdict import Measurement
from gateway.serving.engine.limiter import Share
from gateway.serving.engine.worker import SessionWorker
from tests.simulators.engine_rig import PASSED, Rig, limits_with, manifest, request, values
from tests.simulators.examples import examples
from tests.simulators.session import SimulatedSession
from tests.simulators.sink import Recorder

CALLERS = "abc"


async def parallel_rig(runs: int = 2, *, cores: int = 4, run_us: float = 0.0, **changes: object) -> Rig:
    """Return a rig with a model of so many runs at a time, whose runs wait at the gates of its sessions."""
    rig = Rig(limits_with(**changes), runs=cores, budget=ProfileBudget(threads=cores))
    rig.trials["a"] = replace(PASSED, runs=runs, measured=Measurement(run_us, run_us, run_us, 0) if run_us else None)
    await rig.serve(manifest())
    for session in sessions(rig):
        session.gate.clear()
    return rig


def sessions(rig: Rig) -> list[SimulatedSession]:
    return [rig.session, *rig.session.peers]


def submit(rig: Rig, sink: Recorder, *asked: tuple[str, float]) -> None:
    """Submit one request for each caller and value; the value is the token, too."""
    for caller, value in asked:
        rig.engine.submit(request(value, caller=caller), sink, value)


async def begun(rig: Rig, count: int) -> dict[float, SimulatedSession]:
    """Return the sessions with a run in progress by its value, once there are so many."""
    while True:
        running = {each.runs[-1][0]: each for each in sessions(rig) if each.runs and each.runs[-1]}
        if len(running) >= count:
            return running
        await asyncio.sleep(0.001)


async def settled(rig: Rig, posted: int) -> None:
    """Return once so many runs are over and the event loop knows it."""
    worker = rig.registry.find("m")._worker
    while sum(each.ran is not None for each in worker._ordered) + worker._ended < posted:
        await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_runs_take_place_at_a_time_on_threads_and_sessions_of_their_own() -> None:
    rig, sink = await parallel_rig(3), Recorder()
    submit(rig, sink, ("a", 1.0), ("b", 2.0), ("c", 3.0))
    running = await begun(rig, 3)
    assert set(running) == {1.0, 2.0, 3.0}
    for session in running.values():
        session.gate.set()
    await sink.until(3)
    assert len(set[int]().union(*(session.threads for session in sessions(rig)))) == 3
    await rig.repository.close()
    assert [session.closed for session in sessions(rig)] == [1, 1, 1]


@pytest.mark.asyncio
async def test_threads_start_when_requests_wait_for_them() -> None:
    rig, sink = await parallel_rig(4), Recorder()
    for session in sessions(rig):
        session.gate.set()
    for value in range(5):
        submit(rig, sink, ("a", float(value)))
        await sink.until(value + 1)
    assert [bool(session.runs) for session in sessions(rig)] == [True, False, False, False]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_session_that_allows_fewer_runs_serves_with_those(monkeypatch: pytest.MonkeyPatch) -> None:
    def widen(self: SimulatedSession, runs: int) -> None:
        self.peers.append(SimulatedSession(self.factor))
        raise VariantError(f"no memory for {runs} runs")

    monkeypatch.setattr(SimulatedSession, "widen", widen)
    rig, sink = await parallel_rig(3), Recorder()
    submit(rig, sink, ("a", 1.0), ("b", 2.0), ("c", 3.0))
    for session in (await begun(rig, 2)).values():
        session.gate.set()
    await sink.until(3)
    assert not sink.errors
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_queue_that_the_event_loop_hands_over_is_run_by_as_many_threads_as_it_needs() -> None:
    """Requests of 60 rows are too long for the event loop of this model, those of one row are not."""
    rig, sink = await parallel_rig(3, run_us=100.0), Recorder()
    for value in (1.0, 2.0, 3.0):
        rig.engine.submit(request(value, 60, caller=str(value)), sink, value)
    for session in (await begun(rig, 3)).values():
        session.gate.set()
    await sink.until(3)
    assert values(await rig.engine.infer(request(4.0))) == [4.0]
    assert threading.get_ident() in rig.session.threads, "the queue is the event loop's again"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_profile_bounds_what_the_verdict_names() -> None:
    rig = await parallel_rig(4, cores=2)
    assert len(sessions(rig)) == 2
    assert rig.engine.placement("m").runs == 2
    await rig.repository.close()


@pytest.mark.asyncio
async def test_answers_to_one_caller_keep_their_order_and_delay_no_other_caller() -> None:
    rig, sink = await parallel_rig(3), Recorder()
    submit(rig, sink, ("a", 1.0))
    await begun(rig, 1)
    submit(rig, sink, ("a", 2.0), ("b", 3.0))
    running = await begun(rig, 3)
    running[2.0].gate.set()
    await settled(rig, 1)
    assert not sink.answers, "the caller's first run is not over"
    running[3.0].gate.set()
    await sink.until(1)
    assert list(sink.answers) == [3.0]
    running[1.0].gate.set()
    await sink.until(3)
    assert list(sink.answers) == [3.0, 1.0, 2.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_queue_returns_to_the_event_loop_after_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 60 rows are too long for the event loop of this model, those of one row are not."""
    rig, sink = await parallel_rig(2, run_us=100.0), Recorder()
    for value in (1.0, 2.0):
        rig.engine.submit(request(value, 60, caller=str(value)), sink, value)
    for session in (await begun(rig, 2)).values():
        session.gate.set()
    await sink.until(2)
    post, ended = SessionWorker._post, threading.Event()

    def late(self: SessionWorker, callback: Callable[..., object], *values: object) -> None:
        if callback == self._end_ordered and not ended.is_set():
            ended.set()
            time.sleep(0.1)  # as if another thread had the GIL
        post(self, callback, *values)

    monkeypatch.setattr(SessionWorker, "_post", late)
    rig.engine.submit(request(3.0, 60, caller="a"), sink, 3.0)
    while not ended.is_set():
        await asyncio.sleep(0.001)
    submit(rig, sink, ("a", 4.0))
    await sink.until(4)
    assert list(sink.answers)[2:] == [3.0, 4.0]
    await rig.repository.close()


@pytest.mark.parametrize("later_s", [0.0, 0.3])
@pytest.mark.asyncio
async def test_only_the_overlong_run_is_cancelled(later_s: float) -> None:
    """A run of one row may take 0.2 s, one of 60 rows 6 s."""
    rig, sink = await parallel_rig(2, run_us=100_000.0, run_limit_s=0.2, run_end_s=60.0, run_overruns=1), Recorder()
    for session in sessions(rig):
        session.cancels = True
    rig.engine.submit(request(1.0, 60, caller="b"), sink, 1.0)
    longer = (await begun(rig, 1))[1.0]
    await asyncio.sleep(later_s)
    submit(rig, sink, ("a", 2.0))
    await asyncio.wait_for(sink.until(1), 3.0)
    assert sink.errors[2.0].fault is Fault.EXPIRED
    assert longer.failure is None
    longer.gate.set()
    await sink.until(2)
    assert list(sink.answers) == [1.0]
    assert len(rig.told(RunOverlong)) == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_hung_run_costs_its_callers_only_and_holds_no_later_answer_back() -> None:
    rig, sink = await parallel_rig(2, run_limit_s=0.2, run_end_s=0.01, retry_after_s=0.1), Recorder()
    submit(rig, sink, ("a", 1.0), ("a", 2.0))
    before, running = rig.session, await begun(rig, 2)
    running[2.0].gate.set()
    await sink.until(2)
    assert sink.errors[1.0].fault is Fault.EXPIRED
    assert list(sink.answers) == [2.0]
    assert len(rig.told(RunHung)) == len(rig.told(RunOverlong)) == 1
    while rig.session is before or not rig.engine.ready("m"):
        await asyncio.sleep(0.001)
    assert values(await rig.engine.infer(request(3.0))) == [3.0]
    assert before.closed == 0, "its thread is in it"
    assert not rig.engine.batch_pass.pauses.waiting
    running[1.0].gate.set()
    await rig.repository.close()


@pytest.mark.asyncio
async def test_closing_answers_what_waits_and_closes_after_the_last_run() -> None:
    rig, sink = await parallel_rig(2), Recorder()
    submit(rig, sink, *((caller, float(index)) for index, caller in enumerate("abccc")))
    running = list((await begun(rig, 2)).values())
    closing = asyncio.create_task(rig.repository.close())
    running[0].gate.set()
    await sink.until(4)
    assert rig.session.closed == 0
    running[1].gate.set()
    await closing
    assert len(sink.answers) == 5
    assert [session.closed for session in sessions(rig)] == [1, 1]


@pytest.mark.asyncio
async def test_closing_ends_the_threads_that_the_last_request_leaves_idle() -> None:
    rig, sink = await parallel_rig(2, drain_s=60.0), Recorder()
    submit(rig, sink, ("a", 1.0), ("b", 2.0))
    for session in (await begun(rig, 2)).values():
        session.gate.set()
    await sink.until(2)
    worker, other = rig.registry.find("m")._worker, Share(4)
    limiter = worker._worker_settings.limiter
    limiter.enter(other)
    submit(rig, sink, ("c", 3.0))
    while not worker._claimed:
        await asyncio.sleep(0.001)
    closing = asyncio.create_task(rig.repository.close())
    await asyncio.sleep(0.05)  # in which the idle thread sleeps again
    limiter.leave(other, 1, again=False)
    await asyncio.wait_for(closing, 10.0)
    assert sorted(sink.answers) == [1.0, 2.0, 3.0]


@pytest.mark.asyncio
async def test_a_deadline_that_passes_while_all_runs_are_busy_is_told_and_not_run() -> None:
    rig, sink = await parallel_rig(2), Recorder()
    submit(rig, sink, ("a", 1.0), ("b", 2.0))
    running = await begun(rig, 2)
    loop = asyncio.get_running_loop()
    rig.engine.submit(request(3.0, caller="c", deadline_ns=int((loop.time() + 0.01) * 1e9)), sink, 3.0)
    await sink.until(1)
    assert sink.errors[3.0].fault is Fault.EXPIRED
    for session in running.values():
        session.gate.set()
    await sink.until(3)
    assert sorted(sink.answers) == [1.0, 2.0]
    await rig.repository.close()


@pytest.fixture
def later_threads_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith("run m/1 "):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)


@pytest.mark.asyncio
@pytest.mark.usefixtures("later_threads_refused")
async def test_one_thread_serves_where_no_other_can_start() -> None:
    rig, sink = await parallel_rig(3), Recorder()
    rig.session.gate.set()
    submit(rig, sink, *(("a", float(value)) for value in range(6)))
    await sink.until(6)
    assert list(sink.answers) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert not rig.told(RunFailed)
    await rig.repository.close()
    assert [session.closed for session in sessions(rig)] == [1, 1, 1]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(CALLERS), st.sampled_from([0, 0, 1, 3])), min_size=1, max_size=25),
    st.booleans(),
)
def test_every_request_is_answered_once_and_in_its_callers_order(
    runs: int, asked: list[tuple[str, int]], joins: bool
) -> None:
    asyncio.run(_answered(runs, asked, joins=joins))


async def _answered(runs: int, asked: list[tuple[str, int]], *, joins: bool) -> None:
    rig = Rig(runs=4, budget=ProfileBudget(threads=4))
    cost = Measurement(5000.0, 5000.0, 5000.0, 0, row_us=1000.0 if joins else 0.0)
    rig.trials["a"] = replace(PASSED, runs=runs, measured=cost)
    await rig.serve(manifest())
    sink = Recorder()
    for each in sessions(rig):
        _watch_for_two_at_a_time(each)
    for index, (caller, pause) in enumerate(asked):
        rig.engine.submit(request(float(index), caller=caller), sink, float(index))
        for _ in range(pause):
            await asyncio.sleep(0.0003 * ((index + pause) % 3))
    await sink.until(len(asked))
    assert not sink.errors
    assert {token: values(answer) for token, answer in sink.answers.items()} == {
        float(index): [float(index)] for index in range(len(asked))
    }
    for caller in CALLERS:
        own = [token for token in sink.answers if asked[int(token)][0] == caller]
        assert own == sorted(own)
    await rig.repository.close()


def _watch_for_two_at_a_time(session: SimulatedSession) -> None:
    run, lock = session.run, threading.Lock()

    def watched(inputs: object) -> object:
        assert lock.acquire(blocking=False), "two threads used one session"
        try:
            return run(inputs)  # type: ignore[arg-type]
        finally:
            lock.release()

    session.run = watched  # type: ignore[method-assign,assignment]
