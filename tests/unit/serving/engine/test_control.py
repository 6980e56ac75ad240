"""RepositoryModelLoad and Unload, as a frontend may command them."""

from __future__ import annotations

import asyncio

import pytest

from gateway.common.domain.errors import Fault, RequestError
from tests.simulators.engine_rig import Rig, manifest, refused, release, request, values


async def fault_of(awaitable: object) -> RequestError:
    with pytest.raises(RequestError) as error:
        await awaitable  # type: ignore[misc]
    return error.value


@pytest.mark.asyncio
async def test_load_and_unload_are_denied_without_control() -> None:
    rig = Rig(control=False)
    await rig.serve(manifest())
    for command in (rig.repository.load("m"), rig.repository.unload("m")):
        error = await fault_of(command)
        assert error.fault is Fault.DENIED
        assert "[models] control" in error.message
    assert rig.engine.ready("m")
    await rig.repository.close()


@pytest.mark.asyncio
async def test_unload_drains_and_load_brings_it_back() -> None:
    rig = Rig()
    await rig.serve(manifest())
    rig.disk["m"] = (release(manifest()),)
    session = rig.session
    session.gate.clear()
    under_way = asyncio.ensure_future(rig.engine.infer(request(4.0)))
    await rig.begun()
    unloading = asyncio.ensure_future(rig.repository.unload("m"))
    while rig.engine.ready("m"):
        await asyncio.sleep(0)
    session.gate.set()
    await unloading
    assert values(await under_way) == [4.0]
    (line,) = rig.repository.index()
    assert (line.state, line.reason) == ("UNAVAILABLE", "unloaded")
    assert (await fault_of(rig.engine.infer(request()))).fault is Fault.UNAVAILABLE
    await rig.repository.load("m")
    assert values(await rig.engine.infer(request(4.0))) == [4.0]
    assert rig.repository.index()[0].state == "READY"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_unload_beside_a_removal_leaves_nothing_of_the_model() -> None:
    rig = Rig()
    await rig.serve(manifest())
    removing = asyncio.ensure_future(rig.serve())
    await asyncio.sleep(0)
    assert (await fault_of(rig.repository.unload("m"))).fault is Fault.NOT_FOUND
    await removing
    assert (await fault_of(rig.engine.infer(request()))).fault is Fault.NOT_FOUND
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_unload_behind_a_removal_and_a_return_unloads_what_came_back() -> None:
    rig = Rig()
    await rig.serve(manifest())
    changes = [rig.serve(), rig.serve(manifest()), rig.repository.unload("m")]
    await asyncio.gather(*changes)
    assert [(line.version, line.state) for line in rig.repository.index()] == [("1", "UNAVAILABLE")]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["nobody", "../m", "a/b", "", "x" * 5000, "nul\0", ".hidden"])
async def test_load_of_what_the_disk_does_not_hold(name: str) -> None:
    rig = Rig()
    rig.disk["../m"] = (release(manifest()),)
    assert (await fault_of(rig.repository.load(name))).fault is Fault.NOT_FOUND
    assert (await fault_of(rig.repository.unload(name))).fault is Fault.NOT_FOUND
    assert rig.repository.index() == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_load_of_a_refused_release_says_why() -> None:
    rig = Rig()
    rig.disk["m"] = (refused("m"),)
    error = await fault_of(rig.repository.load("m"))
    assert error.fault is Fault.UNAVAILABLE
    assert "manifest.toml:3: broken" in error.message
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("signed", [False, True])
async def test_a_load_that_looked_before_a_synchronisation_takes_back_nothing_of_it(*, signed: bool) -> None:
    rig = Rig()
    old, new = (release(manifest(version=version), signed=signed) for version in "12")
    await rig.repository.synchronise([old])
    rig.disk["m"] = (old,)
    rig.scan_gate.clear()
    loading = asyncio.ensure_future(rig.repository.load("m"))
    while not rig.scanned:
        await asyncio.sleep(0)
    changing = asyncio.ensure_future(rig.repository.synchronise([new]))
    await asyncio.sleep(0)
    rig.scan_gate.set()
    await asyncio.gather(loading, changing)
    assert rig.repository.versions("m") == ["2"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_load_leaves_other_models_alone() -> None:
    rig = Rig()
    await rig.serve(manifest("m"), manifest("n"))
    rig.disk["m"] = (release(manifest("m", "2")),)
    await rig.repository.load("m")
    assert [(line.name, line.version) for line in rig.repository.index()] == [("m", "2"), ("n", "1")]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_caller_who_leaves_during_load_leaks_no_session() -> None:
    rig = Rig()
    rig.disk["m"] = (release(manifest()),)
    rig.runtime.gate.clear()
    loading = asyncio.ensure_future(rig.repository.load("m"))
    await asyncio.to_thread(rig.runtime.opening.acquire)
    loading.cancel()
    await asyncio.wait({loading})
    assert loading.cancelled()
    rig.runtime.gate.set()
    while not (rig.runtime.sessions and rig.session.closed):
        await asyncio.sleep(0)
    assert rig.runtime.memory_bytes == 0
    assert (await fault_of(rig.engine.infer(request()))).fault is Fault.NOT_FOUND
    await rig.repository.load("m")
    assert rig.engine.ready("m")
    await rig.repository.close()
