"""Raw requests that their batch does not answer: they come back, and end once with their own answer or refusal."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault
from gateway.common.domain.events import LoopLeft, RunFailed
from gateway.common.domain.tensor import Array, Tensors
from tests.simulators.engine_rig import Rig, X, manifest, measured, quick_rig, request, values
from tests.simulators.examples import examples
from tests.simulators.session import SimulatedSession
from tests.simulators.sink import RawRecorder


def exclusive(session: SimulatedSession) -> None:
    """Let each run fail from now on if another one is under way in the same session."""
    session.run = partial(_alone, session.run, threading.Lock())  # type: ignore[method-assign]


def _alone(run: Callable[[Tensors], Tensors], lock: Any, inputs: Tensors) -> Tensors:
    assert lock.acquire(blocking=False), "two threads use the session"
    try:
        return run(inputs)
    finally:
        lock.release()


def refusals(sink: RawRecorder) -> dict[Any, Fault]:
    return {token: error.fault for token, error in sink.errors.items()}


@pytest.mark.asyncio
async def test_a_deadline_that_passed_and_bad_data_are_refused_and_flushed() -> None:
    rig = await quick_rig(manifest(inputs=(replace(X, finite=True),)))
    for culprit, fault in (
        (request(1.0, deadline_ns=time.monotonic_ns()), Fault.EXPIRED),
        (request(float("nan")), Fault.INVALID),
    ):
        sink = RawRecorder(rig.engine)
        batch = rig.engine.raw_batch(request())
        assert all(sink.offer(batch, request(value), value) for value in (1.0, 2.0))
        assert sink.offer(batch, culprit, "culprit")
        assert sink.offer(batch, request(3.0, deadline_ns=time.monotonic_ns() + 10**12), 3.0)
        await sink.until(4)
        assert sink.again == [1.0, 2.0, "culprit", 3.0]
        assert refusals(sink) == {"culprit": fault}
        assert {token: values(got) for token, got in sink.answers.items()} == {v: [v] for v in (1.0, 2.0, 3.0)}
        assert (
            sink.told.index(("refuse", "culprit")) < sink.told.index(("flush", None)) < sink.told.index(("answer", 1.0))
        )
        assert sink.offer(batch, request(4.0), 4.0), "the next pass begins without that deadline"
        await sink.until(5)
        assert len(sink.again) == 4
    assert [len(run) for run in rig.session.runs] == [3, 1, 3, 1]
    assert rig.engine.statistics("m")[0].drops == {"expired": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_only_the_culprit_of_a_run_that_fails_is_refused() -> None:
    rig = await quick_rig()
    sink, rig.session.failure = RawRecorder(rig.engine), RuntimeError("broken")
    assert sink.ask(request(4.0), 4.0)
    await sink.until(1)
    rig.session.failure, rig.session.rejected = None, 2.0
    assert all(sink.ask(request(value), value) for value in (1.0, 2.0, 3.0))
    await sink.until(4)
    assert refusals(sink) == {4.0: Fault.INTERNAL, 2.0: Fault.INVALID}
    assert {token: values(got) for token, got in sink.answers.items()} == {1.0: [1.0], 3.0: [3.0]}
    assert sink.again == [4.0, 1.0, 2.0, 3.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_joined_run_with_too_many_rows_is_nobodys_answer() -> None:
    rig = await quick_rig()
    sink, rig.session.extra_rows = RawRecorder(rig.engine), 1
    batch = rig.engine.raw_batch(request())
    assert all(sink.offer(batch, request(value), value) for value in (1.0, 2.0))
    await sink.until(2)
    assert {token: values(got) for token, got in sink.answers.items()} == {1.0: [1.0], 2.0: [2.0]}
    assert not sink.offer(batch, request(3.0), 3.0), "joining stopped: another cost, another batch"
    assert all(sink.ask(request(value), value) for value in (3.0, 4.0))
    await sink.until(4)
    assert [len(run) for run in rig.session.runs[-2:]] == [1, 1]
    assert sink.again == [1.0, 2.0]
    await rig.repository.close()


IRREGULAR: dict[str, Callable[[Array], Tensors]] = {
    "another type": lambda x: {"y": x.astype(np.float64)},
    "empty": lambda x: {"y": x[:, :0]},
    "none": lambda _: {},
}


@pytest.mark.asyncio
@pytest.mark.parametrize("lends", [True, False])
@pytest.mark.parametrize("name", IRREGULAR)
@pytest.mark.parametrize("count", [1, 2])
async def test_outputs_that_are_not_as_the_manifest_says(name: str, lends: bool, count: int) -> None:
    rig = Rig()
    rig.trials["a"], rig.runtime.lends, rig.witness = measured(10.0, 1.0), lends, None
    await rig.serve(manifest())
    rig.session.run = lambda inputs: IRREGULAR[name](inputs["x"])  # type: ignore[method-assign]
    sink = RawRecorder(rig.engine)
    assert all(sink.ask(request(value), value) for value in range(count))
    await sink.until(count)
    assert sink.again == list(range(count))
    if name == "none":
        assert len(sink.errors) == count
    else:
        assert rig.engine.raw_batch(request()) is None, "its answers have no form"
        assert {token: values(got) for token, got in sink.answers.items()} == {
            value: [value] if name == "another type" else [] for value in range(count)
        }
    rig.session.run = lambda inputs: {"y": inputs["x"]}  # type: ignore[method-assign]
    sink.ask(request(9.0), 9.0)
    await sink.until(count + 1)
    assert values(sink.answers[9.0]) == [9.0], "the model goes on"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_sink_with_a_defect_does_not_harm_the_others() -> None:
    rig = await quick_rig()
    for culprit in (request(2.0), request(2.0, deadline_ns=1)):
        good, bad = RawRecorder(rig.engine), RawRecorder(rig.engine)
        batch = rig.engine.raw_batch(request())
        bad.defect = ZeroDivisionError()
        assert bad.offer(batch, culprit, 2.0)
        assert good.offer(batch, request(1.0), 1.0)
        await good.until(1)
        assert values(good.answers[1.0]) == [1.0]
    told = [event.reason.split(":")[0] for event in rig.told(RunFailed) if isinstance(event, RunFailed)]
    assert told == ["answering", "flushing", "submitting again", "flushing"]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("change", ["new version", "same version", "unload", "forget"])
async def test_a_model_that_changes_while_requests_wait(change: str) -> None:
    rig = await quick_rig()
    rig.runtime.factors["b"] = 10.0
    sink, batch = RawRecorder(rig.engine), rig.engine.raw_batch(request())
    rig.engine.hold()
    assert all(sink.offer(batch, request(value), value) for value in (1.0, 2.0))
    assert rig.registry.find("m").pending == 2  # type: ignore[union-attr]
    if change == "unload":
        await rig.repository.unload("m")
    elif change == "forget":
        await rig.serve()
    else:
        await rig.serve(manifest(version="2" if change == "new version" else "1", variants=("b",)), digest="d2")
    assert not sink.offer(batch, request(3.0), 3.0)
    rig.engine.release()
    await sink.until(2)
    assert sink.again == [1.0, 2.0]
    if change in {"unload", "forget"}:
        assert refusals(sink) == dict.fromkeys((1.0, 2.0), Fault.UNAVAILABLE)
        assert rig.engine.raw_batch(request()) is None
    else:
        assert {token: values(got) for token, got in sink.answers.items()} == {1.0: [10.0], 2.0: [20.0]}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_runs_that_overran_send_the_rest_to_the_worker() -> None:
    rig = await quick_rig(None, 200.0, 100.0)
    exclusive(rig.session)
    sink, rig.session.burn_s = RawRecorder(rig.engine), 0.02
    for first in (0, 5):
        assert all(sink.ask(request(value), value) for value in range(first, first + 5))
        await sink.until(first + 5)
    assert (len(rig.told(LoopLeft)), sink.again) == (1, [8, 9])
    assert {token: values(got) for token, got in sink.answers.items()} == {value: [value] for value in range(10)}
    assert rig.engine.statistics("m")[0].lanes == {"inline": 3, "worker": 1}
    assert rig.engine.raw_batch(request()) is None
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_runs_cost_is_learned() -> None:
    rig = await quick_rig()
    sink, rig.session.burn_s = RawRecorder(rig.engine), 0.0012
    batch = rig.engine.raw_batch(request())
    while sink.offer(batch, request(), token := len(sink.requests)):
        await sink.until(token + 1)
        assert token < 30
    assert rig.engine.raw_batch(request()) is None
    assert not rig.told(LoopLeft)
    assert not sink.again
    await rig.repository.close()


@pytest.mark.asyncio
async def test_requests_wait_for_a_run_beside_them() -> None:
    rig = await quick_rig()
    exclusive(rig.session)
    servable, ended = rig.registry.find("m"), asyncio.Event()
    sink, batch = RawRecorder(rig.engine), rig.engine.raw_batch(request())
    assert sink.offer(batch, request(1.0), 1.0)
    assert not servable.ask_beside(request(0.0).inputs, None, lambda _: None), "one waits"  # type: ignore[union-attr]
    await sink.until(1)
    rig.session.gate.clear()
    assert servable.ask_beside(request(0.0).inputs, None, lambda _: ended.set())  # type: ignore[union-attr]
    assert sink.offer(batch, request(2.0), 2.0), "nobody was told yet that the worker has the session"
    while not sink.again:
        await asyncio.sleep(0)
    rig.session.gate.set()
    await ended.wait()
    await sink.until(2)
    assert values(sink.answers[2.0]) == [2.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_whatever_waits_when_the_engine_closes_is_answered() -> None:
    rig = await quick_rig(turn_us=1)
    exclusive(rig.session)
    sink = RawRecorder(rig.engine)
    assert all(sink.ask(request(rows, rows), rows) for rows in range(1, 9))
    await rig.repository.close()
    assert {token: values(got) for token, got in sink.answers.items()} == {rows: [rows] * rows for rows in range(1, 9)}
    sink.ask(request(), "late")
    assert refusals(sink) == {"late": Fault.UNAVAILABLE}


# ---- anything in any order -------------------------------------------------------------------------------------------
STEPS = st.one_of(
    st.tuples(st.sampled_from(["raw", "plain"]), st.sampled_from([1, 2, 40]), st.sampled_from(["", "late", "poison"])),
    st.sampled_from(["turn", "version", "stage", "share", "beside", "unload", "irregular"]),
)


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_every_request_ends_once_with_its_own_answer(steps: list[Any]) -> None:
    asyncio.run(_steps(steps))


async def _steps(steps: list[Any]) -> None:
    rig = await quick_rig(None, 200.0, 10.0)
    sink, asked, version = RawRecorder(rig.engine), dict[int, tuple[int, str]](), 1
    batches = []
    for token, step in enumerate(steps, 1):
        if isinstance(step, tuple):
            way, rows, how = step
            asked[token] = rows, how
            ends_ns = time.monotonic_ns() if how == "late" else None
            one = request(-1.0 if how == "poison" else token, rows, deadline_ns=ends_ns)
            batches.append(rig.engine.raw_batch(replace(one, deadline_ns=None)) if way == "raw" else None)
            if not any(sink.offer(batch, one, token) for batch in batches[-2:] if batch and batch.form.rows == rows):
                sink.ask(one, token) if way == "raw" else sink._submit(one, token)
        else:
            version += step == "version"
            await _change(rig, step, version)
        for session in rig.runtime.sessions:
            if session.rejected is None:
                session.rejected = -1.0
                exclusive(session)
    await rig.repository.close()
    assert sink.ended == asked.keys()
    for token, got in sink.answers.items():
        rows, how = asked[token]
        assert not how
        assert values(got) == [token] * rows
    faults = {"late": {Fault.EXPIRED}, "poison": {Fault.INVALID}, "": set()}
    for token, error in sink.errors.items():
        assert error.fault in faults[asked[token][1]] | {Fault.UNAVAILABLE}
    assert sink.told[-1:] in ([], [("flush", None)]) or sink.told[-1][0] == "refuse"


async def _change(rig: Rig, step: str, version: int) -> None:
    if step == "version":
        await rig.serve(manifest(version=str(version)), digest=f"d{version}")
    elif step == "stage":
        await rig.stage(manifest(version="9", variants=("b",)), digest="d9")
    elif step == "unload" and rig.engine.ready("m"):
        await rig.repository.unload("m")
    elif step == "share" and len(loaded := rig.registry.entry("m").loaded) > 1:
        rig.repository.route("m", dict.fromkeys(loaded, 100 // len(loaded)), lease_s=60.0)
    elif step == "beside":
        for servable in rig.registry.entry("m").loaded.values():
            servable.ask_beside(request(0.0).inputs, None, lambda _: None)
    elif step == "irregular":
        for batch in [batch for servable in rig.registry.targets() for batch in servable._raw.waiting]:
            batch.form.raw = False
    else:
        await asyncio.sleep(0)
