"""Models with sequences: the fold of each sequence, its order, failures, limits, swaps, and steps of pipelines."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.manifest import ControlInput, SequenceBatching, StateTensors, StreamLimits, TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor, Tensors
from gateway.serving.domain.infer import END, OPENS, START, InferRequest, SequenceState
from gateway.serving.engine.engine import Futures
from gateway.serving.engine.sequences import SequenceRequest, SequenceServable
from gateway.serving.engine.streams import STREAM_BYTES, Streams
from gateway.serving.engine.ticket import Ticket
from tests.simulators.engine_rig import release, variant
from tests.simulators.pipelines import PipelineRig, asked, spec

KIND = {"start": Datatype.INT32, "end": Datatype.BOOL, "ready": Datatype.FP32, "corrid": Datatype.INT64}
CONTROLS = tuple(ControlInput(kind.upper(), kind) for kind in KIND)
SUMS = SequenceBatching((StateTensors("TOTAL", "NEXT", 100.0),), CONTROLS)


def total(inputs: Tensors) -> Tensors:
    """Add x to the state; an infinite x fails the run."""
    if np.isinf(inputs["x"]).any():
        raise ValueError("overflow")
    made = inputs["TOTAL"] + inputs["x"]
    seen = np.concatenate([inputs[kind.upper()].astype(np.float32) for kind in KIND], axis=1)
    return {"sum": made, "NEXT": made, "seen": seen}


def add_sums(rig: PipelineRig, name: str = "sums", sequence: SequenceBatching = SUMS, **changes: Any) -> None:
    """Add a model whose state, 100 at first, is the sum of its inputs."""
    controls = tuple(TensorSpec(kind.upper(), datatype, (-1, 1)) for kind, datatype in KIND.items())
    inputs = (spec("x", 1), spec("TOTAL", 1), *controls)
    rig.model(name, total, inputs, (spec("sum", 1), spec("NEXT", 1), spec("seen", 4)), sequence=sequence, **changes)


async def sums(slow: bool = False, sequence: SequenceBatching = SUMS, **changes: Any) -> PipelineRig:
    rig = PipelineRig(slow=("sums",) if slow else (), **changes)
    add_sums(rig, sequence=sequence)
    await rig.begin()
    return rig


def number(value: float, place: int = 0, stream: str = "7", **changes: Any) -> InferRequest:
    """Return a request of a sequence."""
    return asked({"x": np.array([[value]], np.float32)}, name="sums", place=place, stream=stream, **changes)


async def add(rig: PipelineRig, value: float, place: int = 0, stream: str = "7", **changes: Any) -> float:
    """Return the sum after a request."""
    response = await rig.engine.infer(number(value, place, stream, **changes))
    return float(response.outputs["sum"].array[0, 0])


def target(rig: PipelineRig, version: str = "") -> SequenceServable:
    found = rig.registry.find("sums", version)
    assert isinstance(found, SequenceServable)
    return found


async def refused(rig: PipelineRig, *args: Any, **changes: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await add(rig, *args, **changes)
    return caught.value


@pytest.mark.asyncio
async def test_a_sequence_is_a_fold_with_its_controls() -> None:
    rig = await sums()
    first = await rig.engine.infer(number(1, START, "1000"))
    assert list(first.outputs) == ["sum", "seen"]  # the state is no output of the caller
    assert first.outputs["seen"].array.tolist() == [[1, 0, 1, 1000]]
    assert [await add(rig, 2, stream="1000"), await add(rig, 3, START, "2")] == [103, 103]
    last = await rig.engine.infer(number(4, END, "1000"))
    assert (last.outputs["sum"].array.item(), last.outputs["seen"].array.tolist()) == (107, [[0, 1, 1, 1000]])
    assert "must specify the START flag" in (await refused(rig, 5, stream="1000")).message
    assert await add(rig, 1, START | END, "2") == 101  # START begins anew
    assert len(target(rig).streams) == 0


@pytest.mark.asyncio
async def test_callers_see_neither_states_nor_controls() -> None:
    rig = await sums()
    seen = rig.engine.describe("sums")
    assert [[each.name for each in side] for side in (seen.inputs, seen.outputs)] == [["x"], ["sum", "seen"]]
    for inputs, outputs in (({"TOTAL": 1}, ()), ({"START": 1}, ()), ({}, ("NEXT",))):
        request = number(1, START)
        request.inputs |= {name: Tensor(Datatype.FP32, np.ones((1, 1), np.float32)) for name in inputs}
        request = replace(request, outputs=asked({}, *outputs).outputs)
        with pytest.raises(RequestError, match="unexpected inference"):
            await rig.engine.infer(request)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stream": ""}, "inference request to model 'sums' must specify a non-zero or non-empty correlation ID"),
        ({"stream": "8"}, "inference request for sequence 8 to model 'sums' must specify the START flag on the first"),
        ({"stream": "cam"}, "needs a sequence_id that is a number of INT64, not 'cam'"),
        ({"stream": str(2**63)}, "needs a sequence_id that is a number of INT64"),
    ],
)
async def test_what_belongs_to_no_sequence_is_refused_in_tritons_words(changes: Any, words: str) -> None:
    rig = await sums()
    error = await refused(rig, 1, **changes)
    assert (error.fault, words in error.message) == (Fault.INVALID, True), error.message
    assert (len(target(rig).streams), target(rig).busy, target(rig).statistics.fail.count) == (0, False, 1)
    two = asked({"x": np.ones((2, 1), np.float32)}, name="sums", place=START, stream="7")
    with pytest.raises(RequestError, match="must specify batch-size 1 due to requirements of sequence batcher"):
        await rig.engine.infer(two)


@pytest.mark.asyncio
async def test_callers_have_sequences_of_their_own() -> None:
    rig = await sums()
    assert await add(rig, 1, START, caller="a") == 101
    assert "START flag" in (await refused(rig, 1, caller="b")).message
    assert [await add(rig, 5, START, caller="b"), await add(rig, 1, caller="a")] == [105, 102]


@pytest.mark.asyncio
async def test_a_message_of_a_sensor_begins_a_sequence_where_there_is_none() -> None:
    rig = await sums()
    first = await rig.engine.infer(number(1, OPENS))
    assert first.outputs["seen"].array.tolist() == [[1, 0, 1, 7]]
    assert [await add(rig, 2, OPENS), await add(rig, 3, OPENS | END), await add(rig, 1, OPENS)] == [103, 106, 101]


@pytest.mark.asyncio
async def test_requests_of_different_sequences_share_a_run_and_keep_their_rows() -> None:
    rig = await sums()
    answers = await asyncio.gather(*(add(rig, value, START, str(value)) for value in range(1, 9)))
    again = await asyncio.gather(*(add(rig, value, 0, str(value)) for value in range(1, 9)))
    assert answers == [100 + value for value in range(1, 9)]
    assert again == [100 + 2 * value for value in range(1, 9)]
    assert rig.session_of("sums").rows_run == [8, 8]
    states = [stream.states["state"] for stream in target(rig).streams._idle.values()]
    assert all(array.base is None for state in states for array in state.tensors.values())


@pytest.mark.asyncio
@pytest.mark.parametrize("slow", [False, True])
async def test_requests_of_one_sequence_run_in_order_of_arrival(slow: bool) -> None:
    rig = await sums(slow)
    places = [START, *[0] * 8, END]
    found = await asyncio.gather(*(add(rig, value, place) for value, place in enumerate(places)))
    assert found == [100 + sum(range(value + 1)) for value in range(10)]
    assert rig.session_of("sums").rows_run == [1] * 10


@pytest.mark.asyncio
async def test_a_failed_run_leaves_the_state_as_before_it() -> None:
    rig = await sums()
    assert await add(rig, 1, START) == 101
    error = await refused(rig, np.inf, END)
    assert "overflow" in error.message
    assert [await add(rig, 2), await add(rig, 2, END)] == [103, 105]
    assert "overflow" in (await refused(rig, np.inf, START)).message
    assert len(target(rig).streams) == 0  # none began


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_request_that_ends_while_it_waits_or_runs_changes_nothing(how: str) -> None:
    rig = await sums(slow=True)
    assert await add(rig, 1, START) == 101
    session, loop = rig.session_of("sums"), asyncio.get_running_loop()
    session.gate.clear()
    runs = loop.create_task(add(rig, 10))
    late = {"deadline_ns": int(loop.time() * 1e9) + 50_000_000} if how == "deadline" else {}
    waits = loop.create_task(add(rig, 20, **late))
    after = loop.create_task(add(rig, 2))
    await asyncio.sleep(0)
    while not session.started.acquire(blocking=False):
        await asyncio.sleep(0.001)
    if how == "cancel":
        for task in (waits, runs):
            task.cancel()
    found = await asyncio.gather(waits, return_exceptions=True)
    session.gate.set()
    if how == "cancel":
        assert isinstance(found[0], asyncio.CancelledError)
        assert await after == 103
        assert target(rig).statistics.cancelled.count == 2
    else:
        assert isinstance(found[0], RequestError)
        assert (found[0].fault, target(rig).statistics.drops) == (Fault.EXPIRED, {"expired": 1})
        assert (await runs, await after) == (111, 113)
    assert not target(rig).busy


@pytest.mark.asyncio
async def test_a_full_queue_refuses_and_half_of_it_is_for_one_sequence() -> None:
    rig = await sums(slow=True, queue_requests=4)
    await add(rig, 0, START)
    rig.session_of("sums").gate.clear()
    tasks = [asyncio.ensure_future(add(rig, 1)) for _ in range(2)]
    await asyncio.sleep(0)
    assert (await refused(rig, 1)).fault is Fault.OVERLOADED
    tasks += [asyncio.ensure_future(add(rig, 1, START, stream)) for stream in "89"]
    await asyncio.sleep(0)
    error = await refused(rig, 1, START, "10")
    assert "as many requests under way as it may" in error.message
    newcomer = asyncio.ensure_future(add(rig, 5, START, "1", caller="other"))
    await asyncio.sleep(0)
    rig.session_of("sums").gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert (found[:3], await newcomer) == ([101, 102, 101], 105)
    assert isinstance(found[3], RequestError)
    assert (target(rig).statistics.drops["share"], target(rig).statistics.cancelled.count) == (1, 0)
    assert target(rig).statistics.fail.count == 3


@pytest.mark.asyncio
async def test_an_idle_sequence_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, now = await sums(sequence=replace(SUMS, limits=StreamLimits(idle_s=5.0))), [0.0]
    monkeypatch.setattr("gateway.serving.engine.streams.time.monotonic", lambda: now[0])
    assert await add(rig, 1, START) == 101
    now[0] = 4.9
    assert await add(rig, 1) == 102
    now[0] = 10.0
    assert "START flag" in (await refused(rig, 1)).message
    assert (len(target(rig).streams), target(rig).streams._size) == (0, 0)


@pytest.mark.asyncio
async def test_the_longest_idle_sequence_is_forgotten_beyond_the_limit() -> None:
    rig = await sums(sequence=replace(SUMS, limits=StreamLimits(keys=2)))
    for stream in "123":
        await add(rig, 1, START, stream)
    assert [await add(rig, 1, 0, "3"), await add(rig, 1, 0, "2")] == [102, 102]
    assert "START flag" in (await refused(rig, 1, 0, "1")).message


def test_a_state_that_grows_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        rig = PipelineRig()
        grows = SequenceBatching((StateTensors("past", "next"),), ())
        inputs = spec("x", 1), TensorSpec("past", Datatype.FP32, (-1, -1))

        def grow(given: Tensors) -> Tensors:
            past = np.concatenate((given["past"], given["x"]), axis=1)
            return {"n": np.full((len(past), 1), past.shape[1], np.float32), "next": past}

        rig.model("sums", grow, inputs, (spec("n", 1), TensorSpec("next", Datatype.FP32, (-1, -1))), sequence=grows)
        await rig.begin()
        found = [(await rig.engine.infer(number(1, place))).outputs["n"].array.item() for place in (START, 0, 0)]
        assert found == [2, 3, 4]  # an open size is 1 at first, as in Triton
        monkeypatch.setattr("gateway.serving.engine.sequences.ONE_STATE_BYTES", 16)
        for _ in range(2):
            with pytest.raises(RequestError, match="its state has 20 bytes with 'next', at most 16 are kept") as caught:
                await rig.engine.infer(number(1))
            assert caught.value.fault is Fault.TOO_LARGE

    asyncio.run(run())


@pytest.mark.asyncio
async def test_the_states_of_a_sequence_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = PipelineRig()
    two = SequenceBatching((StateTensors("a", "c"), StateTensors("b", "d")), ())
    tensors = tuple(spec(name, 4) for name in "abcd")

    def run(given: Tensors) -> Tensors:
        return {"y": given["x"], "c": given["a"], "d": given["b"]}

    rig.model("sums", run, (spec("x", 1), *tensors[:2]), (spec("y", 1), *tensors[2:]), sequence=two)
    await rig.begin()
    await rig.engine.infer(number(1, START))
    monkeypatch.setattr("gateway.serving.engine.sequences.ONE_STATE_BYTES", 31)
    with pytest.raises(RequestError, match="its state has 32 bytes with 'd', at most 31 are kept"):
        await rig.engine.infer(number(1))


@pytest.mark.asyncio
async def test_states_are_bounded_while_all_sequences_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await sums(slow=True)
    await add(rig, 1, START, "0")
    one = target(rig).streams._size
    monkeypatch.setattr("gateway.serving.engine.streams.STATE_LIMIT_BYTES", 2 * one + 3 * STREAM_BYTES)
    rig.session_of("sums").gate.clear()
    tasks = [asyncio.ensure_future(add(rig, 1, START, str(each // 2))) for each in range(2, 10)]
    await asyncio.sleep(0)
    rig.session_of("sums").gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [each.fault for each in found if isinstance(each, RequestError)]
    assert faults
    assert set(faults) == {Fault.OVERLOADED}
    assert 101.0 in found
    assert len(faults) < len(found) - 1
    assert target(rig).streams._size <= 2 * one + 3 * STREAM_BYTES
    assert not target(rig).busy
    assert await add(rig, 2, START, "1") == 102  # those that are idle make room


@pytest.mark.asyncio
async def test_a_state_that_is_larger_than_all_may_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await sums()
    monkeypatch.setattr("gateway.serving.engine.streams.STATE_LIMIT_BYTES", STREAM_BYTES)
    error = await refused(rig, 1, START)
    assert (error.fault, len(target(rig).streams), target(rig).streams._size) == (Fault.TOO_LARGE, 0, 0)


@pytest.mark.asyncio
async def test_a_refused_request_makes_no_sequence_be_forgotten() -> None:
    rig = await sums(sequence=replace(SUMS, limits=StreamLimits(keys=1)))
    assert await add(rig, 1, START, "1") == 101
    for stream in "23":
        assert "START flag" in (await refused(rig, 1, 0, stream)).message
    assert await add(rig, 1, 0, "1") == 102


@pytest.mark.asyncio
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_run_that_is_ended_leaves_the_state_as_before_it(hangs: bool) -> None:
    rig = await sums(slow=True, run_limit_s=0.2, run_end_s=0.01 if hangs else 60.0)
    assert await add(rig, 1, START) == 101
    session, old = rig.session_of("sums"), target(rig)
    session.gate.clear()
    session.cancels = not hangs
    error = await refused(rig, 10)
    assert error.fault is Fault.EXPIRED
    assert "[limits] run_limit_s" in error.message
    while hangs and rig.registry.serving("sums", "1") in {None, old}:  # it is opened again
        await asyncio.sleep(0.001)
    session.failure = None
    session.gate.set()
    assert await add(rig, 2) == 103
    assert (old.statistics.hung_runs, old.statistics.overlong_runs) == ((1, 1) if hangs else (0, 1))
    await rig.repository.close()


# ---- swaps -----------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("keeps", "version", "digest", "survives"),
    [
        ((False, False), "1", "d1", True),  # the same release, opened again
        ((False, False), "1", "d2", False),
        ((False, False), "2", "d2", False),
        ((True, True), "2", "d2", True),
        ((True, False), "2", "d2", False),
    ],
)
async def test_states_survive_a_swap_where_the_release_says_so(
    keeps: tuple[bool, bool], version: str, digest: str, survives: bool
) -> None:
    rig = await sums(sequence=replace(SUMS, keep_state=keeps[0]))
    assert await add(rig, 1, START) == 101
    old = target(rig)
    made = replace(rig.manifests["sums"], version=version, sequence=replace(SUMS, keep_state=keeps[1]))
    if digest == "d1":
        rig.repository._replace_later(old, True)
        while rig.registry.serving("sums", "1") in {None, old}:
            await asyncio.sleep(0)
    else:
        await rig.repository.synchronise([release(made, digest)])
    assert target(rig) is not old
    del old
    if survives:
        assert await add(rig, 2) == 103
    else:
        assert "START flag" in (await refused(rig, 2)).message


@pytest.mark.asyncio
async def test_requests_that_wait_are_answered_before_an_unload() -> None:
    rig = await sums(slow=True)
    rig.session_of("sums").gate.clear()
    tasks = [asyncio.ensure_future(add(rig, 1, place)) for place in (START, 0, 0)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(rig.repository.synchronise([]))
    await asyncio.sleep(0.01)
    for runner in rig.runtime.sessions:
        runner.gate.set()
    assert await asyncio.gather(*tasks) == [101, 102, 103]
    await closing


# ---- a simple model --------------------------------------------------------------------------------------------------
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),  # caller
        st.sampled_from("123"),  # sequence
        st.sampled_from([0, 0, START, END, START | END]),
        st.sampled_from([1.0, 2.0, np.inf]),
        st.booleans(),  # whether the next request comes in the same pass of the loop
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, slow=st.booleans())
def test_random_interleavings_answer_as_a_fold_of_each_sequence(steps: list[Any], slow: bool) -> None:
    async def run() -> None:
        rig, states, tasks = await sums(slow), dict[tuple[str, str], float](), list[tuple[Any, Any]]()
        for caller, stream, place, value, together in steps:
            key = caller, stream
            before = 100.0 if place & START else states.get(key)
            if before is None:
                wanted: Any = "START flag"
            elif np.isinf(value):
                wanted = "overflow"
            else:
                wanted = states[key] = before + value
                if place & END:
                    del states[key]
            task = asyncio.ensure_future(add(rig, value, place, stream, caller=caller))
            tasks.append((task, wanted))
            if not together:
                await asyncio.gather(*(each for each, _ in tasks), return_exceptions=True)
        for task, wanted in tasks:
            found = (await asyncio.gather(task, return_exceptions=True))[0]
            assert found == wanted if isinstance(wanted, float) else wanted in str(found)
        assert target(rig).streams._idle.keys() == states.keys()
        assert (target(rig).busy, target(rig).streams._busy) == (False, {})
        await rig.repository.close()

    asyncio.run(run())


@pytest.mark.asyncio
async def test_ten_thousand_sequences_have_the_size_that_is_counted() -> None:
    kept, states = Streams(StreamLimits(10_000, 86_400.0)), np.zeros((1, 32), np.float32)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for caller in range(10):
        for name in range(1_100):
            entry: Any = SimpleNamespace()
            entry.ticket = SimpleNamespace(request=asked({}, caller=f"caller {caller}", stream=str(1_000_000 + name)))
            stream = kept.join(entry)
            kept.keep(stream, {"state": SequenceState(("m", "d"), {"h": states.copy()})})
            kept.leave(stream, entry)
            del entry
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(kept) == 10_000
    assert used <= kept._size <= 2**28 / 10  # a hundred thousand are within the limit


class Counting(Futures):
    """Sink that counts flushes."""

    flushed = 0

    def flush(self) -> None:
        self.flushed += 1


@pytest.mark.asyncio
async def test_a_run_with_answers_for_several_requests_of_a_sink_flushes_it_once() -> None:
    rig, sink, loop = await sums(), Counting(), asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(5)]
    for place, future in enumerate(futures):
        rig.engine.submit(number(1, START, str(place + 1)), sink, future)
    await asyncio.gather(*futures)
    assert (sink.flushed, rig.session_of("sums").rows_run) == (1, [5])


@pytest.mark.asyncio
async def test_golden_rows_are_replayed_and_requests_of_callers_are_not() -> None:
    rig, ended = await sums(), asyncio.get_running_loop().create_future()
    one = Tensor(Datatype.FP32, np.ones((1, 1), np.float32))
    assert not target(rig).ask_beside({"x": one}, None, ended.set_result)
    controls = {spec.name: spec.datatype for spec in target(rig).declared.inputs}
    row = {name: Tensor(kind, np.ones((1, 1), kind.dtype)) for name, kind in controls.items()}
    assert target(rig).ask_beside(row, None, ended.set_result)
    assert (await ended).outputs["NEXT"].tolist() == [[2]]


@pytest.mark.asyncio
async def test_a_route_gives_a_sequence_to_one_version() -> None:
    rig = await sums()
    made = rig.manifests["sums"]
    await rig.repository.synchronise([release(made), release(replace(made, version="2"), "d2")])
    rig.repository.route("sums", {"1": 50, "2": 50}, lease_s=60.0)
    for place in (START, 0, 0):
        found = await asyncio.gather(*(add(rig, 1, place, str(each)) for each in range(1, 17)))
        assert len(set(found)) == 1
    sizes = [len(target(rig, version).streams) for version in "12"]
    assert (sum(sizes), min(sizes) > 0) == (16, True)
    rig.repository._leases.close()


@pytest.mark.asyncio
async def test_a_shadow_with_sequences_says_why_it_is_not_compared() -> None:
    rig = await sums()
    made = rig.manifests["sums"]
    await rig.repository.synchronise([release(made), release(replace(made, version="2"), "d2")])
    rig.repository.route("sums", {"1": 100}, shadow="2", lease_s=60.0)
    assert await add(rig, 1, START) == 101
    counted = target(rig, "2").statistics.shadow
    while not counted.not_compared:
        await asyncio.sleep(0)
    assert counted.not_compared == {"sequence": 1}
    rig.repository._leases.close()


# ---- memory ----------------------------------------------------------------------------------------------------------
class Words:
    """Sink that keeps how each request ended, and neither answers nor errors."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def answer(self, token: Any, response: Any) -> None:
        self.found.append("answered")

    def refuse(self, token: Any, error: RequestError) -> None:
        self.found.append(error.fault.value)

    def flush(self) -> None:
        """Implement `Sink.flush`."""


def left() -> int:
    """Return how many requests and states there are."""
    kinds = SequenceRequest, Ticket, InferRequest, SequenceState
    return sum(isinstance(each, kinds) for each in gc.get_objects())


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["answered", "failed", "cancelled", "displaced"])
async def test_the_memory_of_a_request_and_its_state_waits_for_no_search_for_garbage(how: str) -> None:
    rig = await sums(slow=how in {"cancelled", "displaced"}, queue_requests=4)
    session, words = rig.session_of("sums"), Words()
    await add(rig, 1, START, "1")

    def submit(value: float, stream: str, **changes: Any) -> Any:
        return rig.engine.submit(number(value, START, stream, **changes), words, None)

    async def once() -> None:
        session.gate.clear() if how in {"cancelled", "displaced"} else None
        late = {"deadline_ns": time.monotonic_ns() + 10**12}
        pending = [submit(np.inf if how == "failed" else 1, stream, **late) for stream in "1133"]
        if how == "displaced":
            submit(1, "2", caller="other")
            await asyncio.sleep(0)
        elif how == "cancelled":
            for each in pending:
                each.cancel()
        del pending
        session.gate.set()
        while target(rig).busy:
            await asyncio.sleep(0.001)
        await add(rig, 1, START, "1")
        for caller, stream in (("other", "2"), ("", "3")):
            await add(rig, 1, START, stream, caller=caller)

    await once()
    gc.collect()
    before = left()
    gc.disable()
    try:
        for _ in range(10):
            await once()
        assert left() < before + 10  # a thread may hold its last run
    finally:
        gc.enable()
    ends = {"answered": ["answered"] * 44, "failed": ["INVALID"] * 44, "cancelled": list[str]()}
    assert words.found == ends.get(how, ["OVERLOADED", *["answered"] * 4] * 11), words.found


@pytest.mark.asyncio
async def test_a_failover_repeats_no_request_of_a_sequence_and_the_next_one_goes_on_with_its_state() -> None:
    rig = PipelineRig()
    add_sums(rig)
    rig.manifests["sums"] = replace(rig.manifests["sums"], variants=(variant("sums"), variant("b")))
    rig.trials["b"] = rig.trials["sums"]
    await rig.begin()
    assert await add(rig, 1, START) == 101
    rig.session.function = _fail  # type: ignore[attr-defined]
    for _ in range(3):
        assert (await refused(rig, 2)).fault is Fault.INTERNAL
    assert await add(rig, 5) == 106
    assert rig.engine.placement("sums").variant == "b"
    await rig.repository.close()


def _fail(_: Tensors) -> Tensors:
    raise VariantError("No such device")
