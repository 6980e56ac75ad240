"""Lanes of runs: short ones on the loop, joined per pass, long ones on the worker; a session is never shared."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import BreakerRetried, LoopLeft, RunFailed
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.noise import read_steal_ns
from gateway.common.domain.tensor import Datatype, Tensors
from gateway.common.domain.verdict import Joining
from gateway.serving.engine.batch_pass import BatchPass
from gateway.serving.engine.cost import Cost, estimate_cost
from gateway.serving.engine.pauses import Pauses
from tests.simulators.engine_rig import Rig, X, limits_with, manifest, measured, request, values
from tests.simulators.examples import examples
from tests.simulators.sink import Recorder

LOOP = threading.main_thread().ident


async def tiny_rig(p50_us: float = 10.0, row_us: float = 1.0, **changes: object) -> Rig:
    """Return a rig whose model was measured to be quick.

    With 1 µs a row, more than 300 rows are too many for the loop.
    """
    rig = Rig(limits_with(**changes))  # type: ignore[arg-type]
    rig.trials["a"] = measured(p50_us, row_us)
    await rig.serve(manifest())
    return rig


def submit(rig: Rig, sink: Recorder, *wanted: float, **changes: object) -> None:
    """Submit one request per value, which is its token too."""
    for value in wanted:
        rig.engine.submit(request(value, **changes), sink, value)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_what_arrives_in_one_turn_is_one_run_on_the_loop() -> None:
    rig, sinks = await tiny_rig(), [Recorder(), Recorder()]
    for value in range(6):
        submit(rig, sinks[value % 2], float(value))
    assert sinks[0].told == [], "never within submit"
    await sinks[1].until(3)
    assert rig.session.runs == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]
    assert rig.session.threads == {LOOP}
    for odd, sink in enumerate(sinks):
        assert {token: values(answer) for token, answer in sink.answers.items()} == {
            v: [v] for v in (odd, odd + 2, odd + 4)
        }
        assert [what for what, _ in sink.told] == ["answer"] * 3 + ["flush"]
    counted = rig.engine.statistics("m")[0]
    assert (counted.executions, counted.inferences, counted.lanes) == (1, 6, {"inline": 1})
    assert (counted.success.count, counted.queue.count, counted.compute_infer.count) == (6, 6, 6)
    assert sum(counted.latency.counts) == 6
    await rig.repository.close()


@pytest.mark.asyncio
async def test_without_a_measured_gain_each_request_is_a_run_on_the_loop() -> None:
    rig, sink = await tiny_rig(10.0, 9.5), Recorder()
    submit(rig, sink, 1.0, 2.0, 3.0)
    await sink.until(3)
    assert rig.session.runs == [[1.0], [2.0], [3.0]]
    assert rig.session.threads == {LOOP}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_runs_on_the_loop_are_capped_in_rows() -> None:
    rig, sink = await tiny_rig(200.0, 100.0), Recorder()
    submit(rig, sink, *map(float, range(7)))
    await sink.until(7)
    assert [len(run) for run in rig.session.runs] == [3, 3, 1]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_request_with_too_many_rows_goes_to_the_worker_and_the_small_ones_wait_for_the_session() -> None:
    rig, sink = await tiny_rig(200.0, 10.0), Recorder()
    rig.session.gate.clear()
    submit(rig, sink, 1.0, rows=40)
    await rig.begun()
    submit(rig, sink, 2.0, 3.0)
    await asyncio.sleep(0)
    assert len(rig.session.runs) == 1, "the session is in use"
    rig.session.gate.set()
    await sink.until(3)
    assert [len(run) for run in rig.session.runs] == [40, 2]
    assert LOOP in rig.session.threads
    assert rig.engine.statistics("m")[0].lanes == {"worker": 1, "inline": 1}
    await rig.repository.close()
    assert rig.session.closed == 1


@pytest.mark.asyncio
async def test_no_run_joins_more_rows_than_were_proven() -> None:
    rig, sink = Rig(), Recorder()
    rig.trials["a"] = replace(measured(10.0, 1.0), joining=Joining("proved", rows=4))
    await rig.serve(manifest())
    submit(rig, sink, *map(float, range(7)))
    await sink.until(7)
    assert [len(run) for run in rig.session.runs] == [4, 3]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_small_requests_before_a_large_one_are_not_held_up_by_it() -> None:
    rig, sink = await tiny_rig(200.0, 10.0), Recorder()
    submit(rig, sink, 1.0, 2.0)
    submit(rig, sink, 3.0, rows=40)
    await sink.until(3)
    assert [len(run) for run in rig.session.runs] == [2, 40]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("inputs", [(TensorSpec("x", Datatype.FP32, (-1, -1)),), (X,)])
async def test_a_model_whose_runs_have_no_bound_never_runs_on_the_loop(inputs: tuple[TensorSpec, ...]) -> None:
    rig, sink = Rig(), Recorder()
    rig.trials["a"] = replace(measured(10.0, 1.0), unbounded="control flow (Loop)")
    await rig.serve(manifest(inputs=inputs))
    for count in range(50):
        submit(rig, sink, float(count))
        await sink.until(count + 1)
    assert LOOP not in rig.session.threads
    await rig.repository.close()


@pytest.mark.asyncio
async def test_each_shape_of_a_model_with_open_axes_begins_on_the_worker() -> None:
    rig, sink = Rig(), Recorder()
    rig.trials["a"] = measured(10.0, 1.0)
    await rig.serve(manifest(inputs=(TensorSpec("x", Datatype.FP32, (-1, -1)),)))
    for width in (1, 2):
        rig.session.threads.clear()
        submit(rig, sink, float(len(sink.ended)), width=width)
        await sink.until(len(sink.ended) + 1)
        assert LOOP not in rig.session.threads, "nothing is known of this shape"
        for _ in range(50):  # a busy machine may make the first runs look long
            submit(rig, sink, float(len(sink.ended)), width=width)
            await sink.until(len(sink.ended) + 1)
        assert LOOP in rig.session.threads
    rig.session.burn_s = 0.002
    rig.session.threads.clear()
    for _ in range(20):
        submit(rig, sink, float(len(sink.ended)), width=3)
        await sink.until(len(sink.ended) + 1)
    assert LOOP not in rig.session.threads, "runs of this shape are long"
    await rig.repository.close()


def test_joined_runs_of_open_shapes_are_bounded_by_what_each_shape_costs() -> None:
    cost = Cost(run_ns=10_000, row_ns=1_000, limit_ns=300_000, worker_rows=32, loop_rows=32)
    assert cost.rows_at_once(250_000, 1) == 32, "the trial has measured this shape"
    opened = replace(cost, opened=True)
    assert [opened.rows_at_once(known_ns, 2) for known_ns in (0, 1_000, 100_000, 250_000)] == [32, 32, 6, 2]
    assert opened.learned_ns(0, 40_000) == 40_000, "the first run counts as a whole"
    assert opened.learned_ns(40_000, 120_000) == 50_000


async def overrun(rig: Rig, sink: Recorder, count: int) -> None:
    """Make so many runs of 5 ms of CPU time; the requests number on."""
    rig.session.burn_s = 0.005
    for _ in range(count):
        submit(rig, sink, float(len(sink.ended)))
        await sink.until(len(sink.ended) + 1)
    rig.session.burn_s = 0.0
    rig.session.threads.clear()


async def used_threads(rig: Rig, sink: Recorder, count: int = 20) -> set[int]:
    """Return the threads on which some more requests run."""
    rig.session.threads.clear()
    await overrun(rig, sink, 0)
    for _ in range(count):
        submit(rig, sink, float(len(sink.ended)))
        await sink.until(len(sink.ended) + 1)
    return rig.session.threads


@pytest.mark.asyncio
async def test_a_model_leaves_the_loop_after_three_long_runs_and_is_tried_there_again() -> None:
    rig, sink = await tiny_rig(loop_retry_s=0.2), Recorder()
    await overrun(rig, sink, 1)
    assert await used_threads(rig, sink) == {LOOP}, "one long run may be the machine's fault"
    await overrun(rig, sink, 2)
    assert LOOP not in await used_threads(rig, sink, 1)
    (left,) = rig.told(LoopLeft)
    assert left.took_us >= 3_000 == left.limit_us  # type: ignore[union-attr]
    assert (left.overruns, left.retry_s) == (3, 0.2)  # type: ignore[union-attr]
    placement = rig.engine.placement("m")
    assert placement.loop.startswith("3 runs within a short time took ")
    assert "tried again from" in placement.loop
    while not rig.told(BreakerRetried):
        await used_threads(rig, sink, 1)
        await asyncio.sleep(0.01)
    assert (rig.engine.placement("m").loop, rig.registry.find("m").statistics.overruns) == ("", 3)
    while LOOP not in await used_threads(rig, sink, 1):
        await asyncio.sleep(0)
    assert await used_threads(rig, sink) == {LOOP}
    await overrun(rig, sink, 1)
    assert LOOP not in await used_threads(rig, sink, 1)
    assert [left.retry_s for left in rig.told(LoopLeft)] == [0.2, 0.4]  # type: ignore[union-attr]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_runs_that_the_hypervisor_held_up_do_not_move_a_model() -> None:
    stat = "cpu  10 0 10 100 0 0 0 {} 0 0\ncpu0 1 0 1 1 0 0 0 0 0 0\n"
    stolen = iter(range(1000))
    rig, sink = await tiny_rig(), Recorder()
    rig.noise_ns = lambda: read_steal_ns(stat.format(next(stolen)), 100)
    for _ in range(3):
        await overrun(rig, sink, 3)
        assert await used_threads(rig, sink) == {LOOP}
    assert not rig.told(LoopLeft)
    rig.noise_ns = lambda: read_steal_ns(stat.format(7), 100)
    await overrun(rig, sink, 3)
    assert len(rig.told(LoopLeft)) == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_form_that_was_costly_in_a_bad_second_returns_to_the_loop() -> None:
    rig, sink = await tiny_rig(), Recorder()
    rig.session.burn_s = 0.002
    while LOOP in rig.session.threads or not rig.session.threads:
        rig.session.threads.clear()
        submit(rig, sink, float(len(sink.ended)))
        await sink.until(len(sink.ended) + 1)
    rig.session.burn_s = 0.0
    while LOOP not in rig.session.threads:
        submit(rig, sink, float(len(sink.ended)))
        await sink.until(len(sink.ended) + 1)
        await asyncio.sleep(0)
    assert not rig.told(LoopLeft)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_collection_of_garbage_during_a_run_is_not_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, sink = await tiny_rig(), Recorder()
    submit(rig, sink, 1.0)
    await sink.until(1)
    kept, run, took_ns = [[] for _ in range(500_000)], rig.session.run, list[int]()

    def collecting(inputs: Tensors) -> Tensors:
        began_ns = time.thread_time_ns()
        gc.collect()
        took_ns.append(time.thread_time_ns() - began_ns)
        return run(inputs)

    monkeypatch.setattr(rig.session, "run", collecting)
    submit(rig, sink, 2.0)
    await sink.until(2)
    assert kept
    assert took_ns[0] > 3_000_000, "or this shows nothing"
    assert not rig.told(LoopLeft)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_bad_data_that_ends_runs_early_does_not_bring_long_runs_to_the_loop() -> None:
    rig, sink = await tiny_rig(200.0, 20.0), Recorder()
    rig.session.failure = ValueError("no such index")
    for count in range(40):
        submit(rig, sink, float(count), rows=40)
        await sink.until(count + 1)
    rig.session.failure = None
    rig.session.threads.clear()
    submit(rig, sink, 40.0, rows=40)
    await sink.until(41)
    assert LOOP not in rig.session.threads
    await rig.repository.close()


@pytest.mark.asyncio
async def test_nothing_runs_on_the_loop_where_the_limit_is_zero() -> None:
    rig, sink = await tiny_rig(inline_limit_us=0), Recorder()
    submit(rig, sink, 1.0)
    await sink.until(1)
    assert LOOP not in rig.session.threads
    assert rig.engine.statistics("m")[0].lanes == {"worker": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_one_callers_defect_costs_nobody_else_an_answer() -> None:
    rig, good, bad = await tiny_rig(), Recorder(), Recorder()
    bad.defect = RuntimeError("no such stream")
    submit(rig, good, 1.0)
    submit(rig, bad, 2.0)
    submit(rig, good, 3.0)
    await good.until(2)
    assert [what for what, _ in bad.told] == ["answer", "refuse", "flush"]
    reasons = [event.reason for event in rig.told(RunFailed)]  # type: ignore[union-attr]
    assert [reason.partition(":")[0] for reason in reasons] == ["answering", "refusing", "flushing"]
    submit(rig, good, 4.0)
    await good.until(3)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_who_leaves_before_the_turn_is_not_run_and_who_left_later_harms_nobody() -> None:
    rig, sink = await tiny_rig(), Recorder()
    pending = [rig.engine.submit(request(value), sink, value) for value in (1.0, 2.0, 3.0)]
    pending[1].cancel()
    pending[1].cancel()
    await sink.until(2)
    pending[0].cancel()
    assert rig.session.runs == [[1.0, 3.0]]
    assert rig.engine.statistics("m")[0].drops == {"cancelled": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_turn_that_everybody_left_runs_nothing() -> None:
    rig, sink = await tiny_rig(), Recorder()
    rig.engine.submit(request(), sink, 1).cancel()
    await asyncio.sleep(0)
    assert rig.session.runs == []
    submit(rig, sink, 2.0)
    await sink.until(1)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_deadline_that_passes_before_the_turn_is_told_and_not_run() -> None:
    rig, sink = await tiny_rig(), Recorder()
    deadline_ns = time.monotonic_ns() + 1_000_000
    submit(rig, sink, 1.0, deadline_ns=deadline_ns)
    submit(rig, sink, 2.0)
    while time.monotonic_ns() <= deadline_ns:
        pass
    await sink.until(2)
    assert sink.errors[1.0].fault is Fault.EXPIRED
    assert rig.session.runs == [[2.0]]
    assert rig.engine.statistics("m")[0].drops == {"expired": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_deadline_is_told_in_time_while_the_worker_has_the_session() -> None:
    rig, sink = await tiny_rig(200.0, 10.0), Recorder()
    rig.session.gate.clear()
    submit(rig, sink, 0.0, rows=40)
    await rig.begun()
    submit(rig, sink, 1.0, deadline_ns=time.monotonic_ns() + 2_000_000)
    await sink.until(1)
    assert sink.errors[1.0].fault is Fault.EXPIRED
    rig.session.gate.set()
    await sink.until(2)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_deadline_of_a_ticket_that_is_handed_over_is_told_in_time() -> None:
    rig, sink = await tiny_rig(200.0, 10.0), Recorder()
    rig.session.gate.clear()
    submit(rig, sink, 0.0, rows=40)
    submit(rig, sink, 1.0, rows=40, deadline_ns=time.monotonic_ns() + 20_000_000)
    await rig.begun()
    await sink.until(1)
    assert sink.errors[1.0].fault is Fault.EXPIRED
    rig.session.gate.set()
    await sink.until(2)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_swap_loses_nothing_that_waits_for_its_turn() -> None:
    rig, sink = await tiny_rig(), Recorder()
    rig.trials["b"] = measured(10.0, 1.0)
    submit(rig, sink, 1.0, 2.0)
    await rig.serve(manifest(variants=("b",)), digest="d2")
    submit(rig, sink, 3.0)
    await sink.until(3)
    assert [answer.variant for answer in sink.answers.values()] == ["a", "a", "b"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_closing_answers_what_waits_and_then_refuses() -> None:
    rig, sink = await tiny_rig(), Recorder()
    servable = rig.registry.find("m")
    submit(rig, sink, 1.0, 2.0)
    await rig.repository.close()
    assert sink.answers.keys() == {1.0, 2.0}
    with pytest.raises(RequestError) as error:
        servable.submit(request(), sink, 3.0)
    assert error.value.fault is Fault.UNAVAILABLE
    assert rig.session.closed == 1


@pytest.mark.asyncio
async def test_a_run_that_raises_on_the_loop_fails_its_batch_only() -> None:
    rig, sink = await tiny_rig(), Recorder()
    rig.session.failure = RuntimeError("too small")
    submit(rig, sink, 1.0, 2.0)
    await sink.until(2)
    assert {error.fault for error in sink.errors.values()} == {Fault.INTERNAL}
    rig.session.failure = None
    submit(rig, sink, 3.0)
    await sink.until(3)
    assert values(sink.answers[3.0]) == [3.0]
    await rig.repository.close()


class Endless:
    """A model that always has more to run."""

    def __init__(self, runs: list[str], name: str, count: int) -> None:
        self.runs, self.name, self.left = runs, name, count

    def run_inline(self) -> bool:
        until_ns = time.monotonic_ns() + 2_000
        while time.monotonic_ns() < until_ns:
            pass
        self.runs.append(self.name)
        self.left -= 1
        return self.left > 0


@pytest.mark.asyncio
async def test_a_turn_lets_the_loop_work_between_runs_and_models_take_turns() -> None:
    runs: list[str] = []
    turn = BatchPass(1, Pauses(0))
    for name in "ab":
        turn.add(Endless(runs, name, 2))
    for _ in range(6):
        asyncio.get_running_loop().call_soon(runs.append, "io")
        await asyncio.sleep(0)
    assert [run for run in runs if run != "io"] == ["a", "b", "a", "b"]
    assert max(len(part) for part in "".join(r if r != "io" else " " for r in runs).split()) == 1


@given(st.lists(st.sampled_from(["small", "large", "leave", "turn"]), max_size=25))
@settings(max_examples=examples(60), deadline=None)
def test_every_request_is_answered_once_in_whatever_lane(steps: list[str]) -> None:
    asyncio.run(_steps(steps))


async def _steps(steps: list[str]) -> None:
    rig, sink = await tiny_rig(200.0, 10.0, queue_requests=8), Recorder()
    pending, refused, left = {}, 0, set()
    for token, step in enumerate(steps):
        if step == "turn":
            await asyncio.sleep(0)
        elif step == "leave":
            waiting = pending.keys() - sink.ended - left
            if waiting:
                left.add(max(waiting))
                pending[max(waiting)].cancel()
        else:
            try:
                pending[token] = rig.engine.submit(request(token, 1 if step == "small" else 40), sink, token)
            except RequestError:
                refused += 1
    await rig.repository.close()
    assert sink.ended == pending.keys() - left
    assert all(values(answer)[0] == token for token, answer in sink.answers.items())
    counted = rig.registry.find("m").statistics
    assert counted.success.count == len(sink.answers)
    assert counted.drops.get("queue_full", 0) == refused
    assert counted.drops.get("cancelled", 0) == len(left)


@pytest.mark.parametrize(
    ("p50_us", "row_us", "accelerator", "expected"),
    [
        (100.0, 10.0, "cpu", Cost(100_000, 10_000, 300_000, 32, 30)),
        (100.0, 90.0, "cpu", Cost(100_000, 90_000, 300_000, 1, 1)),
        (301.0, 10.0, "cpu", Cost(301_000, 10_000, 0, 32, 1)),
        (100.0, 10.0, "nvidia-gpu", Cost(100_000, 10_000, 0, 32, 1)),
        (100.0, 0.0, "cpu", Cost(100_000, 0, 300_000, 1, 1)),
    ],
)
def test_the_trial_decides_lane_and_joining(p50_us: float, row_us: float, accelerator: str, expected: Cost) -> None:
    bounds = {"inline_limit_us": 300, "batch_rows": 32, "batch_gain": 1.2}
    verdict = measured(p50_us, row_us)
    assert estimate_cost(verdict, accelerator, joins=True, **bounds) == expected  # type: ignore[arg-type]
    assert estimate_cost(None, accelerator, joins=True, **bounds) == Cost()  # type: ignore[arg-type]
    apart = estimate_cost(verdict, accelerator, joins=False, **bounds)  # type: ignore[arg-type]
    assert apart == expected.apart(), "whatever it would gain"
    unbounded = replace(verdict, unbounded="control flow (If)")
    assert estimate_cost(unbounded, accelerator, joins=True, **bounds).limit_ns == 0  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 10**9), max_size=50), st.integers(1, 10**6))
def test_what_is_learned_stays_within_what_was_seen(samples: list[int], limit_ns: int) -> None:
    cost, known = Cost(limit_ns=limit_ns), limit_ns
    for sample in samples:
        known = cost.learned_ns(known, sample)
        assert 0 <= known <= 4 * limit_ns
    for _ in range(400):
        known = cost.learned_ns(known, 0)
    assert not cost.too_costly(known, before=True)


def test_one_interrupted_run_does_not_move_a_model_and_there_is_no_flapping() -> None:
    cost = Cost(run_ns=20_000, limit_ns=300_000)
    assert not cost.too_costly(cost.learned_ns(20_000, 10**9), before=False)
    assert [cost.too_costly(450_000, before=before) for before in (False, True)] == [False, True]


@pytest.mark.asyncio
@pytest.mark.parametrize("lends", [True, False])
async def test_a_run_is_copied_once_at_most_and_the_answers_are_views_of_it(lends: bool) -> None:
    rig, sink = Rig(), Recorder()
    rig.trials["a"] = measured(10.0, 1.0)
    rig.runtime.lends = lends
    await rig.serve(manifest())
    submit(rig, sink, 1.0, 2.0, 3.0)
    await sink.until(3)
    arrays = [answer.outputs["y"].array for answer in sink.answers.values()]
    assert len({id(array.base) for array in arrays}) == 1
    assert np.shares_memory(arrays[0].base, rig.session._lent) is not lends
    await rig.repository.close()
