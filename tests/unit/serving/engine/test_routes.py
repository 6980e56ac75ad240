"""Requests that name no version, shared by weight for as long as the lease is renewed."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import LeaseRanOut, RouteChanged
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.sizes import request_sizes, widest
from gateway.serving.engine.servable import Servable
from gateway.serving.engine.settings import EngineSettings, QuotaSettings
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.versions import LoadedVersion
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, release, request, values

V1, V2 = manifest(version="1", variants=("a",)), manifest(version="2", variants=("b",))


async def shared_rig(settings: EngineSettings | None = None) -> Rig:
    """Return a rig with version 1 committed, version 2 staged."""
    rig = Rig(settings or EngineSettings())
    await rig.commit(V1)
    await rig.stage(V2)
    return rig


async def answered(rig: Rig, count: int = 100) -> Counter[str]:
    """Return how many of so many requests each version answered."""
    answers = await asyncio.gather(*(rig.engine.infer(request()) for _ in range(count)))
    return Counter(answer.version for answer in answers)


def standings(rig: Rig) -> list[tuple[str, str, int]]:
    return [(line.version, line.state, line.weight) for line in rig.repository.standings()]


@pytest.mark.asyncio
async def test_requests_are_shared_exactly_and_each_version_can_be_named() -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 95, "2": 5}, lease_s=60.0)
    assert await answered(rig) == {"1": 95, "2": 5}
    assert (await rig.engine.infer(request(version="1"))).version == "1"
    assert (await rig.engine.infer(request(version="2"))).version == "2"
    assert standings(rig) == [("1", "READY", 95), ("2", "READY", 5)]
    assert [(line.version, line.state) for line in rig.repository.index()] == [("1", "READY"), ("2", "READY")]
    assert [counted.weight for counted in rig.engine.statistics("m")] == [95, 5]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_told_of_the_model_is_the_main_versions() -> None:
    rig = await shared_rig()
    for weights, main in (({"1": 95, "2": 5}, "1"), ({"1": 5, "2": 95}, "2")):
        rig.repository.route("m", weights, lease_s=60.0)
        assert rig.engine.describe("m").version == main
        assert rig.engine.placement("m").variant == {"1": "a", "2": "b"}[main]
        assert rig.engine.ready("m")
    await rig.repository.close()


@pytest.mark.asyncio
async def test_renewing_goes_on_where_the_turns_are() -> None:
    rig = await shared_rig()
    versions: Counter[str] = Counter()
    for _ in range(100):
        rig.repository.route("m", {"1": 95, "2": 5}, lease_s=60.0)
        versions += await answered(rig, 1)
    assert versions == {"1": 95, "2": 5}
    assert rig.told(RouteChanged) == [RouteChanged("m", {"1": 95, "2": 5})], "renewing changes nothing"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_after_the_shift_the_route_is_a_plain_one() -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 95, "2": 5}, lease_s=60.0)
    rig.repository.route("m", {"1": 0, "2": 100}, lease_s=60.0)
    assert isinstance(rig.registry.find("m"), Servable)
    assert await answered(rig, 3) == {"2": 3}
    rig.repository.route("m", {"1": 100}, lease_s=60.0)
    assert isinstance(rig.registry.find("m"), Servable)
    assert await answered(rig, 3) == {"1": 3}
    assert standings(rig) == [("1", "READY", 100), ("2", "LOADED", 0)]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("weights", "shadow", "lease_s", "fault", "words"),
    [
        ({"1": 95}, "", 60.0, Fault.INVALID, "add up to 95"),
        ({"1": 95, "3": 5}, "", 60.0, Fault.NOT_FOUND, "version 3 is not loaded; load it"),
        ({"1": 100, "3": 0}, "", 60.0, Fault.NOT_FOUND, "version 3 is not loaded"),
        ({"1": 100}, "3", 60.0, Fault.NOT_FOUND, "version 3 is not loaded"),
        ({"1": 100}, "1", 60.0, Fault.INVALID, "nothing to compare"),
        ({"1": 100}, "", 0.0, Fault.INVALID, "must be above 0 and at most 3600 s"),
        ({"1": 100}, "", float("nan"), Fault.INVALID, "a lease of nan s"),
        ({"1": 100}, "", 3601.0, Fault.INVALID, "a lease of 3601 s"),
    ],
)
async def test_a_route_that_cannot_be_is_refused_whole(
    weights: dict[str, int], shadow: str, lease_s: float, fault: Fault, words: str
) -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 60, "2": 40}, lease_s=60.0)
    with pytest.raises(RequestError) as error:
        rig.repository.route("m", weights, shadow=shadow, lease_s=lease_s)
    assert error.value.fault is fault
    assert words in error.value.message
    assert await answered(rig) == {"1": 60, "2": 40}
    with pytest.raises(RequestError, match="unknown model: 'nobody'"):
        rig.repository.route("nobody", {"1": 100}, lease_s=60.0)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_lease_that_nobody_renews_gives_everything_back() -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 5, "2": 95}, lease_s=0.001)
    while not rig.told(LeaseRanOut):
        await asyncio.sleep(0.001)
    assert rig.told(LeaseRanOut) == [LeaseRanOut("m", {"1": 5, "2": 95})]
    assert await answered(rig) == {"1": 100}
    assert standings(rig) == [("1", "READY", 100), ("2", "LOADED", 0)]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_the_default_anyway_needs_no_lease() -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 100}, lease_s=60.0)
    assert (rig.told(RouteChanged), rig.repository._leases._timers) == ([], {})
    rig.repository.route("m", {"2": 100}, lease_s=60.0)
    await rig.commit(V2)
    assert rig.repository._leases._timers == {}
    assert await answered(rig, 3) == {"2": 3}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_version_that_is_unloaded_leaves_its_share_to_the_others() -> None:
    rig = await shared_rig()
    await rig.stage(manifest(version="3"))
    rig.repository.route("m", {"1": 50, "2": 25, "3": 25}, shadow="2", lease_s=60.0)
    changed = list[str]()
    rig.repository.changed = lambda: changed.append("m")
    await rig.repository.unstage("m", "3", 1.0)
    assert changed == ["m"]
    assert await answered(rig, 75) == {"1": 50, "2": 25}
    assert standings(rig) == [("1", "READY", 67), ("2", "READY", 33)]
    await rig.repository.unstage("m", "2", 1.0)
    assert await answered(rig) == {"1": 100}
    assert [event.weights for event in rig.told(RouteChanged)] == [  # type: ignore[union-attr]
        {"1": 50, "2": 25, "3": 25},
        {"1": 67, "2": 33},
        {"1": 100},
    ]
    assert rig.told(RouteChanged)[-1].reason == "version 2 is unloaded"  # type: ignore[union-attr]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_where_the_committed_version_goes_the_staged_one_answers_on() -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 95, "2": 5}, shadow="2", lease_s=60.0)
    await rig.commit()
    assert await answered(rig, 3) == {"2": 3}
    assert isinstance(rig.registry.find("m"), Servable), "there is nobody left to compare it with"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_better_variant_takes_over_within_a_split() -> None:
    rig = Rig(trials={"a": measured(100.0), "c": measured(10.0)})
    await rig.commit(manifest(version="1", variants=("a", "c")))
    await rig.stage(V2)
    rig.repository.route("m", {"1": 50, "2": 50}, lease_s=60.0)
    await rig.repository.refine()
    answers = await asyncio.gather(*(rig.engine.infer(request()) for _ in range(4)))
    assert sorted(answer.variant for answer in answers) == ["b", "b", "c", "c"]
    assert rig.engine.placement("m").variant == "b", "the newest of equals"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_unloading_the_model_ends_its_route() -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 5, "2": 95}, lease_s=60.0)
    await rig.repository.unload("m")
    assert not rig.engine.ready("m")
    assert standings(rig) == [("1", "UNAVAILABLE", 0), ("2", "LOADED", 0)]
    rig.disk["m"] = (release(V1, signed=True),)
    await rig.repository.load("m")
    assert await answered(rig, 3) == {"1": 3}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_quotas_count_a_shared_request_once() -> None:
    rig = await shared_rig(limits_with(quota=(QuotaSettings("*", in_flight=2),), inline_limit_us=0))
    rig.repository.route("m", {"1": 50, "2": 50}, shadow="2", lease_s=60.0)
    for session in rig.runtime.sessions:
        session.gate.clear()
    asked = [asyncio.ensure_future(rig.engine.infer(request())) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="has 2 requests under way"):
        await rig.engine.infer(request())
    for session in rig.runtime.sessions:
        session.gate.set()
    await asyncio.gather(*asked)
    assert await answered(rig, 2) == {"1": 1, "2": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_request_is_checked_against_every_version_that_may_answer() -> None:
    rig = await shared_rig()
    rig.repository.route("m", {"1": 50, "2": 50}, lease_s=60.0)
    rig.engine.check(request())
    strange = InferRequest("m", {"other": Tensor(Datatype.FP32, np.zeros((1, 1), np.float32))})
    for version in ("", "1", "2"):
        strange.version = version
        with pytest.raises(RequestError, match="unexpected inference input 'other'") as caught:
            rig.engine.check(strange)
        assert caught.value.fault is Fault.INVALID
    with pytest.raises(RequestError) as caught:
        rig.engine.check(InferRequest("none", {}))
    assert caught.value.fault is Fault.NOT_FOUND
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_largest_request_is_that_of_all_versions() -> None:
    rig = await shared_rig()
    slack, rows = rig.settings.request_slack_bytes, rig.settings.max_batch_rows
    wide = replace(V2, inputs=(replace(V2.inputs[0], shape=(-1, 50)),))
    one = request_sizes(V1, rows, slack)
    assert rig.engine.sizes("m") == one
    await rig.stage(wide, digest="d2")
    assert rig.engine.sizes("m") == widest([one, request_sizes(wide, rows, slack)])
    with pytest.raises(RequestError) as caught:
        rig.engine.sizes("none")
    assert caught.value.fault is Fault.NOT_FOUND
    await rig.repository.close()


class OtherTarget:
    """Target that is no servable: it passes everything on to one, as a model that is loaded on demand would."""

    def __init__(self, target: ModelTarget) -> None:
        self._target = target

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)


@pytest.mark.asyncio
async def test_a_version_may_be_served_by_a_target_that_is_no_servable() -> None:
    rig = Rig()
    await rig.serve(manifest(variants=("a", "b")))
    entry = rig.registry.entry("m")
    held = entry.record("1").serving
    assert held is not None
    entry.serve("1", LoadedVersion(held.release, cast("ModelTarget", OtherTarget(held.target))))
    assert values(await rig.engine.infer(request(2.0))) == [2.0]
    assert [one.success.count for one in rig.engine.statistics("m")] == [1]
    await rig.repository.refine()
    assert rig.tried == ["a", "b"]
    await rig.serve()
    assert rig.repository.index() == []
