"""Answers that are kept: by content, bounded, dropped with their release; nothing changes for other models."""

from __future__ import annotations

import asyncio
import mmap
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from gateway.common.domain.errors import RequestError, VariantError
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.common.domain.verdict import Measurement
from gateway.serving.domain.infer import InferResponse
from gateway.serving.engine import waking
from gateway.serving.engine.admission import Form
from gateway.serving.engine.cold import ColdVersion
from gateway.serving.engine.response_cache import KeptAnswer, ResponseCache, _digest
from gateway.serving.engine.settings import MIB, CacheSettings, ResidencySettings, ResidentSettings
from tests.simulators.engine_rig import PASSED, Rig, manifest, measured, release, request, values, variant

FORM = Form(1, (), (), plain=True, finite=(), encoded=())


def cached(age_s: float = 60.0) -> Rig:
    return Rig(residency=ResidencySettings(cache=(CacheSettings("m", 1, age_s),)))


def kept(nbytes: int, at_ns: int = 0) -> KeptAnswer:
    return KeptAnswer(InferResponse("m", "1", "", {}), FORM, nbytes, at_ns)


def test_the_least_recently_used_answers_go_first() -> None:
    cache = ResponseCache(CacheSettings("m", 1))
    for name in (b"a", b"b"):
        cache.put((("d",), name), kept(MIB // 2))
    assert cache.get((("d",), b"a"), 0) is not None
    cache.put((("d",), b"c"), kept(MIB // 2))
    assert [cache.get((("d",), name), 0) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    cache.put((("d",), b"large"), kept(MIB + 1))
    assert cache.nbytes == MIB
    cache.keep({("other",)})
    assert cache.nbytes == 0


def test_an_old_answer_is_not_given() -> None:
    cache = ResponseCache(CacheSettings("m", age_s=1.0))
    cache.put((("d",), b"a"), kept(1, at_ns=0))
    assert cache.get((("d",), b"a"), 1_000_000_000) is not None
    assert cache.get((("d",), b"a"), 1_000_000_001) is None
    assert cache.nbytes == 0


def test_whatever_an_answer_depends_on_is_in_the_digest() -> None:
    def texts(*items: bytes) -> object:
        one = request()
        one.inputs["x"] = Tensor(Datatype.BYTES, np.array(items, object))
        return one

    wide = request(1.0, rows=2)
    asked = [request(1.0), request(2.0), wide, request(1.0, width=2), texts(b"ab", b"c"), texts(b"a", b"bc")]
    digests = {_digest(one, variant) for one in asked for variant in ("a", "b")}  # type: ignore[arg-type]
    assert len(digests) == 2 * len(asked)
    assert _digest(request(1.0), "a") == _digest(request(1.0, caller="other", id="7", priority=3), "a")
    turned = request(rows=2, width=2)
    turned.inputs["x"] = Tensor(Datatype.FP32, np.asfortranarray([[1, 2], [3, 4]], np.float32))
    same = request(rows=2, width=2)
    same.inputs["x"] = Tensor(Datatype.FP32, np.array([[1, 2], [3, 4]], np.float32))
    assert _digest(turned, "a") == _digest(same, "a"), "the order in memory does not count"


@pytest.mark.asyncio
async def test_a_request_of_equal_content_gets_the_kept_answer_with_its_own_id() -> None:
    rig = cached()
    await rig.serve(manifest())
    first = await rig.engine.infer(request(2.0, id="1"))
    second = await rig.engine.infer(request(2.0, id="2"))
    assert (values(first), values(second)) == ([2.0], [2.0])
    assert (first.id, second.id) == ("1", "2")
    assert rig.session.runs == [[2.0]]
    (counted,) = rig.engine.statistics("m")
    assert (counted.cache_hit.count, counted.cache_miss.count) == (1, 1)
    assert (counted.success.count, counted.executions) == (2, 1)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_new_release_answers_itself() -> None:
    rig = cached()
    rig.runtime.factors["b"] = 3.0
    await rig.serve(manifest())
    await rig.engine.infer(request(2.0))
    assert rig.registry.caches["m"].nbytes
    await rig.repository.synchronise([release(manifest(variants=("b",)), "d2")])
    assert rig.registry.caches["m"].nbytes == 0
    assert values(await rig.engine.infer(request(2.0))) == [6.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_another_release_answered_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    used = count(0, 700_000)  # so each opening adds that: one version has room
    monkeypatch.setattr(waking, "used_bytes", lambda: next(used))
    pinned = ResidentSettings("other", pin=True)
    rig = Rig(residency=ResidencySettings(1, model=(pinned,), cache=(CacheSettings("m", 1, 60.0),)))
    rig.trials = dict.fromkeys("abc", replace(PASSED, measured=Measurement(2000.0, 2000.0, 2000.0, MIB)))
    first, second = (replace(manifest(), variants=(replace(variant(name), name="v"),)) for name in "ab")
    rig.trials["v"] = rig.trials["a"]
    other = release(manifest("other", variants=("c",)), "d0")
    await rig.repository.synchronise([other, release(first, "d1")])
    target = rig.registry.serving("m", "1")
    assert isinstance(target, ColdVersion)
    asked = asyncio.ensure_future(rig.engine.infer(request(2.0)))
    while not target.busy:
        await asyncio.sleep(0)
    rig.runtime.factors["v"] = 100.0
    await rig.repository.synchronise([release(second, "d2")])
    assert values(await asked) == [200.0]
    assert rig.registry.caches["m"].nbytes == 0
    assert values(await rig.engine.infer(request(2.0))) == [200.0]
    assert rig.registry.caches["m"].nbytes > 0
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_another_variant_answered_is_not_kept() -> None:
    rig = cached()
    rig.trials |= {"a": measured(1000.0), "b": measured(5000.0)}
    rig.runtime.factors["b"] = 2.0
    await rig.serve(manifest(variants=("a", "b")))
    await rig.repository.refine()
    rig.session.failure = VariantError("the chip: [Errno 19] No such device")
    assert values(await rig.engine.infer(request(2.0))) == [4.0]
    assert rig.registry.caches["m"].nbytes == 0
    await rig.repository.close()


@pytest.mark.asyncio
async def test_requests_in_shared_memory_are_not_kept() -> None:
    rig = cached()
    await rig.serve(manifest())
    with mmap.mmap(-1, 4) as memory:
        shared = request()
        array = np.frombuffer(memoryview(memory), np.float32).reshape(1, 1)
        shared.inputs["x"] = Tensor(Datatype.FP32, array)
        assert values(await rig.engine.infer(shared)) == [0.0]
        assert rig.registry.caches["m"].nbytes == 0
        await rig.repository.close()
        del array, shared
        rig.session.runs.clear()


@pytest.mark.asyncio
async def test_failures_are_not_kept_and_callers_may_leave() -> None:
    rig = cached()
    await rig.serve(manifest())
    rig.session.rejected = 5.0
    for _ in range(2):
        with pytest.raises(RequestError):
            await rig.engine.infer(request(5.0))
    assert rig.session.runs.count([5.0]) == 2
    await rig.engine.infer(request(2.0))
    leaver = asyncio.ensure_future(rig.engine.infer(request(2.0)))
    await asyncio.sleep(0)
    leaver.cancel()
    assert values(await rig.engine.infer(request(2.0))) == [2.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_shadow_and_shares_have_their_own_answers() -> None:
    rig = cached()
    rig.runtime.factors["b"] = 10.0
    await rig.serve(manifest(version="1", variants=("a",)), manifest(version="2", variants=("b",)))
    rig.repository.route("m", {"1": 50, "2": 50}, shadow="2", lease_s=60.0)
    found = [values(await rig.engine.infer(request(1.0)))[0] for _ in range(8)]
    assert sorted(found) == [1.0] * 4 + [10.0] * 4
    await rig.repository.close()


@pytest.mark.asyncio
async def test_other_models_have_no_cache_in_their_way() -> None:
    rig = cached()
    await rig.serve(manifest("other"))
    assert rig.registry.find("other") is rig.registry.serving("other", "1")
    await rig.repository.close()
