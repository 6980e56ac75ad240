"""Runs that take too long: cancelled where the engine can, else their version is opened again; others are served."""

from __future__ import annotations

import asyncio

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import ModelRefused, RunHung, RunOverlong
from gateway.serving.domain.infer import InferResponse
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, release, request, values

pytestmark = pytest.mark.asyncio
QUICK = {"run_limit_s": 0.2, "run_end_s": 0.01, "retry_after_s": 0.1}


async def slow_rig(**changes: object) -> Rig:
    """Return a rig with a model on its worker, whose runs wait at the gate."""
    rig = Rig(limits_with(**{**QUICK, **changes}))  # type: ignore[arg-type]
    await rig.serve(manifest())
    rig.session.gate.clear()
    return rig


async def until_told(rig: Rig, kind: type, count: int = 1) -> None:
    """Wait until so many events of one kind were published."""
    while len(rig.told(kind)) < count:
        await asyncio.sleep(0.001)


async def refused(asked: asyncio.Task[InferResponse]) -> RequestError:
    """Return the error that a request ends with."""
    with pytest.raises(RequestError) as caught:
        await asked
    return caught.value


def ask(rig: Rig, value: float = 1.0) -> asyncio.Task[InferResponse]:
    return asyncio.create_task(rig.engine.infer(request(value)))


async def test_an_overlong_run_is_cancelled_and_its_model_goes_on() -> None:
    rig = await slow_rig(run_end_s=60.0)
    rig.session.cancels = True
    asked = ask(rig)
    error = await refused(asked)
    assert error.fault is Fault.EXPIRED
    assert "[limits] run_limit_s" in error.message
    rig.session.failure = None
    rig.session.gate.set()
    assert values(await rig.engine.infer(request(2.0))) == [2.0]
    (told,) = rig.told(RunOverlong)
    assert (told.rows, told.limit_s) == (1, 0.2)  # type: ignore[union-attr]
    counted = rig.engine.statistics("m")[0]
    assert (counted.overlong_runs, counted.hung_runs, counted.failed_runs, counted.rejected_runs) == (1, 0, 0, 0)
    assert len(rig.runtime.sessions) == 1
    await rig.repository.close()


async def test_a_run_that_does_not_end_costs_its_callers_only_and_its_version_is_opened_again() -> None:
    rig = await slow_rig()
    hung, asked = rig.session, ask(rig)
    await rig.begun()
    assert (await refused(asked)).fault is Fault.EXPIRED
    await until_told(rig, RunHung)
    while len(rig.runtime.sessions) < 2 or not rig.engine.ready("m"):
        await asyncio.sleep(0.001)
    assert values(await rig.engine.infer(request(3.0))) == [3.0]
    assert hung.closed == 0, "its thread is in it"
    assert not rig.engine.batch_pass.pauses.waiting, "the event loop does not pause for it"
    hung.gate.set()
    await rig.repository.close()


async def test_a_version_that_hangs_again_and_again_stays_out_until_it_is_loaded() -> None:
    rig = await slow_rig(max_hangs=1)
    for count in (1, 2):
        rig.session.gate.clear()
        asked = ask(rig)
        await rig.begun()
        await refused(asked)
        await until_told(rig, RunHung, count)
        while count == 1 and (len(rig.runtime.sessions) < 2 or not rig.engine.ready("m")):
            await asyncio.sleep(0.001)
    await until_told(rig, ModelRefused)
    (line,) = rig.repository.index()
    assert "did not end" in line.reason
    rig.disk["m"] = (release(manifest()),)
    await rig.repository.load("m")
    assert values(await rig.engine.infer(request(4.0))) == [4.0]
    for session in rig.runtime.sessions:
        session.gate.set()
    await rig.repository.close()


async def test_a_long_run_within_a_multiple_of_what_was_measured_is_left_alone() -> None:
    rig = Rig(limits_with(**{**QUICK, "run_limit_s": 0.01, "run_overruns": 10}))  # type: ignore[arg-type]
    rig.trials["a"] = measured(60e6, 60e6)
    await rig.serve(manifest())
    rig.session.gate.clear()
    asked = ask(rig)
    await rig.begun()
    await asyncio.sleep(0.05)
    assert not rig.told(RunOverlong)
    rig.session.gate.set()
    assert values(await asked) == [1.0]
    await rig.repository.close()


async def test_unloading_cancels_the_run_that_holds_it_up() -> None:
    rig = await slow_rig(run_limit_s=60.0, run_end_s=60.0, drain_s=0.5)
    rig.session.cancels = True
    asked = ask(rig)
    await rig.begun()
    await rig.repository.unload("m")
    assert (await refused(asked)).fault is Fault.EXPIRED
    assert rig.session.closed == 1
    await rig.repository.close()
