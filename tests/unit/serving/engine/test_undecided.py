"""Releases whose trials have no result are tried again; slow loads delay no others; readiness waits for all models."""

from __future__ import annotations

import asyncio

import pytest

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.events import ModelRefused, ModelUndecided
from gateway.common.domain.verdict import Verdict
from gateway.serving.domain.lifecycle import server_ready
from gateway.serving.engine import loading, versions
from tests.simulators.engine_rig import PASSED, Rig, manifest, refused, release, request

KILLED = Verdict(False, "died by SIGKILL", transient=True)
CRASHED = Verdict(False, "died by SIGSEGV")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next attempts of undecided releases follow at once."""
    monkeypatch.setattr(versions, "RETRY_S", 0.0)


def line(rig: Rig, model: str = "m") -> tuple[str, str]:
    return next((one.state, one.reason) for one in rig.repository.index() if one.name == model)


def asked(rig: Rig, model: str = "m", version: str = "") -> RequestError:
    with pytest.raises(RequestError) as error:
        rig.registry.find(model, version)
    return error.value


async def until_tried(rig: Rig, times: int) -> None:
    while len(rig.tried) < times:
        await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.usefixtures("at_once")
async def test_a_model_whose_trial_was_killed_comes_up_by_itself() -> None:
    rig = Rig(trials={"a": KILLED})
    await rig.serve(manifest())
    assert line(rig)[0] == "UNAVAILABLE"
    assert line(rig)[1].startswith(
        "undecided: no variant can serve on this device: a: died by SIGKILL; next attempt in "
    )
    error = asked(rig)
    assert error.fault is Fault.UNAVAILABLE
    assert error.retry_after_s
    assert "undecided" in error.message
    assert rig.repository.standings()[0].undecided
    await until_tried(rig, 3)
    rig.trials["a"] = PASSED
    while not rig.engine.ready("m"):
        await asyncio.sleep(0)
    assert line(rig) == ("READY", "")
    assert not rig.told(ModelRefused)
    assert rig.told(ModelUndecided)
    tried = len(rig.tried)
    await asyncio.sleep(0.01)
    assert len(rig.tried) == tried
    assert rig.repository._retrying is None or rig.repository._retrying.done()
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.usefixtures("at_once")
async def test_a_verdict_ends_the_attempts() -> None:
    rig = Rig(trials={"a": KILLED})
    decided, changed = list[int](), list[int]()
    rig.repository.decided = lambda: decided.append(len(rig.tried))
    await rig.serve(manifest())
    rig.repository.changed = lambda: changed.append(len(rig.tried))
    rig.trials["a"] = CRASHED
    while not decided:
        await asyncio.sleep(0)
    assert rig.told(ModelRefused)
    assert line(rig) == ("UNAVAILABLE", "no variant can serve on this device: a: died by SIGSEGV")
    assert decided == changed == [len(rig.tried)]
    assert not rig.repository.standings()[0].undecided
    await rig.repository.close()


@pytest.mark.asyncio
async def test_one_trial_without_a_result_is_enough_to_try_again_if_no_other_variant_serves() -> None:
    rig = Rig(trials={"a": CRASHED, "b": KILLED})
    await rig.serve(manifest(variants=("a", "b")))
    assert "a: died by SIGSEGV; b: died by SIGKILL; next attempt in " in line(rig)[1]
    rig.trials["b"] = PASSED
    await rig.serve(manifest(variants=("a", "b")))
    assert line(rig) == ("READY", "")
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.usefixtures("at_once")
async def test_another_change_interrupts_an_attempt_that_hangs_and_it_follows() -> None:
    rig = Rig(trials={"a": KILLED})
    await rig.serve(manifest())
    rig.trial_gate.clear()
    await until_tried(rig, 2)
    assert line(rig) == ("LOADING", "its trial runs")
    assert asked(rig).message == "model 'm' is loading: its trial runs; try again"
    rig.disk["n"] = (release(manifest("n", variants=("b",))),)
    loads = asyncio.ensure_future(rig.repository.load("n"))
    while "b" not in rig.tried:
        await asyncio.sleep(0)
    assert line(rig)[1].startswith("undecided: ")
    rig.trials["a"] = PASSED
    rig.trial_gate.set()
    await loads
    while not rig.engine.ready("m"):
        await asyncio.sleep(0)
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["gone", "unloaded", "closed"])
async def test_nothing_is_tried_again_after_its_release_is(what: str) -> None:
    rig = Rig(trials={"a": KILLED})
    await rig.serve(manifest())
    if what == "gone":
        await rig.serve()
        assert rig.repository.index() == []
    elif what == "unloaded":
        await rig.repository.unload("m")
        assert line(rig) == ("UNAVAILABLE", "unloaded")
    else:
        await rig.repository.close()
    assert rig.repository._retrying is None
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_synchronisation_may_leave_undecided_releases_to_their_next_attempt() -> None:
    rig = Rig(trials={"a": KILLED})
    await rig.serve(manifest())
    await rig.repository.synchronise([release(manifest())], again=False)
    assert rig.tried == ["a"]
    assert rig.repository.standings()[0].undecided
    await rig.serve(manifest())
    assert rig.tried == ["a", "a"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_newer_file_that_is_undecided_leaves_the_old_version_serving() -> None:
    rig = Rig(trials={"b": KILLED})
    await rig.serve(manifest())
    await rig.serve(manifest(variants=("b",)), digest="d2")
    assert line(rig)[0] == "READY"
    assert line(rig)[1].startswith("a newer file is undecided: no variant can serve on this device: b: died by SIGKILL")
    assert await rig.engine.infer(request())
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_staged_release_that_is_undecided_is_told_to_its_stager_only() -> None:
    rig = Rig(trials={"a": KILLED})
    with pytest.raises(VariantError) as error:
        await rig.stage(manifest())
    assert error.value.transient
    assert rig.repository.index() == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_all_models_are_listed_before_the_first_is_tried() -> None:
    rig = Rig()
    rig.trial_gate.clear()
    rig.registry.is_read = False
    assert asked(rig).fault is Fault.UNAVAILABLE
    serving = asyncio.ensure_future(
        rig.repository.synchronise([refused("bad"), *(release(manifest(name, variants=(name,))) for name in "abc")])
    )
    await until_tried(rig, 2)
    states = {one.name: (one.state, one.reason) for one in rig.repository.index()}
    waits, runs = ("LOADING", "it waits for its trial"), ("LOADING", "its trial runs")
    assert states == {"a": runs, "b": runs, "bad": ("UNAVAILABLE", "manifest.toml:3: broken"), "c": waits}
    error = asked(rig, "c", "1")
    assert (error.fault, error.message) == (
        Fault.UNAVAILABLE,
        "model 'c' version 1 is loading: it waits for its trial; try again",
    )
    assert error.retry_after_s
    assert asked(rig, "d").fault is Fault.NOT_FOUND
    rig.trial_gate.set()
    await serving
    assert asked(rig, "bad").message == "model 'bad' is not ready: manifest.toml:3: broken"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_models_whose_trials_hang_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LANE_S", 0.0)
    rig, slow = Rig(), [f"slow-{number}" for number in range(loading.SLOW_LOADS + 3)]
    hang, trial = asyncio.Event(), rig.repository._loader.trial

    async def hanging(of, *rest):  # type: ignore[no-untyped-def]
        verdict = await trial(of, *rest)
        if of.name.startswith("slow"):
            await hang.wait()
        return verdict

    object.__setattr__(rig.repository._loader, "trial", hanging)
    first, later = slow[: loading.SLOW_LOADS + 1], slow[loading.SLOW_LOADS + 1 :]
    names = [*first, "quick", *later, "last"]
    serving = asyncio.ensure_future(rig.serve(*(manifest(name, variants=(name,)) for name in names)))
    while not rig.engine.ready("quick"):
        await asyncio.sleep(0)
    await until_tried(rig, loading.SLOW_LOADS + 3)
    assert "last" not in rig.tried
    assert slow[-1] not in rig.tried, "two lanes and the bound of slow loads are taken"
    hang.set()
    await serving
    assert all(rig.engine.ready(name) for name in names)
    await rig.repository.close()


@pytest.mark.parametrize(
    ("when", "settled", "listed", "serving", "expected"),
    [
        ("all", False, True, True, False),
        ("all", True, True, True, True),
        ("all", True, True, False, False),
        ("all", False, False, False, False),
        ("all", True, False, False, True),
        ("first", False, True, True, True),
        ("first", False, True, False, False),
        ("first", False, False, False, False),
        ("first", True, True, False, False),
    ],
)
def test_when_the_server_is_ready(*, when: str, settled: bool, listed: bool, serving: bool, expected: bool) -> None:
    assert server_ready(when, settled=settled, listed=listed, serving=serving) is expected


@pytest.mark.asyncio
async def test_the_server_stays_ready_while_a_model_is_swapped_and_is_not_ready_when_nothing_serves() -> None:
    rig = Rig()
    assert rig.engine.ready(), "without any model"
    await rig.serve(manifest())
    rig.trial_gate.clear()
    swapping = asyncio.ensure_future(rig.serve(manifest(variants=("b",)), manifest("n", variants=("c",)), digest="d2"))
    await until_tried(rig, 3)
    assert rig.engine.ready()
    rig.trial_gate.set()
    await swapping
    await rig.repository.unload("m")
    assert rig.engine.ready()
    await rig.repository.unload("n")
    assert not rig.engine.ready()
    rig.engine.draining = True
    assert not rig.engine.ready()
    await rig.repository.close()
