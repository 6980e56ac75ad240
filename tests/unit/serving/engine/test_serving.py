"""One servable under load: batches, callers who leave, deadlines, bounds, failing runs, lent buffers, statistics."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.events import BreakerRetried, JoiningStopped, RunFailed
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor, Tensors
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from gateway.serving.engine.queue import RunPlan
from gateway.serving.engine.run import Runner, holds_nan
from tests.simulators.engine_rig import WITNESS, Rig, limits_with, manifest, measured, request, values
from tests.simulators.session import SimulatedSession
from tests.simulators.sink import ticket


async def joining_rig(**settings: object) -> Rig:
    """Return a rig whose trial says that joining rows pays; its runs happen on the worker, so that they can be held."""
    rig = Rig(limits_with(**{"inline_limit_us": 0, **settings}))  # type: ignore[arg-type]
    rig.trials["a"] = measured(100.0, row_us=10.0)
    await rig.serve(manifest())
    return rig


async def hold(rig: Rig) -> asyncio.Task[object]:
    """Occupy the session; returns the task of the request that does."""
    rig.session.gate.clear()
    task = asyncio.ensure_future(rig.engine.infer(request(0.0)))
    await rig.begun()
    return task


def ask(rig: Rig, value: float, **changes: object) -> asyncio.Task[object]:
    return asyncio.ensure_future(rig.engine.infer(request(value, **changes)))


async def queued(rig: Rig, count: int) -> None:
    """Let tasks put their tickets: each needs one turn of the loop."""
    servable = rig.registry.find("m")
    while servable.pending < count:
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_waiting_requests_are_joined_and_each_gets_its_own_rows() -> None:
    rig = await joining_rig()
    first = await hold(rig)
    tasks = [ask(rig, value, rows=rows) for value, rows in ((1.0, 1), (2.0, 3), (3.0, 2))]
    await queued(rig, 3)
    rig.session.gate.set()
    assert [values(answer) for answer in await asyncio.gather(*tasks)] == [[1.0], [2.0] * 3, [3.0] * 2]
    assert rig.session.runs == [[0.0], [1.0, 2.0, 2.0, 2.0, 3.0, 3.0]]
    assert values(await first) == [0.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_caller_cancelled_while_its_batch_runs_disturbs_nobody() -> None:
    rig = await joining_rig()
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (1.0, 2.0, 3.0)]
    await queued(rig, 3)
    rig.session.gate.let(1)
    await first
    await rig.begun()
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    rig.session.gate.set()
    assert values(await tasks[0]) == [1.0]
    assert values(await tasks[2]) == [3.0]
    assert tasks[1].cancelled()
    counted = rig.registry.find("m").statistics
    assert (counted.drops, counted.cancelled.count, counted.fail.count) == ({"cancelled": 1}, 1, 0)
    assert counted.cancelled.ns > 0
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_caller_who_leaves_the_queue_is_never_run_and_frees_its_place() -> None:
    rig = await joining_rig(queue_requests=2)
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (1.0, 2.0)]
    await queued(rig, 2)
    tasks[0].cancel()
    await asyncio.wait({tasks[0]})
    tasks.append(ask(rig, 3.0))
    await queued(rig, 2)
    rig.session.gate.set()
    assert [values(await task) for task in tasks[1:]] == [[2.0], [3.0]]
    assert rig.session.runs == [[0.0], [2.0, 3.0]]
    await first
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_deadline_that_passes_in_the_queue_is_answered_at_once_and_never_run() -> None:
    rig = await joining_rig(queue_requests=1)
    first = await hold(rig)
    late = ask(rig, 1.0, deadline_ns=time.monotonic_ns() + 5_000_000)
    with pytest.raises(RequestError) as error:
        await late
    assert error.value.fault is Fault.EXPIRED
    assert rig.registry.find("m").pending == 0
    rig.session.gate.set()
    await first
    assert rig.session.runs == [[0.0]]
    assert rig.registry.find("m").statistics.drops == {"expired": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_deadline_already_over_is_refused_before_it_is_queued() -> None:
    rig = await joining_rig()
    with pytest.raises(RequestError) as error:
        await rig.engine.infer(request(deadline_ns=time.monotonic_ns()))
    assert error.value.fault is Fault.EXPIRED
    assert rig.session.runs == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_full_queue_answers_overloaded_with_a_time_to_come_back() -> None:
    rig = await joining_rig(queue_requests=2, retry_after_s=3.5)
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (1.0, 2.0)]
    await queued(rig, 2)
    with pytest.raises(RequestError) as error:
        await rig.engine.infer(request(9.0))
    assert (error.value.fault, error.value.retry_after_s) == (Fault.OVERLOADED, 3.5)
    assert rig.engine.statistics("m")[0].queued == 2
    rig.session.gate.set()
    assert [values(answer) for answer in await asyncio.gather(*tasks)] == [[1.0], [2.0]]
    await first
    assert rig.registry.find("m").statistics.drops == {"queue_full": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_run_without_memory_is_told_so_and_may_be_tried_again() -> None:
    rig = await joining_rig()
    rig.session.failure = VariantError("ONNX Runtime failed: std::bad_alloc")
    with pytest.raises(RequestError, match=r"lacks the memory .* raise \[gateway\] memory_mib: .*bad_alloc") as refused:
        await rig.engine.infer(request(1.0))
    assert refused.value.fault is Fault.OVERLOADED
    rig.session.failure = None
    assert values(await rig.engine.infer(request(4.0))) == [4.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_run_that_raises_fails_its_batch_only() -> None:
    rig = await joining_rig()
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (1.0, 2.0)]
    await queued(rig, 2)
    rig.session.failure = RuntimeError("device lost")
    rig.session.gate.set()
    results = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert [type(result) for result in results] == [RequestError] * 3
    assert {result.fault for result in results if isinstance(result, RequestError)} == {Fault.INTERNAL}
    assert all("device lost" not in str(result) for result in results)
    assert [event.reason for event in rig.told(RunFailed)] == ["RuntimeError: device lost"] * 2  # type: ignore[union-attr]
    assert rig.session.runs.count([WITNESS]) == 2, "a model that fails its witness is not run in parts"
    rig.session.failure = None
    assert values(await rig.engine.infer(request(4.0))) == [4.0]
    assert rig.registry.find("m").statistics.fail.count == 3
    await rig.repository.close()


@pytest.mark.asyncio
async def test_answers_are_copies_of_what_the_session_lends() -> None:
    rig = await joining_rig()
    single = await rig.engine.infer(request(5.0))
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (1.0, 2.0)]
    await queued(rig, 2)
    rig.session.gate.set()
    joined = await asyncio.gather(*tasks)
    await rig.engine.infer(request(7.0))
    await first
    await rig.repository.close()
    assert values(single) == [5.0]
    assert [values(answer) for answer in joined] == [[1.0], [2.0]]


@pytest.mark.asyncio
async def test_a_joined_run_with_rows_too_many_is_repeated_apart_and_joining_ends_for_a_while() -> None:
    rig = await joining_rig(loop_retry_s=0.2)
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (1.0, 2.0)]
    await queued(rig, 2)
    rig.session.extra_rows = 1
    rig.session.gate.set()
    results = await asyncio.gather(*tasks)
    assert [values(result) for result in results] == [[1.0], [2.0]]
    await first
    (stopped,) = rig.told(JoiningStopped)
    assert stopped.retry_s == 0.2  # type: ignore[union-attr]
    placement = rig.registry.find("m").placement
    assert placement.joining.startswith("a joined run failed: ")
    assert "tried again from" in placement.joining
    tasks = [ask(rig, value) for value in (3.0, 4.0)]
    await asyncio.gather(*tasks)
    assert rig.session.runs[-2:] == [[3.0], [4.0]], "not joined for now"
    rig.session.extra_rows = 0
    while not rig.told(BreakerRetried):
        await ask(rig, 5.0)
        await asyncio.sleep(0.01)
    assert rig.registry.find("m").placement.joining == ""
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (6.0, 7.0)]
    await queued(rig, 2)
    rig.session.gate.set()
    await asyncio.gather(first, *tasks)
    assert rig.session.runs[-1][-2:] == [6.0, 7.0]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("culprits", [{9.0}, {3.0, 4.0}, set(map(float, range(1, 17)))])
async def test_only_the_culprits_of_a_joined_run_fail_and_hear_why(culprits: set[float]) -> None:
    rig = await joining_rig()
    first = await hold(rig)
    tasks = {value: ask(rig, value if value not in culprits else 99.0) for value in map(float, range(1, 17))}
    await queued(rig, len(tasks))
    rig.session.rejected = 99.0
    rig.session.gate.set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    for value, task in tasks.items():
        if value in culprits:
            refused = task.exception()
            assert isinstance(refused, RequestError)
            assert (refused.fault, "index 99 is out of range" in refused.message) == (Fault.INVALID, True)
        else:
            assert values(task.result()) == [value]
    counted = rig.registry.find("m").statistics
    assert (counted.failed_runs, counted.rejected_runs, rig.told(RunFailed)) == (0, len(culprits), [])
    assert rig.session.runs.count([WITNESS]) == 1, "the model is asked for its witness once for all parts of a run"
    await first
    await rig.repository.close()


@pytest.mark.parametrize(("took_ms", "fresh_ms"), [(1, 10), (50, 500), (400, 1000)])
def test_a_passed_witness_counts_for_ten_times_as_long_as_it_took(
    monkeypatch: pytest.MonkeyPatch, took_ms: int, fresh_ms: int
) -> None:
    class Timed(SimulatedSession):
        def run(self, inputs: Tensors) -> Tensors:
            if inputs["x"].item() != WITNESS:
                raise VariantError("out of range")
            now_ms[0] += took_ms
            return super().run(inputs)

    now_ms = [0.0]
    monkeypatch.setattr("gateway.serving.engine.run.time", SimpleNamespace(monotonic_ns=lambda: int(now_ms[0] * 1e6)))
    session = Timed(1.0)

    def made() -> Tensors:
        now_ms[0] += 20.0
        return {"x": np.full((1, 1), WITNESS, np.float32)}

    runner = Runner(session, manifest(), made)
    plan = RunPlan([ticket()], 1, [])
    assert runner.run(plan).by_caller
    session.failure = RuntimeError("device lost")
    now_ms[0] += fresh_ms - 0.5
    assert runner.run(plan).by_caller, "it passed just now"
    now_ms[0] += 0.5
    assert not runner.run(plan).by_caller


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        (None, ("", False, False)),
        (VariantError("out of range"), ("out of range", True, False)),
        (VariantError("its worker process is away", transient=True), ("its worker process is away", False, True)),
    ],
    ids=["it works again", "the input is bad", "it went away"],
)
def test_an_accelerator_that_failed_once_is_asked_again_before_its_caller_is_blamed(
    again: VariantError | None, expected: tuple[str, bool, bool]
) -> None:
    class Momentary(SimulatedSession):
        def run(self, inputs: Tensors) -> Tensors:
            if inputs["x"].item() != WITNESS and (failure := failures.pop(0)):
                raise failure
            return super().run(inputs)

    failures = [VariantError("status 26"), again]
    made = {"x": np.full((1, 1), WITNESS, np.float32)}
    ran = Runner(Momentary(1.0), manifest(), lambda: made, checks=True).run(RunPlan([ticket()], 1, []))
    assert (ran.failure, ran.by_caller, ran.away) == expected
    assert failures == []


@pytest.mark.asyncio
async def test_without_a_witness_what_fails_alone_is_its_callers_fault() -> None:
    rig = Rig(witness=None)
    await rig.serve(manifest())
    rig.session.failure = VariantError("the input is not UTF-8")
    with pytest.raises(RequestError, match="refuses this input: the input is not UTF-8") as refused:
        await rig.engine.infer(request())
    assert refused.value.fault is Fault.INVALID
    await rig.repository.close()


def test_a_witness_that_cannot_be_made_counts_as_none() -> None:
    def made() -> Tensors:
        raise MemoryError

    session = SimulatedSession(1.0)
    session.failure = RuntimeError("device lost")
    assert Runner(session, manifest(), made).run(RunPlan([ticket()], 1, [])).by_caller


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_nan_of_either_sign_is_garbage_wherever_it_is_and_no_other_number(dtype: type) -> None:
    halves = np.arange(2**16).astype(np.uint16).view(np.float16)
    for found, is_garbage in ((halves[np.isnan(halves)], True), (halves[~np.isnan(halves)], False)):
        every = found.astype(dtype)
        assert {holds_nan(one) for one in every[:: 1 if is_garbage else 7].reshape(-1, 1)} == {is_garbage}
        assert holds_nan(np.stack([np.zeros(every.size, dtype), every], 1)[:, 1]) == is_garbage


@pytest.mark.asyncio
async def test_requests_are_not_joined_where_the_trial_saw_no_gain() -> None:
    rig = Rig(limits_with(inline_limit_us=0))
    rig.trials["a"] = measured(100.0, row_us=90.0)
    await rig.serve(manifest())
    first = await hold(rig)
    tasks = [ask(rig, value) for value in (1.0, 2.0)]
    await queued(rig, 2)
    rig.session.gate.set()
    await asyncio.gather(first, *tasks)
    assert rig.session.runs == [[0.0], [1.0], [2.0]]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_session_is_touched_by_one_thread_only() -> None:
    rig = await joining_rig()
    for value in range(5):
        await rig.engine.infer(request(float(value)))
    await rig.repository.close()
    assert len(rig.session.threads) == 1
    assert rig.session.closed == 1


@pytest.mark.asyncio
async def test_statistics_count_rows_runs_and_batches() -> None:
    rig = await joining_rig()
    first = await hold(rig)
    tasks = [ask(rig, value, rows=2, ignored_parameters=2) for value in (1.0, 2.0)]
    await queued(rig, 2)
    rig.session.gate.set()
    await asyncio.gather(first, *tasks)
    with pytest.raises(RequestError):
        await rig.engine.infer(InferRequest("m", {}))
    (counted,) = rig.engine.statistics("m", "1")
    assert (counted.inferences, counted.executions) == (5, 2)
    assert (counted.success.count, counted.fail.count, counted.queue.count) == (3, 1, 3)
    assert {size: batch.compute_infer.count for size, batch in counted.batches.items()} == {1: 1, 4: 1}
    assert counted.ignored_parameters == 4
    assert counted.compute_infer.ns > 0
    assert counted.last_inference_ms > 0
    await rig.repository.close()


@pytest.mark.asyncio
async def test_classification_and_chosen_outputs() -> None:
    outputs = (TensorSpec("y", Datatype.FP32, (-1, 3)),)
    inputs = (TensorSpec("x", Datatype.FP32, (-1, 3)),)
    rig = Rig()
    await rig.serve(manifest(inputs=inputs, outputs=outputs, labels=("a", "b")))
    scores = Tensor(Datatype.FP32, np.array([[1.0, 3.0, 2.0]], np.float32))
    wanted = (RequestedOutput("y", classification=2),)
    answer = await rig.engine.infer(InferRequest("m", {"x": scores}, id="7", outputs=wanted))
    assert answer.outputs["y"].datatype is Datatype.BYTES
    assert answer.outputs["y"].array.tolist() == [[b"3.000000:1:b", b"2.000000:2"]]
    assert (answer.model, answer.version, answer.id, answer.variant) == ("m", "1", "7", "a")
    await rig.repository.close()
