"""Requests that stay bytes: what shares a run, how it is counted and cut, and what is not taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.manifest import Preprocess, TensorSpec
from gateway.common.domain.statistics import ServableStatistics
from gateway.common.domain.tensor import Datatype, Tensor, Tensors
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from gateway.serving.engine.settings import QueueSettings, QuotaSettings
from tests.simulators.engine_rig import Rig, X, Y, manifest, quick_rig, request, values
from tests.simulators.sink import RawRecorder

LOOP = threading.main_thread().ident


def counts(counted: ServableStatistics) -> dict[str, Any]:
    """Return all that is counted, without times."""
    durations = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    plain = ("inferences", "executions", "drops", "lanes", "failed_runs", "rejected_runs", "queued", "busy")
    return {
        **{name: getattr(counted, name).count for name in durations},
        **{name: getattr(counted, name) for name in plain},
        "latency": sum(counted.latency.counts),
        "batches": {size: batch.compute_infer.count for size, batch in counted.batches.items()},
    }


def every_duration_is_positive(counted: ServableStatistics) -> None:
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output", "latency"):
        assert getattr(counted, name).ns >= 0
    assert counted.success.ns >= counted.compute_infer.ns // counted.success.count
    assert counted.last_inference_ms > 0


# ---- one run for a pass ----------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_one_pass_is_one_run_counted_as_that_of_ordinary_requests() -> None:
    seen = []
    for raw in (True, False):
        rig = await quick_rig()
        sinks = [RawRecorder(rig.engine), RawRecorder(rig.engine)]
        for value in range(6):
            sink, one = sinks[value % 2], request(value, 2)
            assert sink.ask(one, value) if raw else rig.engine.submit(one, sink, value)
        assert rig.engine.statistics("m")[0].queued == 6
        assert rig.session.runs == sinks[0].told == [], "never within the call"
        await sinks[1].until(3)
        assert rig.session.runs == [[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]]
        assert rig.session.threads == {LOOP}
        for odd, sink in enumerate(sinks):
            assert {token: values(got) for token, got in sink.answers.items()} == {
                v: [v, v] for v in (odd, odd + 2, odd + 4)
            }
            assert [what for what, _ in sink.told] == ["answer"] * 3 + ["flush"]
            assert {(got.model, got.version) for got in sink.answers.values()} == {("m", "1")}
        counted = rig.engine.statistics("m")[0]
        every_duration_is_positive(counted)
        seen.append(counts(counted))
        await rig.repository.close()
    assert seen[0] == seen[1]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("p50_us", "row_us", "rows", "count", "runs"),
    [(200.0, 100.0, 1, 5, [3, 2]), (10.0, 9.5, 1, 3, [1, 1, 1]), (100.0, 50.0, 4, 3, [4, 4, 4])],
    ids=["most rows", "joining does not pay", "a request alone has more"],
)
async def test_runs_are_capped_in_rows(p50_us: float, row_us: float, rows: int, count: int, runs: list[int]) -> None:
    rig = await quick_rig(None, p50_us, row_us)
    sink = RawRecorder(rig.engine)
    assert all(sink.ask(request(value, rows), value) for value in range(count))
    await sink.until(count)
    assert [len(run) for run in rig.session.runs] == runs
    assert {token: values(got) for token, got in sink.answers.items()} == {v: [v] * rows for v in range(count)}
    assert not sink.again
    await rig.repository.close()


async def two_tensors(batched: bool) -> tuple[Rig, Callable[..., InferRequest]]:
    """Return a model of a sum and a difference, and a function that makes its requests.

    The outputs differ in type and in size.
    """
    rows = (-1,) if batched else ()
    model = manifest(
        inputs=(TensorSpec("x", Datatype.FP32, (*rows, 2)), TensorSpec("z", Datatype.INT16, (*rows, 1))),
        outputs=(TensorSpec("sum", Datatype.FP32, (*rows, 2)), TensorSpec("small", Datatype.INT8, (*rows, 1))),
        batch=batched,
    )
    rig = await quick_rig(model)
    run: list[int] = rig.session.runs  # type: ignore[assignment]

    def answered(inputs: Tensors) -> Tensors:
        run.append(len(inputs["x"]) if batched else 1)
        return {"small": inputs["z"].astype(np.int8), "sum": inputs["x"] + inputs["z"]}

    def asked(value: int, names: tuple[str, ...] = (), turned: bool = False) -> InferRequest:
        shape = (1,) if batched else ()
        tensors = {
            "x": Tensor(Datatype.FP32, np.full((*shape, 2), value, np.float32)),
            "z": Tensor(Datatype.INT16, np.full((*shape, 1), -value, np.int16)),
        }
        order = ("z", "x") if turned else ("x", "z")
        outputs = tuple(map(RequestedOutput, names))
        return InferRequest("m", {name: tensors[name] for name in order}, outputs=outputs)

    rig.session.run = answered  # type: ignore[method-assign]
    return rig, asked


@pytest.mark.asyncio
@pytest.mark.parametrize("batched", [True, False])
async def test_several_tensors_in_any_order_and_outputs_that_are_asked_for(batched: bool) -> None:
    rig, asked = await two_tensors(batched)
    sink = RawRecorder(rig.engine)
    wanted: list[tuple[tuple[str, ...], bool]] = [((), False), ((), True), (("small", "sum"), False), (("sum",), False)]
    for kind, (names, turned) in enumerate(wanted):
        for value in range(1, 4):
            assert sink.ask(asked(value, names, turned), (kind, value))
    await sink.until(12)
    assert rig.session.runs == ([3] * 4 if batched else [1] * 12)
    for (kind, value), got in sink.answers.items():
        assert tuple(got.outputs) == (wanted[kind][0] or ("sum", "small"))
        assert {name: out.array.tolist() for name, out in got.outputs.items()}.items() <= {
            "sum": [[0.0, 0.0]] if batched else [0.0, 0.0],
            "small": [[-value]] if batched else [-value],
        }.items()
    assert not sink.again
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(("p50_us", "row_us", "expected"), [(10.0, 1.0, [6, 2]), (12.0, 10.0, [2, 2, 2, 2])])
async def test_large_outputs_are_cut_in_place_and_stay_as_they_were(
    p50_us: float, row_us: float, expected: list[int]
) -> None:
    """Rows so large are joined only where that saves more than a copy costs."""
    large = manifest(inputs=(replace(X, shape=(-1, 5000)),), outputs=(replace(Y, shape=(-1, 5000)),))
    rig = await quick_rig(large, p50_us, row_us)
    sink, runs, lent = RawRecorder(rig.engine), [], np.empty((6, 5000), np.float32)

    def run(inputs: Tensors) -> Tensors:
        runs.append(len(inputs["x"]))
        lent[: runs[-1]] = inputs["x"]
        return {"y": lent[: runs[-1]]}

    rig.session.run = run  # type: ignore[method-assign]
    for value in range(3):
        assert sink.ask(request(value, 2, width=5000), value)
    await sink.until(3)
    assert sink.ask(request(9.0, 2, width=5000), 9)
    await sink.until(4)
    assert runs == expected
    assert all(values(got) == [token] * 10_000 for token, got in sink.answers.items())
    await rig.repository.close()


# ---- not taken -------------------------------------------------------------------------------------------------------
Other = tuple[dict[str, Any], dict[str, Any], InferRequest]


def typed(datatype: Datatype, value: object) -> Other:
    """Return what the model takes, and a request."""
    tensor = Tensor(datatype, np.array([[value]], datatype.dtype))
    return {"inputs": (TensorSpec("x", datatype, (-1, 1)),)}, {}, InferRequest("m", {"x": tensor})


OTHERS: dict[str, Other] = {
    "priority": ({}, {}, request(priority=1)),
    "quotas": ({}, {"quota": (QuotaSettings("*", in_flight=9),)}, request()),
    "latest": ({}, {"queue": (QueueSettings("m", "latest"),)}, request()),
    "classification": ({}, {}, request(outputs=(RequestedOutput("y", 1),))),
    "BYTES": typed(Datatype.BYTES, b"a"),
    "BF16": typed(Datatype.BF16, 1.0),
    "BOOL": typed(Datatype.BOOL, True),
    "BOOL out": ({"outputs": (replace(Y, datatype=Datatype.BOOL),)}, {}, request()),
    "images": (
        {"inputs": (TensorSpec("x", Datatype.FP32, (-1, 1, 2, 2), preprocess=Preprocess(("png",))),)},
        {},
        InferRequest("m", {"x": Tensor(Datatype.BYTES, np.array([b"png"], object))}),
    ),
    "left out": ({"inputs": (X, TensorSpec("mask", Datatype.UINT8, (-1, 2), default=1.0))}, {}, request()),
    "another model": ({}, {}, request(model="n")),
    "too many rows": ({}, {}, request(rows=10_000)),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", OTHERS)
async def test_requests_that_something_distinguishes_are_not_taken(name: str) -> None:
    model, changes, asked = OTHERS[name]
    rig = await quick_rig(manifest(**model), **changes)
    assert rig.engine.raw_batch(asked) is None
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_the_worker_runs_is_not_taken() -> None:
    rig = await quick_rig(None, 200.0, 10.0)
    sink = RawRecorder(rig.engine)
    small = rig.engine.raw_batch(request())
    assert small is not None
    assert not sink.ask(request(1.0, 40), 1.0), "too long for the loop"
    rig.session.gate.clear()
    await rig.begun()
    assert rig.engine.raw_batch(request()) is None
    assert not sink.offer(small, request(2.0), 2.0), "the batch was closed when the worker took over"
    assert not sink.ask(request(3.0), 3.0)
    rig.session.gate.set()
    await sink.until(2)
    await rig.repository.close()
    slow = await quick_rig(None, 1000.0)
    assert slow.engine.raw_batch(request()) is None, "no run is short enough for the loop"
    await slow.repository.close()


@pytest.mark.asyncio
async def test_nothing_is_taken_past_the_queue_or_beyond_the_limit() -> None:
    rig = await quick_rig(None, 100.0, 50.0)
    sink = RawRecorder(rig.engine)
    batch = rig.engine.raw_batch(request())
    rig.engine.submit(request(7.0), sink, 7.0)
    assert not sink.offer(batch, request(8.0), 8.0), "the one before it waits in the queue"
    await sink.until(1)
    taken = [sink.offer(batch, request(value), -value) for value in range(12)]
    assert taken == [True] * 10 + [False] * 2, "a thousand microseconds of runs"
    await sink.until(10)
    assert sink.offer(batch, request(13.0), 13)
    late_ns = time.monotonic_ns()
    assert batch is not None
    assert not batch.add(sink, 14, [b"1234"], late_ns, late_ns), "its deadline has passed, and not that of the others"
    await sink.until(11)
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("route", [({"1": 50, "2": 50}, ""), ({"1": 100}, "2")], ids=["shares", "shadow"])
async def test_each_request_of_a_split_model_has_its_turn(route: tuple[dict[str, int], str]) -> None:
    rig = await quick_rig()
    await rig.stage(manifest(version="2", variants=("b",)))
    sink, before = RawRecorder(rig.engine), rig.engine.raw_batch(request())
    assert sink.offer(before, request(), 1)
    rig.repository.route("m", route[0], shadow=route[1], lease_s=60.0)
    assert rig.engine.raw_batch(request()) is None
    assert not sink.offer(before, request(), 2)
    await sink.until(1)
    assert sink.again == [1]
    assert sum(counted.success.count for counted in rig.engine.statistics("m")) == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_responses_with_the_same_shapes_have_the_same_form() -> None:
    rig, forms = await quick_rig(), []
    sink = RawRecorder(rig.engine)
    answered = sink.answer_raw
    sink.answer_raw = lambda token, form, contents: (forms.append(form), answered(token, form, contents))[1]  # type: ignore[method-assign]
    for token, rows in enumerate((1, 2, 1, 2)):
        assert sink.ask(request(float(token), rows), token)
        await sink.until(token + 1)
    assert forms[0] is forms[2]
    assert forms[1] is forms[3]
    assert forms[0] is not forms[1]
    await rig.repository.close()
