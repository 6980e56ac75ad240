"""Models that come, change and go while requests are under way: nothing in flight is lost."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import EntryIgnored, ModelRefused, ServableChanged, VariantChosen
from gateway.common.domain.release import NO_VERSION
from gateway.serving.engine.settings import EngineSettings
from tests.simulators.engine_rig import Rig, limits_with, manifest, refused, release, request, values
from tests.simulators.images_made import image_manifest, image_request


async def caught(rig: Rig, **changes: object) -> RequestError:
    with pytest.raises(RequestError) as error:
        await rig.engine.infer(request(**changes))  # type: ignore[arg-type]
    return error.value


@pytest.mark.asyncio
async def test_the_old_session_serves_until_the_new_one_has_passed() -> None:
    rig = Rig()
    await rig.serve(manifest())
    rig.runtime.factors["b"] = 10.0
    rig.trial_gate.clear()
    swapping = asyncio.ensure_future(rig.serve(manifest(variants=("b",)), digest="d2"))
    while "b" not in rig.tried:
        await asyncio.sleep(0)
    assert values(await rig.engine.infer(request(2.0))) == [2.0]
    rig.trial_gate.set()
    await swapping
    assert values(await rig.engine.infer(request(2.0))) == [20.0]
    assert [session.closed for session in rig.runtime.sessions] == [1, 0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_swap_under_load_loses_no_request() -> None:
    rig = Rig()
    await rig.serve(manifest())
    old = rig.session
    old.gate.clear()
    waiting = [asyncio.ensure_future(rig.engine.infer(request(float(value)))) for value in range(5)]
    await rig.begun()
    swapping = asyncio.ensure_future(rig.serve(manifest(variants=("b",)), digest="d2"))
    while rig.session is old or rig.registry.find("m").placement.variant != "b":
        await asyncio.sleep(0)
    fresh = await rig.engine.infer(request(9.0))
    assert fresh.variant == "b"
    old.gate.set()
    answers = await asyncio.gather(*waiting)
    await swapping
    assert [values(answer) for answer in answers] == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert {answer.variant for answer in answers} == {"a"}
    assert old.closed == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_request_whose_image_is_still_decoded_survives_the_swap() -> None:
    rig = Rig(limits_with(image_threads=1))
    first, second = (image_manifest(variants=(name,)) for name in "ab")
    await rig.serve(first)
    decoder_is_free = threading.Event()
    rig.repository._decoders.submit(decoder_is_free.wait)
    asked = asyncio.ensure_future(rig.engine.infer(image_request(count=3)))
    await asyncio.sleep(0)
    assert rig.registry.find("m").pending == 1
    swapping = asyncio.ensure_future(rig.serve(second, digest="d2"))
    while "UNLOADING" not in str(rig.told(ServableChanged)):
        await asyncio.sleep(0)
    decoder_is_free.set()
    answer = await asked
    await swapping
    assert (answer.variant, answer.outputs["y"].array.shape) == ("a", (3, 1, 2, 2))
    assert not np.isnan(answer.outputs["y"].array).any()
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_changed_file_that_does_not_pass_leaves_the_old_version_serving() -> None:
    rig = Rig()
    await rig.serve(manifest())
    await rig.repository.synchronise([refused("m")])
    assert values(await rig.engine.infer(request(3.0))) == [3.0]
    (line,) = rig.repository.index()
    assert (line.state, line.reason) == ("READY", "a newer file is refused: manifest.toml:3: broken")
    await rig.serve(manifest())
    assert rig.repository.index()[0].reason == ""
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_refused_model_leaves_the_others_and_the_server_ready() -> None:
    rig = Rig()
    await rig.repository.synchronise([refused("bad"), release(manifest("good"))])
    assert values(await rig.engine.infer(request(2.0, model="good"))) == [2.0]
    assert rig.engine.ready()
    assert rig.engine.ready("good")
    assert not rig.engine.ready("bad")
    assert not rig.engine.ready("unknown")
    error = await caught(rig, model="bad")
    assert error.fault is Fault.UNAVAILABLE
    assert "manifest.toml:3: broken" in error.message
    assert [(line.name, line.state) for line in rig.repository.index()] == [("bad", "UNAVAILABLE"), ("good", "READY")]
    assert [event.model for event in rig.told(ModelRefused)] == ["bad"]  # type: ignore[union-attr]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_entry_that_is_no_version_is_told_as_ignored() -> None:
    rig = Rig()
    await rig.repository.synchronise([refused("notes.txt", NO_VERSION), release(manifest("good"))])
    assert [event.path for event in rig.told(EntryIgnored)] == ["notes.txt"]  # type: ignore[union-attr]
    assert not rig.told(ModelRefused)
    assert rig.engine.ready()
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("failure", [RuntimeError("segment 3"), OSError("gone"), MemoryError()])
async def test_an_engine_that_raises_whatever_refuses_its_model_only(failure: Exception) -> None:
    rig = Rig()
    rig.runtime.refuses["b"] = failure
    await rig.serve(manifest("bad", variants=("b",)), manifest("good"))
    assert rig.engine.ready("good")
    assert type(failure).__name__ in (await caught(rig, model="bad")).message
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_is_gone_from_disk_is_drained_and_forgotten() -> None:
    rig = Rig()
    await rig.serve(manifest("m"), manifest("n"))
    await rig.serve(manifest("n"))
    assert (await caught(rig)).fault is Fault.NOT_FOUND
    assert [line.name for line in rig.repository.index()] == ["n"]
    assert rig.runtime.memory_bytes == 1_000_000
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_the_newest_version_answers_and_each_can_be_named() -> None:
    rig = Rig()
    rig.runtime.factors |= {"nine": 9.0, "ten": 10.0}
    await rig.serve(manifest(version="9", variants=("nine",)), manifest(version="10", variants=("ten",)))
    assert values(await rig.engine.infer(request(1.0))) == [10.0]
    assert values(await rig.engine.infer(request(1.0, version="9"))) == [9.0]
    assert rig.repository.versions("m") == ["9", "10"]
    assert (await caught(rig, version="3")).fault is Fault.NOT_FOUND
    await rig.repository.close()


@pytest.mark.asyncio
async def test_closing_finishes_what_is_queued_and_frees_every_session() -> None:
    rig = Rig()
    await rig.serve(manifest("m"), manifest("n"))
    rig.session.gate.clear()
    waiting = [asyncio.ensure_future(rig.engine.infer(request(float(value), model="n"))) for value in range(3)]
    await rig.begun()
    closing = asyncio.ensure_future(rig.repository.close())
    await asyncio.sleep(0)
    rig.session.gate.set()
    await closing
    assert [values(answer) for answer in await asyncio.gather(*waiting)] == [[0.0], [1.0], [2.0]]
    assert rig.runtime.memory_bytes == 0
    late = await caught(rig)
    assert late.fault is Fault.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_drain_that_takes_too_long_refuses_what_still_waits() -> None:
    rig = Rig(EngineSettings(drain_s=0.01))
    await rig.serve(manifest())
    rig.session.gate.clear()
    running, waiting = (asyncio.ensure_future(rig.engine.infer(request(value))) for value in (1.0, 2.0))
    await rig.begun()
    closing = asyncio.ensure_future(rig.repository.close())
    with pytest.raises(RequestError) as error:
        await waiting
    assert error.value.fault is Fault.UNAVAILABLE
    rig.session.gate.set()
    await closing
    assert values(await running) == [1.0]
    assert rig.session.runs == [[1.0]]


@pytest.mark.asyncio
async def test_a_run_that_hangs_does_not_hold_up_the_stop() -> None:
    rig = Rig(EngineSettings(drain_s=0.01))
    await rig.serve(manifest())
    rig.session.gate.clear()
    stuck = asyncio.ensure_future(rig.engine.infer(request()))
    try:
        await rig.begun()
        await rig.repository.close()
        assert "a run hangs; its thread is left behind" in str(rig.events)
    finally:
        rig.session.gate.set()
    with pytest.raises(RequestError, match="was unloaded"):
        await stuck


@pytest.mark.asyncio
async def test_a_session_that_fails_to_close_is_reported_and_does_not_block() -> None:
    rig = Rig()
    await rig.serve(manifest())
    rig.session.close_failure = RuntimeError("driver busy")
    await rig.repository.close()
    assert "close: RuntimeError: driver busy" in str(rig.events)


@pytest.mark.asyncio
async def test_states_are_announced_on_the_safe_side() -> None:
    rig = Rig()
    await rig.serve(manifest())
    await rig.repository.close()
    states = [event.state for event in rig.told(ServableChanged)]  # type: ignore[union-attr]
    assert states == ["LOADING", "AVAILABLE", "UNLOADING", "END"]
    assert len(rig.told(VariantChosen)) == 1


@pytest.mark.asyncio
async def test_statistics_outlive_a_swap_of_variants_but_not_of_manifests() -> None:
    rig = Rig()
    await rig.serve(manifest())
    await rig.engine.infer(request())
    await rig.serve(manifest(), digest="d2")
    assert rig.engine.statistics("m", "1")[0].inferences == 1
    await rig.serve(manifest(variants=("b",)), digest="d3")
    assert rig.engine.statistics("m", "1")[0].inferences == 0
    with pytest.raises(RequestError):
        rig.engine.statistics("unknown")
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_image_decoded_after_the_drain_was_given_up_is_refused() -> None:
    rig = Rig(EngineSettings(drain_s=0.01))
    await rig.serve(image_manifest())
    decoder_is_free = threading.Event()
    rig.repository._decoders.submit(decoder_is_free.wait)
    asked = asyncio.ensure_future(rig.engine.infer(image_request(count=1)))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(rig.repository.close())
    worker = rig.registry.find("m")._worker
    while not worker._closing:
        await asyncio.sleep(0.001)
    decoder_is_free.set()
    with pytest.raises(RequestError) as error:
        await asked
    assert error.value.fault is Fault.UNAVAILABLE
    await closing
    assert rig.session.runs == []


@pytest.mark.asyncio
async def test_a_refused_release_that_is_gone_from_disk_is_forgotten() -> None:
    rig = Rig()
    await rig.repository.synchronise([refused("m"), refused("n")])
    await rig.repository.synchronise([refused("n")])
    assert [line.name for line in rig.repository.index()] == ["n"]
    assert (await caught(rig)).fault is Fault.NOT_FOUND


@pytest.mark.asyncio
async def test_a_model_whose_folder_cannot_be_looked_through_goes_on_as_it_was() -> None:
    rig = Rig()
    await rig.serve(manifest(), manifest("n"))
    await rig.repository.synchronise([refused("m", "", "holds a bare model beside a folder 1"), release(manifest("n"))])
    assert values(await rig.engine.infer(request(3.0))) == [3.0]
    assert [(line.name, line.version, line.state) for line in rig.repository.index()] == [
        ("m", "", "UNAVAILABLE"),
        ("m", "1", "READY"),
        ("n", "1", "READY"),
    ]
    await rig.serve(manifest())
    assert [(line.name, line.version) for line in rig.repository.index()] == [("m", "1")]
    await rig.repository.close()
