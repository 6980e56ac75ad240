"""Decisions of the daemon's access to the model repository, without a daemon."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import VariantError
from gateway.common.domain.release import Release
from gateway.common.domain.verdict import Verdict
from gateway.serving.committed.settings import SignedReleaseSettings
from gateway.serving.committed.store import Committed, CommittedSlot
from gateway.serving.engine import versions
from gateway.serving.model_sources import Fleet
from tests.simulators.engine_rig import PASSED, Rig, manifest, release, request


@pytest.mark.asyncio
async def test_the_disk_is_read_on_a_thread_and_the_registry_asked_on_the_loop() -> None:
    """The registry has no lock: during a removal, a thread that walks it fails."""
    asked: dict[str, int] = {}

    def read() -> tuple[Release, ...]:
        asked["disk"] = threading.get_ident()
        return release(manifest("m")), release(manifest("n"))

    def standings() -> list[Any]:
        asked["registry"] = threading.get_ident()
        return []

    repository: Any = SimpleNamespace(standings=standings)
    nothing: Any = SimpleNamespace()
    fleet = Fleet(nothing, repository, nothing, SignedReleaseSettings())
    assert [one.name for one in await fleet.of_model("m", read)] == ["m"]
    assert asked["disk"] != asked["registry"] == threading.get_ident()


class SlowStore:
    """A store whose judge takes its time."""

    def __init__(self, brings: Release) -> None:
        self._brings, self.asked, self.gate = brings, asyncio.Event(), asyncio.Event()

    async def release(self, activation: Activation) -> Release:
        assert activation.slot == self._brings.name
        self.asked.set()
        await self.gate.wait()
        return self._brings


@pytest.mark.asyncio
async def test_what_is_unloaded_while_its_release_is_judged_is_not_loaded() -> None:
    rig = Rig()
    await rig.commit(manifest())
    store: Any = SlowStore(release(manifest(version="2"), "d2", signed=True))
    nothing: Any = SimpleNamespace()
    fleet = Fleet(store, rig.repository, nothing, SignedReleaseSettings())
    loading = asyncio.ensure_future(fleet.load(Activation("m", "models/o/m/2/release", "d2", ("a",), (), 1)))
    await store.asked.wait()
    await fleet.unload("m", "2", 1.0)
    store.gate.set()
    with pytest.raises(VariantError, match="version 2 was unloaded or loaded again meanwhile"):
        await loading
    assert [(line.version, line.state) for line in rig.repository.standings()] == [("1", "READY")]
    await rig.repository.close()


class CommittedRelease:
    """A store with one committed release, and the one before it."""

    def __init__(self, now: Release, before: Release) -> None:
        self._now, self._before = now, before

    async def committed(self) -> Committed:
        return Committed({self._now.name: CommittedSlot(self._now)})

    async def previous(self, slot: str) -> Release:
        assert slot == self._before.name
        return self._before


@pytest.mark.asyncio
@pytest.mark.parametrize("passes", [True, False])
async def test_the_previous_release_stands_in_for_an_undecided_one_until_that_decides(
    monkeypatch: pytest.MonkeyPatch, *, passes: bool
) -> None:
    monkeypatch.setattr(versions, "RETRY_S", 0.0)
    rig = Rig(trials={"b": Verdict(False, "died by SIGKILL", transient=True)})
    before, now = manifest(), manifest(version="2", variants=("b",))
    store: Any = CommittedRelease(release(now, "d2", signed=True), release(before, signed=True))
    nothing: Any = SimpleNamespace()
    fleet = Fleet(store, rig.repository, nothing, SignedReleaseSettings())
    await fleet.synchronise(())
    assert (await rig.engine.infer(request())).variant == "a"
    while not rig.repository.standings()[1].undecided:  # an attempt may run at this moment
        await asyncio.sleep(0)
    rig.trials["b"] = PASSED if passes else Verdict(False, "died by SIGSEGV")
    expected = [("2", "READY")] if passes else [("1", "READY"), ("2", "UNAVAILABLE")]
    while [(line.version, line.state) for line in rig.repository.index()] != expected:
        await asyncio.sleep(0)
    assert (await rig.engine.infer(request())).variant == ("b" if passes else "a")
    await fleet.close()
    await rig.repository.close()


class CountedStore(CommittedRelease):
    """A store that counts how often it is read."""

    reads = 0

    async def committed(self) -> Committed:
        self.reads += 1
        return await super().committed()


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["unloaded", "refused", "undecided"])
async def test_a_change_of_the_folder_leaves_signed_releases_alone(state: str) -> None:
    rig = Rig()
    if state != "unloaded":
        rig.trials["b"] = Verdict(False, "died", transient=state == "undecided")
    now, before = manifest(version="2", variants=("b",)), manifest()
    store: Any = CountedStore(release(now, "d2", signed=True), release(before, signed=True))
    nothing: Any = SimpleNamespace()
    fleet = Fleet(store, rig.repository, nothing, SignedReleaseSettings())
    await fleet.synchronise((release(manifest("n", variants=("n",)), "n1"),))
    if state == "unloaded":
        await rig.repository.unload("m")
    index, tried, reads = rig.repository.index(), list(rig.tried), store.reads
    await fleet.synchronise((release(manifest("n", variants=("n",)), "n2"),), changed_only=True)
    await fleet.synchronise((release(manifest("o", variants=("o",)), "o1"),), changed_only=True)
    left = [(one.name, one.version, one.state) for one in rig.repository.index() if one.name == "m"]
    assert left == [(one.name, one.version, one.state) for one in index if one.name == "m"]
    assert [each for each in rig.tried if each in "ab"] == [each for each in tried if each in "ab"]
    assert store.reads == reads
    assert (await rig.engine.infer(request(model="o"))).variant == "o"
    await fleet.close()
    await rig.repository.close()


@pytest.mark.asyncio
async def test_what_was_not_served_because_of_an_error_is_served_after_the_next_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    store: Any = CommittedRelease(release(manifest("s"), signed=True), release(manifest("s"), signed=True))
    nothing: Any = SimpleNamespace()
    fleet = Fleet(store, rig.repository, nothing, SignedReleaseSettings())
    await fleet.synchronise((release(manifest()),))
    with monkeypatch.context() as broken:
        broken.setattr(rig.repository, "synchronise", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await fleet.synchronise((release(manifest(variants=("b",)), "d2"),), changed_only=True)
    await fleet.synchronise((release(manifest(variants=("b",)), "d2"),), changed_only=True)
    assert (await rig.engine.infer(request())).variant == "b"
    await rig.repository.close()
