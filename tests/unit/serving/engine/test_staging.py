"""Releases that are loaded before they are served: unreachable, kept through every synchronisation, taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.events import ModelRefused, VariantChosen
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.verdict import Verdict
from gateway.serving.domain.ports import Loaded
from gateway.serving.engine.settings import EngineSettings
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, refused, release, request, values

V1, V2 = manifest(version="1", variants=("a",)), manifest(version="2", variants=("b",))


async def committed_rig(settings: EngineSettings | None = None) -> Rig:
    """Return a rig with version 1 committed, version 2 staged; that answers tenfold."""
    rig = Rig(settings or EngineSettings())
    rig.runtime.factors["b"] = 10.0
    rig.trials["b"] = measured(50.0)
    await rig.commit(V1)
    await rig.stage(V2)
    return rig


async def fault_of(rig: Rig, **changes: object) -> Fault:
    with pytest.raises(RequestError) as error:
        await rig.engine.infer(request(**changes))  # type: ignore[arg-type]
    return error.value.fault


async def trying(rig: Rig, of: ModelManifest, digest: str = "d1") -> asyncio.Task[Loaded]:
    """Begin a load and return it once its trial has begun."""
    before = len(rig.tried)
    staging = asyncio.ensure_future(rig.stage(of, digest))
    while len(rig.tried) == before and not staging.done():
        await asyncio.sleep(0)
    return staging


async def fetching(rig: Rig, of: ModelManifest) -> asyncio.Task[Loaded]:
    """Begin a load and return it while its release is being fetched."""
    before = len(rig.fetched)
    staging = asyncio.ensure_future(rig.stage(of))
    while len(rig.fetched) == before:
        await asyncio.sleep(0)
    return staging


@pytest.mark.asyncio
async def test_what_is_staged_is_tried_open_and_answers_nothing() -> None:
    rig = Rig()
    rig.trials["b"] = measured(50.0)
    await rig.commit(V1)
    loaded = await rig.stage(V2)
    assert (loaded.variant, loaded.accelerator, loaded.measured) == ("b", "cpu", measured(50.0).measured)
    assert loaded.reason == rig.repository.standings()[1].placement.reason  # type: ignore[union-attr]
    assert rig.runtime.opened == ["a", "b"]
    assert (await rig.engine.infer(request())).version == "1"
    assert await fault_of(rig, version="2") is Fault.NOT_FOUND
    assert not rig.engine.ready("m", "2")
    assert rig.repository.versions("m") == ["1"]
    assert [line.version for line in rig.repository.index()] == ["1"]
    assert [(line.version, line.state, line.weight) for line in rig.repository.standings()] == [
        ("1", "READY", 100),
        ("2", "LOADED", 0),
    ]
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_a_first_release_of_a_model_is_not_found_until_it_is_committed() -> None:
    rig = Rig()
    await rig.stage(V1)
    assert await fault_of(rig) is Fault.NOT_FOUND
    assert rig.repository.index() == []
    await rig.commit(V1)
    assert (await rig.engine.infer(request())).version == "1"
    assert rig.runtime.opened == ["a"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_synchronisation_leaves_what_is_staged_alone() -> None:
    rig = await committed_rig()
    await rig.commit(V1)
    await rig.commit()
    assert [(line.version, line.state) for line in rig.repository.standings()] == [("2", "LOADED")]
    assert [session.closed for session in rig.runtime.sessions] == [1, 0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_committed_goes_on_without_being_opened_again() -> None:
    rig = await committed_rig()
    rig.repository.route("m", {"1": 0, "2": 100}, lease_s=60.0)
    await rig.engine.infer(request())
    await rig.commit(V2)
    assert rig.runtime.opened == ["a", "b"]
    assert values(await rig.engine.infer(request(2.0))) == [20.0]
    assert rig.engine.statistics("m", "2")[0].success.count == 2, "it goes on counting"
    assert [(line.version, line.state, line.weight) for line in rig.repository.standings()] == [("2", "READY", 100)]
    assert rig.runtime.sessions[0].closed == 1
    assert rig.engine.placement("m").signed
    assert [event.variant for event in rig.told(VariantChosen)] == ["a", "b", "b"]  # type: ignore[union-attr]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_another_digest_is_opened_anew_and_what_is_staged_stays() -> None:
    rig = await committed_rig()
    await rig.commit(V2, digest="d2")
    assert rig.runtime.opened == ["a", "b", "b"]
    await rig.repository.unstage("m", "2", 1.0)
    assert [session.closed for session in rig.runtime.sessions] == [1, 1, 0]
    assert (await rig.engine.infer(request())).version == "2"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_same_release_is_staged_once_and_another_takes_its_place() -> None:
    rig = await committed_rig()
    again = await rig.stage(V2)
    assert (again.variant, again.measured) == ("b", measured(50.0).measured)
    assert rig.runtime.opened == ["a", "b"]
    await rig.stage(V2, digest="d2")
    assert [session.closed for session in rig.runtime.sessions] == [0, 1, 0]
    await rig.commit(V2, digest="d2")
    assert rig.runtime.opened == ["a", "b", "b"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_staging_what_serves_tells_of_it() -> None:
    rig = await committed_rig()
    assert (await rig.stage(V1)).variant == "a"
    assert rig.runtime.opened == ["a", "b"]
    assert [line.state for line in rig.repository.standings()] == ["READY", "LOADED"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_release_that_fails_its_trial_is_refused_with_the_reason_and_disturbs_nobody() -> None:
    rig = Rig(trials={"b": Verdict(False, "agreement 0.2 (at least 0.99)")})
    await rig.commit(V1)
    with pytest.raises(VariantError, match=r"b: agreement 0\.2"):
        await rig.stage(V2)
    assert [line.version for line in rig.repository.standings()] == ["1"]
    assert [event.version for event in rig.told(ModelRefused)] == ["2"]  # type: ignore[union-attr]
    with pytest.raises(VariantError, match="broken"):
        await rig.stage_release(refused("n"))
    assert not rig.engine.ready("n")
    await rig.repository.close()


@pytest.mark.asyncio
async def test_synchronising_does_not_wait_for_a_trial_of_what_is_staged() -> None:
    rig = Rig()
    await rig.commit(V1)
    rig.trial_gate.clear()
    staging = await trying(rig, V2)
    await rig.commit(V1)
    assert (await rig.engine.infer(request())).version == "1"
    rig.trial_gate.set()
    assert (await staging).variant == "b"
    await rig.repository.close()


async def loaded_and_committed_at_once(rig: Rig, first: str, between: Callable[[], None] = lambda: None) -> Loaded:
    """Try both at once; `first` ends first, "load" or "commit". Return what the load tells."""
    rig.trial_gate = gate = asyncio.Event()
    loading = await trying(rig, V2)
    rig.trial_gate = other_gate = asyncio.Event()
    committing = asyncio.ensure_future(rig.commit(V2))
    while len(rig.tried) < 2:
        await asyncio.sleep(0)
    ends = [(gate, loading), (other_gate, committing)]
    for end, task in ends if first == "load" else reversed(ends):
        end.set()
        await asyncio.wait({task})
        between()
    return await loading


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["load", "commit"])
async def test_a_release_that_is_loaded_and_committed_at_once_stays_loaded_once(first: str) -> None:
    rig = Rig()
    assert (await loaded_and_committed_at_once(rig, first)).variant == "b"
    assert [(line.version, line.state) for line in rig.repository.standings()] == [("2", "READY")]
    assert rig.runtime.memory_bytes == 1_000_000
    assert (await rig.engine.infer(request())).version == "2"
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["load", "commit"])
async def test_who_fails_beside_another_that_brought_the_same_release_up_takes_that(first: str) -> None:
    rig, failed = Rig(), Verdict(False, "no memory for two at once", transient=True)
    loaded = await loaded_and_committed_at_once(rig, first, lambda: rig.trials.update(b=failed))
    assert loaded.variant == "b"
    assert [(line.version, line.state, line.reason) for line in rig.repository.standings()] == [("2", "READY", "")]
    assert not rig.told(ModelRefused)
    assert rig.runtime.opened == ["b"]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["cancelled", "closed"])
async def test_a_stager_who_leaves_and_a_gateway_that_stops_keep_no_session(ending: str) -> None:
    rig = Rig()
    rig.runtime.gate.clear()
    staging = asyncio.ensure_future(rig.stage(V2))
    await asyncio.to_thread(rig.runtime.opening.acquire)
    if ending == "cancelled":
        staging.cancel()
    else:
        await rig.repository.close()
    rig.runtime.gate.set()
    (outcome,) = await asyncio.gather(staging, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError if ending == "cancelled" else VariantError)
    while not (rig.runtime.sessions and rig.session.closed):
        await asyncio.sleep(0)
    assert rig.repository.standings() == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_unstaged_while_it_is_tried_is_not_kept() -> None:
    rig = Rig(limits_with(staged_versions=1))
    await rig.commit(V1)
    rig.trial_gate.clear()
    staging = await trying(rig, V2)
    await rig.repository.unstage("m", "2", 0.0)
    rig.trial_gate.set()
    with pytest.raises(VariantError, match="version 2 was unloaded or loaded again meanwhile") as error:
        await staging
    assert error.value.transient
    assert [session.closed for session in rig.runtime.sessions] == [0, 1]
    assert [(line.version, line.state) for line in rig.repository.standings()] == [("1", "READY")]
    await rig.stage(manifest("other"))
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["unloaded", "closed"])
async def test_what_is_not_wanted_any_more_once_it_is_fetched_is_not_even_tried(ending: str) -> None:
    rig = Rig()
    rig.fetch_gate.clear()
    staging = await fetching(rig, V2)
    await (rig.repository.unstage("m", "2", 0.0) if ending == "unloaded" else rig.repository.close())
    rig.fetch_gate.set()
    with pytest.raises(VariantError, match=r"meanwhile|the gateway stops") as error:
        await staging
    assert error.value.transient
    assert rig.tried == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_still_fetched_takes_a_place_and_what_serves_takes_none() -> None:
    rig = Rig(limits_with(staged_versions=1))
    await rig.commit(V1)
    rig.fetch_gate.clear()
    staging = await fetching(rig, V2)
    with pytest.raises(RequestError, match="1 versions are loaded for updates or about to be"):
        await rig.stage(manifest("other"))
    assert rig.fetched == ["2"], "nothing is fetched where there is no room"
    rig.fetch_gate.set()
    await staging
    assert (await rig.stage(V1)).variant == "a"
    with pytest.raises(RequestError, match="unload one of them"):
        await rig.stage(V1, "other than what serves")
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_load_after_an_unload_is_kept_and_not_the_one_before() -> None:
    rig = Rig()
    rig.trial_gate.clear()
    first = await trying(rig, V2)
    await rig.repository.unstage("m", "2", 0.0)
    second = await trying(rig, V2)
    rig.trial_gate.set()
    with pytest.raises(VariantError, match="meanwhile"):
        await first
    assert (await second).variant == "b"
    assert sorted(session.closed for session in rig.runtime.sessions) == [0, 1]  # both trials end at once
    await rig.repository.unstage("m", "2", 5.0)
    assert rig.runtime.memory_bytes == 0
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("staged_before", [False, True])
async def test_of_two_loads_of_a_version_the_later_one_is_kept_though_it_ends_first(*, staged_before: bool) -> None:
    rig = Rig()
    await rig.stage(V2, "later")
    if not staged_before:
        await rig.repository.unstage("m", "2", 5.0)
    rig.trial_gate.clear()
    earlier = await trying(rig, manifest(version="2", variants=("slow",)), "earlier")
    assert (await rig.stage(V2, "later")).variant == "b"
    rig.trial_gate.set()
    with pytest.raises(VariantError, match="meanwhile"):
        await earlier
    assert [line.placement.variant for line in rig.repository.standings() if line.placement] == ["b"]
    assert rig.runtime.memory_bytes == 1_000_000
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_loaded_beside_what_serves_as_the_same_version_can_be_unloaded_meanwhile() -> None:
    rig = Rig()
    await rig.commit(V1)
    rig.trial_gate.clear()
    staging = await trying(rig, manifest(version="1", variants=("b",)), "d2")
    await rig.repository.unstage("m", "1", 0.0)
    rig.trial_gate.set()
    with pytest.raises(VariantError, match="meanwhile"):
        await staging
    assert [(line.version, line.state) for line in rig.repository.standings()] == [("1", "READY")]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_still_tried_takes_a_place_of_those_that_may_be_staged() -> None:
    rig = Rig(limits_with(staged_versions=1))
    rig.trial_gate.clear()
    staging = await trying(rig, V2)
    other = await trying(rig, manifest("other"))
    again = await trying(rig, V2)
    rig.trial_gate.set()
    with pytest.raises(RequestError, match="1 versions are loaded for updates or about to be") as error:
        await other
    assert error.value.fault is Fault.OVERLOADED
    await asyncio.gather(staging, again, return_exceptions=True)  # the later one has replaced the other
    assert [(line.model, line.version) for line in rig.repository.standings()] == [("m", "2")]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["cancelled", "refused"])
async def test_a_load_that_comes_to_nothing_gives_its_place_back(ending: str) -> None:
    rig = Rig(limits_with(staged_versions=1), trials={"b": Verdict(False, "corrupt")})
    rig.trial_gate.clear()
    staging = await trying(rig, V2)
    if ending == "cancelled":
        staging.cancel()
    rig.trial_gate.set()
    (outcome,) = await asyncio.gather(staging, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError if ending == "cancelled" else VariantError)
    await rig.stage(manifest("other"))
    await rig.repository.close()


@pytest.mark.asyncio
async def test_unstaging_finishes_what_is_under_way_and_may_be_repeated() -> None:
    rig = await committed_rig(limits_with(inline_limit_us=0))
    rig.repository.route("m", {"2": 100}, lease_s=60.0)
    rig.session.gate.clear()
    asked = asyncio.ensure_future(rig.engine.infer(request(2.0)))
    await rig.begun()
    unstaging = asyncio.ensure_future(rig.repository.unstage("m", "2", 5.0))
    await asyncio.sleep(0)
    assert (await rig.engine.infer(request(3.0))).version == "1"
    rig.session.gate.set()
    await unstaging
    assert values(await asked) == [20.0]
    assert rig.session.closed == 1
    await rig.repository.unstage("m", "2", 5.0)
    await rig.repository.unstage("nobody", "1", 5.0)
    assert [line.version for line in rig.repository.standings()] == ["1"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_committed_cannot_be_unstaged() -> None:
    rig = await committed_rig()
    with pytest.raises(RequestError, match="commit another one first") as error:
        await rig.repository.unstage("m", "1", 1.0)
    assert error.value.fault is Fault.DENIED
    assert rig.engine.ready("m", "1")
    await rig.repository.close()


@pytest.mark.asyncio
async def test_only_so_many_versions_are_staged() -> None:
    rig = await committed_rig(limits_with(staged_versions=1))
    with pytest.raises(RequestError, match="unload one of them") as error:
        await rig.stage(manifest(version="3"))
    assert error.value.fault is Fault.OVERLOADED
    await rig.stage(V2, digest="d2")
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_committed_is_the_default_and_not_the_newest() -> None:
    rig = Rig()
    hand_given = release(manifest(version="9"))
    await rig.repository.synchronise([release(V1, signed=True), hand_given])
    assert (await rig.engine.infer(request())).version == "1"
    assert (await rig.engine.infer(request(version="9"))).version == "9"
    assert (rig.engine.placement("m").signed, rig.engine.placement("m", "9").signed) == (True, False)
    await rig.repository.synchronise([release(V2, signed=True), hand_given])
    await rig.repository.synchronise([release(V1, signed=True), hand_given])
    assert (await rig.engine.infer(request())).version == "1"
    await rig.repository.synchronise([hand_given])
    assert (await rig.engine.infer(request())).version == "9"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_commit_that_cannot_be_brought_up_leaves_the_old_version_serving() -> None:
    rig = Rig(trials={"b": Verdict(False, "corrupt")})
    await rig.commit(V1)
    await rig.commit(V2)
    assert (await rig.engine.infer(request())).version == "1"
    assert [(line.version, line.state) for line in rig.repository.index()] == [("1", "READY"), ("2", "UNAVAILABLE")]
    rig.trials["b"] = Verdict(True, "mended", level="proven")
    rig.verdicts.verdicts.clear()
    await rig.commit(V2)
    assert [(line.version, line.state) for line in rig.repository.index()] == [("2", "READY")]
    await rig.repository.close()
