"""Closed versions: they answer metadata, are opened for a request, and give room to others; nothing is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.events import ModelEvicted, ModelWoken
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.verdict import Measurement, Verdict
from gateway.serving.domain.infer import END, START
from gateway.serving.engine import waking
from gateway.serving.engine.cold import ColdVersion
from gateway.serving.engine.loader import NoRoomError
from gateway.serving.engine.residency import Resident, ResidentCost, revised_cost
from gateway.serving.engine.settings import FailoverSettings, QueueSettings, ResidencySettings, ResidentSettings
from tests.simulators.constants import settings_with
from tests.simulators.engine_rig import (
    PASSED,
    Rig,
    limits_with,
    manifest,
    measured,
    refused,
    release,
    request,
    values,
)
from tests.simulators.pipelines import PipelineRig, spec
from tests.simulators.session import SESSION_BYTES
from tests.unit.serving.engine.test_sequences import add_sums

GONE = VariantError("the chip: [Errno 19] No such device")
COSTLY = replace(PASSED, measured=Measurement(2000.0, 2000.0, 2000.0, SESSION_BYTES))
"""Trial of a model that runs on its worker, so that a run can wait at its gate."""


def residency(memory_mib: int = 2, *models: ResidentSettings, **changes: Any) -> ResidencySettings:
    return settings_with(ResidencySettings(memory_mib, model=models), **{"room_poll_s": 0.001, **changes})


def models(count: int, variants: str = "abcdefgi") -> list[ModelManifest]:
    return [manifest(f"m{number}", variants=(variants[number],)) for number in range(count)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    """Return a function that makes a rig in which memory is that of the open sessions: two have room by default."""

    def rig_with(settings: ResidencySettings | None = None, **limits: Any) -> Rig:
        rig = Rig(limits_with(**limits), residency=settings or residency())
        rig.trials |= dict.fromkeys("abcdefghi", COSTLY)
        rig.repository.residency._shared["reference", ""] = 0  # else the first one is opened twice
        monkeypatch.setattr(waking, "used_bytes", lambda: taken(rig))
        alike = partial(revised_cost, took_s=1.0)  # as if all took equally long: a busy machine must not decide
        monkeypatch.setattr(
            waking,
            "revised_cost",
            lambda before, candidate, added, _, alone: alike(before, candidate, added, alone=alone),
        )
        return rig

    return rig_with


def taken(rig: Rig) -> int:
    """Return the memory of the open sessions; one of the variant "h" has five times as much."""
    pairs = zip(rig.runtime.opened, rig.runtime.sessions, strict=True)
    return sum(SESSION_BYTES * (5 if name == "h" else 1) for name, session in pairs if not session.closed)


def cold(rig: Rig) -> list[str]:
    return [each.manifest.name for each in rig.registry.targets() if isinstance(each, ColdVersion)]


async def until(question: Callable[[], object]) -> None:
    while not question():
        await asyncio.sleep(0.001)


async def refusal(asking: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        await asking
    return error.value


@pytest.mark.asyncio
async def test_versions_beyond_the_budget_are_closed_and_ready(made: Callable[..., Rig]) -> None:
    rig = made()
    await rig.serve(*models(4))
    assert rig.runtime.opened == ["a", "b"], "what has no room is tried, and not opened"
    assert cold(rig) == ["m2", "m3"]
    assert [line.state for line in rig.repository.index()] == ["READY"] * 4
    assert rig.engine.ready()
    assert rig.engine.ready("m3")
    assert rig.engine.describe("m3").inputs == manifest().inputs
    assert rig.engine.placement("m3").residency.startswith("cold, ")
    assert rig.engine.placement("m0").residency == "1 MiB"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_request_opens_a_closed_version_and_the_least_recently_used_gives_room(
    made: Callable[..., Rig],
) -> None:
    rig = made()
    rig.runtime.factors["c"] = 3.0
    await rig.serve(*models(3))
    await rig.engine.infer(request(model="m0"))
    assert values(await rig.engine.infer(request(2.0, model="m2"))) == [6.0]
    assert cold(rig) == ["m1"]
    assert [(each.model, each.reason) for each in rig.told(ModelEvicted)] == [("m1", "memory")]  # type: ignore[attr-defined]
    assert [each.model for each in rig.told(ModelWoken)] == ["m2"]  # type: ignore[attr-defined]
    (counted,) = rig.engine.statistics("m2")
    assert counted.success.count == 1
    assert sum(counted.wakes.counts) == 1
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_counters_go_on_while_a_version_is_closed(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.serve(*models(2))
    for _ in range(3):
        await rig.engine.infer(request(model="m0"))
        await rig.engine.infer(request(model="m1"))
    assert [each.success.count for each in rig.engine.statistics()] == [3, 3]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_answers_is_not_closed_and_the_request_waits_until_it_is_done(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.serve(*models(2))
    rig.session.gate.clear()
    running = asyncio.ensure_future(rig.engine.infer(request(model="m0")))
    await rig.begun()
    waiting = asyncio.ensure_future(rig.engine.infer(request(model="m1")))
    await asyncio.sleep(0.02)
    assert rig.runtime.opened == ["a"]
    rig.session.gate.set()
    await asyncio.gather(running, waiting)
    assert rig.runtime.opened == ["a", "b"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_request_without_room_is_refused_with_what_to_do(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, ResidentSettings("m0", pin=True), room_s=0.01))
    await rig.serve(*models(2))
    error = await refusal(rig.engine.infer(request(model="m1")))
    assert error.fault is Fault.UNAVAILABLE
    assert "1 open versions are pinned, 0 answer requests" in error.message
    assert "(EG-317)" in error.message
    assert error.retry_after_s
    assert cold(rig) == ["m1"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_request_expires_while_it_waits(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, ResidentSettings("m0", pin=True)))
    await rig.serve(*models(2))
    ends_ns = time.monotonic_ns() + 5_000_000
    error = await refusal(rig.engine.infer(request(model="m1", deadline_ns=ends_ns)))
    assert error.fault is Fault.EXPIRED
    assert "was open again" in error.message
    await until(lambda: not rig.repository.residency._waking)  # none waits: it is given up
    assert rig.repository.residency._wakes == {"abandoned": 1}
    assert rig.engine.ready("m1"), "which is no failure of the model"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_caller_that_leaves_frees_its_place_and_the_others_are_answered(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.serve(*models(2))
    rig.runtime.gate.clear()
    leaver = asyncio.ensure_future(rig.engine.infer(request(1.0, model="m1")))
    stayer = asyncio.ensure_future(rig.engine.infer(request(2.0, model="m1")))
    await asyncio.to_thread(rig.runtime.opening.acquire)
    await asyncio.to_thread(rig.runtime.opening.acquire)
    leaver.cancel()
    await asyncio.sleep(0)
    rig.runtime.gate.set()
    assert values(await stayer) == [2.0]
    (counted,) = rig.engine.statistics("m1")
    assert counted.drops == {"cancelled": 1}
    assert rig.session.runs == [[-77.0], [2.0]], "after the warm-up, one request"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_opening_that_has_begun_goes_on_without_callers(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.serve(*models(2))
    rig.runtime.gate.clear()
    leaver = asyncio.ensure_future(rig.engine.infer(request(model="m1")))
    await asyncio.to_thread(rig.runtime.opening.acquire)
    await asyncio.to_thread(rig.runtime.opening.acquire)
    leaver.cancel()
    rig.runtime.gate.set()
    await until(lambda: cold(rig) == ["m0"])
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_queue_of_a_closed_version_is_bounded(made: Callable[..., Rig]) -> None:
    rig = made(residency(1), queue=(QueueSettings("m1", requests=2),))
    await rig.serve(*models(2))
    rig.runtime.gate.clear()
    waiting = [asyncio.ensure_future(rig.engine.infer(request(model="m1"))) for _ in range(2)]
    await asyncio.sleep(0)
    error = await refusal(rig.engine.infer(request(model="m1")))
    assert error.fault is Fault.OVERLOADED
    rig.runtime.gate.set()
    await asyncio.gather(*waiting)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_many_wake_ups_at_once_never_break_the_budget(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.serve(*models(8))
    most, opened = 0, rig.runtime.open

    def counting(*of: Any) -> Any:
        nonlocal most
        session = opened(*of)
        most = max(most, rig.runtime.memory_bytes)
        return session

    rig.runtime.open = counting  # type: ignore[method-assign]
    object.__setattr__(rig.repository._loader, "open_session", counting)
    answers = await asyncio.gather(*(rig.engine.infer(request(3.0, model=f"m{number % 8}")) for number in range(40)))
    assert [values(each) for each in answers] == [[3.0]] * 40
    assert most == SESSION_BYTES
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_a_version_larger_than_the_budget_is_refused_with_the_figures(made: Callable[..., Rig]) -> None:
    rig = made(residency(2))
    await rig.serve(manifest("small", variants=("a",)), manifest("large", variants=("h",)))
    large, small = rig.repository.index()
    assert (large.state, small.state) == ("UNAVAILABLE", "READY")
    assert "takes 5 MiB of memory, more than the 2 MiB" in large.reason
    assert taken(rig) == SESSION_BYTES
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_variant_that_fits_serves_in_place_of_one_that_is_too_large(made: Callable[..., Rig]) -> None:
    rig = made(residency(2))
    await rig.serve(manifest(variants=("h", "a")))
    assert rig.engine.placement("m").variant == "a"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_first_version_of_an_engine_is_measured_without_its_library(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = made(residency(2))
    rig.repository.residency._shared.clear()
    monkeypatch.setattr(waking, "used_bytes", lambda: taken(rig) + (50_000_000 if rig.runtime.opened else 0))
    await rig.serve(*models(2))
    assert rig.runtime.opened == ["a", "a", "b"]
    assert cold(rig) == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_takes_more_than_expected_makes_others_close(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = made(residency(2))
    await rig.serve(*models(2))
    assert cold(rig) == []
    read = iter([0, 1_500_000])
    monkeypatch.setattr(waking, "used_bytes", lambda: next(read))
    await rig.repository.synchronise([release(one) for one in models(2)] + [release(manifest("m2", variants=("c",)))])
    await until(lambda: cold(rig) == ["m2"])
    monkeypatch.setattr(waking, "used_bytes", lambda: next(read))
    await rig.engine.infer(request(model="m2"))
    await until(lambda: cold(rig) == ["m0", "m1"])
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_measurement_next_to_other_work_refuses_nothing_that_had_room(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = made(residency(1))
    await rig.serve(*models(2))
    for number in (1, 0):
        await rig.engine.infer(request(model=f"m{number}"))
    read = cycle([0, 50_000_000])
    monkeypatch.setattr(waking, "used_bytes", lambda: next(read))
    assert (await rig.engine.infer(request(model="m1"))).model == "m1"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_file_that_broke_is_said_and_tried_again_with_a_pause(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, retry_s=0.05))
    await rig.serve(*models(2))
    rig.runtime.refuses["b"] = VariantError("model.onnx: Invalid protobuf")
    error = await refusal(rig.engine.infer(request(model="m1")))
    assert error.fault is Fault.UNAVAILABLE
    assert "Invalid protobuf" in error.message
    assert "(EG-316)" in error.message
    begun = len(rig.runtime.opened)
    assert "Invalid protobuf" in (await refusal(rig.engine.infer(request(model="m1")))).message
    assert len(rig.runtime.opened) == begun, "not within the pause"
    assert not rig.engine.ready("m1")
    line = next(line for line in rig.repository.index() if line.name == "m1")
    assert line.state == "UNAVAILABLE"
    assert "Invalid protobuf" in line.reason
    await rig.engine.infer(request(model="m0"))
    del rig.runtime.refuses["b"]
    await until(lambda: rig.engine.ready("m1"))
    await rig.engine.infer(request(model="m1"))
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_unload_refuses_what_waits_and_a_swap_takes_it_over(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, ResidentSettings("m0", pin=True)))
    rig.runtime.factors["c"] = 3.0
    await rig.serve(*models(2))
    waiting = asyncio.ensure_future(rig.engine.infer(request(model="m1")))
    await asyncio.sleep(0)
    rig.disk["m1"] = ()
    await rig.repository.unload("m1")
    assert (await refusal(waiting)).message == "model 'm1' was unloaded"
    rig.residency = replace(rig.residency)
    await rig.repository.synchronise([release(models(1)[0]), release(models(2)[1])])
    waiting = asyncio.ensure_future(rig.engine.infer(request(2.0, model="m1")))
    await asyncio.sleep(0)
    await rig.repository.unload("m0")  # the room of the pinned one is free now
    await rig.repository.synchronise([release(manifest("m1", variants=("c",)), "d2")])
    assert values(await waiting) in ([2.0], [6.0])
    assert values(await rig.engine.infer(request(2.0, model="m1"))) == [6.0]
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_a_reload_of_the_same_releases_changes_nothing(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.serve(*models(2))
    before = list(rig.registry.targets())
    await rig.serve(*models(2))
    assert list(rig.registry.targets()) == before
    assert rig.runtime.opened == ["a"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_versions_that_share_requests_wake_each_for_itself(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    rig.runtime.factors["b"] = 10.0
    await rig.serve(manifest(version="1", variants=("a",)), manifest(version="2", variants=("b",)))
    rig.repository.route("m", {"1": 50, "2": 50}, lease_s=60.0)
    found = [values(await rig.engine.infer(request(1.0)))[0] for _ in range(6)]
    assert sorted(found) == [1.0, 1.0, 1.0, 10.0, 10.0, 10.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_staged_version_makes_room_and_is_not_closed(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.commit(*models(1))
    await rig.stage(manifest("m0", version="2", variants=("b",)))
    assert cold(rig) == ["m0"]
    error = await refusal(
        rig.engine.infer(request(model="m0", version="1", deadline_ns=time.monotonic_ns() + 20_000_000))
    )
    assert error.fault is Fault.EXPIRED
    await rig.repository.unstage("m0", "2", 1.0)
    await rig.engine.infer(request(model="m0"))
    await rig.repository.close()


@pytest.mark.asyncio
async def test_idle_versions_are_closed_and_others_stay(made: Callable[..., Rig]) -> None:
    rig = made(residency(0, ResidentSettings("m0", idle_s=0.001), tick_s=0.005))
    await rig.serve(*models(2))
    await until(lambda: cold(rig) == ["m0"])
    assert [each.reason for each in rig.told(ModelEvicted)] == ["idle"]  # type: ignore[attr-defined]
    assert values(await rig.engine.infer(request(2.0, model="m0"))) == [2.0]
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_a_version_is_opened_at_its_time_of_the_day(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ["07:29"]
    monkeypatch.setattr(waking.time, "strftime", lambda _form: clock[0])
    rig = made(residency(1, ResidentSettings("m1", warm_at=("07:30",)), tick_s=0.001))
    await rig.serve(*models(2))
    assert cold(rig) == ["m1"]
    await asyncio.sleep(0.01)
    clock[0] = "07:30"
    await until(lambda: cold(rig) == ["m0"])
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_pinned_version_is_opened_at_the_start_whatever_came_before(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, ResidentSettings("m1", pin=True)))
    await rig.serve(*models(2))
    assert cold(rig) == ["m0"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_background_trials_of_a_closed_version_do_not_open_it(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    rig.trials["b"] = measured(1.0)
    await rig.serve(manifest("m0", variants=("c",)), manifest("m1", variants=("a", "b")))
    assert cold(rig) == ["m1"]
    await asyncio.wait_for(rig.repository.refine(), 30)
    assert "b" in rig.tried
    assert cold(rig) == ["m1"]
    await rig.engine.infer(request(model="m1"))
    assert rig.engine.placement("m1").variant == "b", "its opening chooses what the trials found"
    await rig.repository.close()


def away(name: str, **more: Any) -> ResidencySettings:
    """Return settings by which a model is closed as soon as nothing asks it."""
    return residency(0, ResidentSettings(name, idle_s=0.001), tick_s=0.005, **more)


@pytest.mark.asyncio
async def test_sequences_go_on_after_their_model_was_closed() -> None:
    rig = PipelineRig(residency=away("sums"))
    add_sums(rig)
    await rig.begin()
    sums = []
    for number, place in ((1.0, START), (2.0, 0), (3.0, END)):
        await until(lambda: cold(rig) == ["sums"])
        inputs = {"x": np.array([[number]], np.float32)}
        sums.append((await rig.ask(inputs, "sum", name="sums", place=place, stream="7"))["sum"].item())
    assert sums == [101.0, 103.0, 106.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_pipeline_waits_for_a_closed_model_and_does_not_begin_again() -> None:
    rig = PipelineRig(residency=away("twice"))
    rig.model("twice", lambda of: {"y": of["x"] * 2}, (spec("x", 2),), (spec("y", 2),))
    rig.pipeline('[input]\nx = "FP32[2]"\n[[step]]\nname = "s"\nmodel = "twice"\nof = "x"\n[output]\ny = "s.y"\n', "p")
    await rig.begin()
    target = rig.target("p")
    for _ in range(3):
        await until(lambda: cold(rig) == ["twice"])
        assert rig.engine.ready("p")
        assert (await rig.ask({"x": np.ones((1, 2), np.float32)}, "y", name="p"))["y"].tolist() == [[2.0, 2.0]]
    assert rig.target("p") is target
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_session_that_does_not_close_stops_no_later_wake_up(made: Callable[..., Rig], hangs: bool) -> None:
    rig = made(residency(2, room_s=2.0), drain_s=0.1)
    await rig.serve(*models(4))
    stuck, ending = rig.runtime.sessions[0], threading.Event()
    real = stuck.close
    if hangs:
        stuck.close = lambda: (ending.wait(), real())[1]  # type: ignore[method-assign]
    else:
        stuck.close_failure = RuntimeError("driver")
    try:
        for name in ("m2", "m3", "m2", "m3"):
            assert values(await rig.engine.infer(request(2.0, model=name))) == [2.0]
        residents = rig.repository.residency._ledger.residents.values()
        assert [each.model for each in residents if each.late] == ["m0"] * hangs
        if hangs:
            rig.session.gate.clear()
            running = asyncio.ensure_future(rig.engine.infer(request(model="m3")))
            await rig.begun()
            assert "1 do not close" in (await refusal(rig.engine.infer(request(model="m2")))).message
            rig.session.gate.set()
            await running
    finally:
        ending.set()
    await until(lambda: "m0" not in [each.model for each in rig.repository.residency._ledger.residents.values()])
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_lack_of_room_is_no_reason_to_try_another_variant(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, ResidentSettings("m0", pin=True), room_s=0.01))
    await rig.serve(manifest("m0", variants=("a",)), manifest("m1", variants=("b", "c", "d")))
    tried = list(rig.tried)
    error = await refusal(rig.engine.infer(request(model="m1")))
    assert "b: takes 1 MiB" in error.message
    assert "(EG-317)" in error.message
    assert rig.tried == tried
    await rig.repository.close()


async def failing(made: Callable[..., Rig], memory_mib: int, *others: str, **settings: Any) -> Rig:
    """Return a rig in which variant "a" of "m" serves, "b" has passed, and the device of "a" is gone."""
    rig = made(residency(memory_mib, **settings))
    rig.trials["b"] = replace(COSTLY, measured=Measurement(9000.0, 9000.0, 9000.0, SESSION_BYTES))
    rig.runtime.factors["b"] = 2.0
    await rig.serve(manifest(variants=("a", "b")), *(manifest(f"m{name}", variants=(name,)) for name in others))
    await rig.repository.refine()
    assert rig.engine.placement("m").variant == "a"
    rig.runtime.sessions[rig.runtime.opened.index("a")].failure = GONE
    return rig


@pytest.mark.asyncio
async def test_a_full_budget_stops_no_failover(made: Callable[..., Rig]) -> None:
    rig = await failing(made, 2, "c")
    busy = rig.runtime.sessions[rig.runtime.opened.index("c")]
    busy.gate.clear()
    running = asyncio.ensure_future(rig.engine.infer(request(model="mc")))
    await rig.begun(busy)
    assert values(await rig.engine.infer(request())) == [2.0]
    assert rig.engine.placement("m").variant == "b"
    await until(lambda: rig.runtime.memory_bytes == 2 * SESSION_BYTES)
    await until(lambda: len(rig.repository.residency._ledger.residents) == 2)
    busy.gate.set()
    await running
    assert cold(rig) == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_lack_of_room_takes_no_variant_out(made: Callable[..., Rig]) -> None:
    rig = await failing(made, 2, failover_room_s=0.01)
    place = rig.repository.residency
    real = place._cost
    place._cost = lambda *of: replace(real(*of), nbytes={"cpu": 2_000_000})  # type: ignore[method-assign]
    other = place._ledger.add(Resident("pinned", "1", ResidentCost({"cpu": SESSION_BYTES}), pinned=True))
    error = await refusal(rig.engine.infer(request()))
    assert error.fault is Fault.UNAVAILABLE
    assert "the next one has no room" in error.message
    assert rig.engine.placement("m").degraded.count(" is out") == 1, "the next one did not fail"
    place._remove(other)
    assert values(await rig.engine.infer(request())) == [2.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_variant_that_recovered_waits_no_longer_for_lack_of_room(made: Callable[..., Rig]) -> None:
    rig = await failing(made, 2, "c", failover_room_s=0.001)
    failover = rig.repository._loader.failover
    failover.settings = FailoverSettings(retry_s=0.001)
    busy = rig.runtime.sessions[rig.runtime.opened.index("c")]
    busy.gate.clear()
    running = asyncio.ensure_future(rig.engine.infer(request(model="mc")))
    await rig.begun(busy)
    tried = rig.tried.count("a")
    rig.trial_gate.clear()
    assert values(await rig.engine.infer(request())) == [2.0]
    serving = rig.session
    serving.gate.clear()
    asked = asyncio.ensure_future(rig.engine.infer(request()))
    await until(lambda: len(serving.runs) == 3)  # the warm-up, the first request, this one
    rig.trial_gate.set()
    await until(lambda: rig.tried.count("a") > tried + 4)
    (record,) = failover._records.values()
    assert record.breaker.wait_ns == record.breaker.first_wait_ns
    busy.gate.set()
    await running
    await until(lambda: rig.engine.placement("m").variant == "a")
    serving.gate.set()
    assert values(await asked) == [2.0]
    assert rig.engine.placement("m").degraded == ""
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_version_whose_newer_release_is_refused_stays_open(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, room_s=0.01))
    (model,), other = models(1), manifest("other", variants=("i",))
    await rig.serve(model)
    await rig.repository.synchronise([refused("m0"), release(other)])
    assert cold(rig) == ["other"]
    assert "(EG-317)" in (await refusal(rig.engine.infer(request(model="other")))).message
    assert values(await rig.engine.infer(request(2.0, model="m0"))) == [2.0]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("has_deadline", [False, True])
async def test_a_request_whose_own_time_is_not_over_is_told_to_come_again(
    made: Callable[..., Rig], has_deadline: bool
) -> None:
    rig = made(residency(1, ResidentSettings("m0", pin=True), wake_s=0.01))
    await rig.serve(*models(2))
    ends_ns = time.monotonic_ns() + 3600 * 1_000_000_000 if has_deadline else None
    error = await refusal(rig.engine.infer(request(model="m1", deadline_ns=ends_ns)))
    assert (error.fault, error.is_loading, error.retry_after_s) == (Fault.UNAVAILABLE, True, 1.0)
    assert "is not open again after 0.01 s" in error.message
    (counted,) = rig.engine.statistics("m1")
    assert counted.drops == {"unopened": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_failed_in_service_is_out_and_tried_again_while_its_version_is_closed(
    made: Callable[..., Rig],
) -> None:
    rig = await failing(made, 2, "c", "d")
    failover = rig.repository._loader.failover
    failover.settings = FailoverSettings(retry_s=0.01)
    rig.trials["a"] = Verdict(False, "no answer")
    assert values(await rig.engine.infer(request())) == [2.0]
    for name in ("mc", "md"):
        await rig.engine.infer(request(model=name))
    assert cold(rig) == ["m"]
    tried = rig.tried.count("a")
    await until(lambda: rig.tried.count("a") > tried + 2)
    assert "a on cpu is out: no answer" in rig.engine.placement("m").degraded
    assert values(await rig.engine.infer(request())) == [2.0], "what is out does not serve"
    assert "a on cpu is out: no answer" in rig.engine.placement("m").degraded
    for name in ("mc", "md"):
        await rig.engine.infer(request(model=name))
    opened = len(rig.runtime.opened)
    rig.trials["a"] = COSTLY
    await until(lambda: not rig.engine.placement("m").degraded)
    assert (cold(rig), len(rig.runtime.opened)) == (["m"], opened), "a trial is no reason to open it"
    assert values(await rig.engine.infer(request())) == [1.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_those_that_wait_for_room_look_one_after_the_other(made: Callable[..., Rig]) -> None:
    rig = made(residency(1, room_poll_s=0.02))
    await rig.serve(*models(8))
    session = rig.session
    session.gate.clear()
    running = asyncio.ensure_future(rig.engine.infer(request(model="m0")))
    await rig.begun(session)
    place, looks = rig.repository.residency, 0
    look = place._made_room

    async def counted(*of: Any, **how: Any) -> bool:
        nonlocal looks
        looks += 1
        return await look(*of, **how)

    place._made_room = counted  # type: ignore[method-assign]
    waiting = [asyncio.ensure_future(rig.engine.infer(request(2.0, model=f"m{number}"))) for number in range(1, 8)]
    began_s = time.monotonic()
    await until(lambda: looks >= 21)  # each of the seven looks at once, and twice more
    assert looks - 7 <= (time.monotonic() - began_s) / 0.02, "a pause before each look, whatever their number"
    session.gate.set()
    await running
    assert [values(each) for each in await asyncio.gather(*waiting)] == [[2.0]] * 7
    await rig.repository.close()


class Answers:
    """Sink that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[object] = []

    def answer(self, _token: Any, response: Any) -> None:
        self.got.append(values(response))

    def refuse(self, _token: Any, error: RequestError) -> None:
        self.got.append(error)

    def flush(self) -> None:
        pass


@pytest.mark.asyncio
async def test_a_request_in_the_step_that_ends_a_wake_up_begins_another_one(made: Callable[..., Rig]) -> None:
    rig = made(residency(1))
    await rig.serve(*models(2))
    session = rig.session
    session.gate.clear()
    running = asyncio.ensure_future(rig.engine.infer(request(model="m0")))
    await rig.begun(session)
    sink, waking_now = Answers(), rig.repository.residency._waking
    leaver = rig.engine.submit(request(model="m1"), sink, 1)
    (task,) = waking_now.values()
    leaver.cancel()
    while not task.done():
        await asyncio.sleep(0)
    rig.engine.submit(request(2.0, model="m1"), sink, 2)
    session.gate.set()
    await running
    await until(lambda: sink.got)
    assert sink.got == [[2.0]]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_opening_that_is_cancelled_as_it_ends_leaves_no_session(made: Callable[..., Rig]) -> None:
    rig = made()
    place, model = rig.repository.residency, manifest()
    opened, ended = place._opened, asyncio.Event()

    async def noted(*of: Any) -> Any:
        try:
            return await opened(*of)
        finally:
            asyncio.get_running_loop().call_soon(opening.cancel)  # before its end wakes what waits for it
            ended.set()

    place._opened = noted  # type: ignore[method-assign]
    (candidate,) = rig.repository._loader.plan(model)
    opening = asyncio.ensure_future(place.open(release(model), candidate, model))
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert ended.is_set()
    await until(lambda: rig.session.closed)
    await until(lambda: not place._ledger.residents)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_states_of_sequences_go_on_in_a_closed_release_that_replaces_a_closed_one() -> None:
    rig = PipelineRig(residency=away("sums"))
    add_sums(rig)
    await rig.begin()
    await until(lambda: cold(rig) == ["sums"])
    kept = rig.registry.serving("sums", "1").streams  # type: ignore[union-attr]
    assert kept is not None
    rig.repository.residency.open = no_room  # type: ignore[method-assign]
    await rig.repository.synchronise([release(rig.manifests["sums"], "d2")])
    replaced = rig.registry.serving("sums", "1")
    assert isinstance(replaced, ColdVersion)
    assert (replaced.release.digest, replaced.streams is kept) == ("d2", True)
    await rig.repository.close()


async def no_room(*_of: Any, **_how: Any) -> Any:
    raise NoRoomError("no room", transient=True)


@pytest.mark.asyncio
async def test_without_settings_nothing_is_warmed_measured_or_closed() -> None:
    rig = Rig()
    await rig.serve(*models(3))
    assert [session.runs for session in rig.runtime.sessions] == [[], [], []]
    assert rig.engine.placement("m0").residency == ""
    assert list(rig.repository.residency.samples()) == []
    await rig.repository.close()
