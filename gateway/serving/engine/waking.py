"""Opening and closing of versions within the budgets of memory: reservations, evictions, wake-ups, the clock."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast
from weakref import ref

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.events import ModelEvicted, ModelWoken
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release
from gateway.common.domain.selection import Candidate
from gateway.common.domain.statistics import MetricSample
from gateway.common.memory import bound_kept_memory, trim, used_bytes
from gateway.common.timeouts import wait_for
from gateway.serving.domain.ports import Session
from gateway.serving.engine.cold import ColdParts, ColdVersion
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.fitting import Fitting
from gateway.serving.engine.loader import TURN_S, NoRoomError, Opened
from gateway.serving.engine.registry import Registry
from gateway.serving.engine.residency import MIB, Ledger, Resident, ResidentCost, due, expected_cost, revised_cost
from gateway.serving.engine.settings import ResidencySettings, ResidentSettings
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.threads import begin
from gateway.serving.engine.versions import Attempt, LoadedVersion

NOISE_SHARE = 0.1
"""Share by which two measurements of a version that seems too large may differ and still refuse it for good."""


class Residency:
    """Model versions that are open. Everything here runs on the event loop.

    Openings take turns: each reserves its memory first, and what it added to the process is measured. Without any
    setting of `[residency]`, versions are opened as they come and stay open.
    """

    def __init__(
        self, registry: Registry, fitting: Fitting, context: EngineContext, settings: ResidencySettings
    ) -> None:
        self._registry, self._fitting, self._context, self._settings = registry, fitting, context, settings
        self._ledger, self.failover_room_s = Ledger(settings.budgets), settings.failover_room_s
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()
        self._line = asyncio.Lock()
        """Line of the openings that wait for room: one after the other looks again."""
        self._targets = dict[int, Callable[[], ModelTarget | None]]()
        self._costs = dict[tuple[str, ...], ResidentCost]()
        """Costs that were measured, by release and place; they last until the next start."""
        self._shared = dict[tuple[str, str], int]()
        """Least difference of trial and measurement by runtime and plugin, of those that opened a session here."""
        self._removals = 0
        self._waking = dict[ColdVersion, asyncio.Task[None]]()
        self._closing = set[asyncio.Task[None]]()
        self._ticking: asyncio.Task[None] | None = None
        self._evictions, self._wakes = Counter[str](), Counter[str]()
        self._is_used, self._is_closed = bool(settings.budgets or settings.model), False
        if self._is_used:
            bound_kept_memory()

    # ---- openings --------------------------------------------------------------------------------------------------
    async def open(
        self,
        release: Release,
        candidate: Candidate,
        manifest: ModelManifest,
        *,
        room_s: float | None = None,
        evicts: bool = True,
        replaces: ModelTarget | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Opened:
        """Open a candidate as `Loader.open` does, once it has room: if it `evicts`, others are closed for it.

        `room_s`: longest wait for room. It is given up if it is not wanted any more before it has room. `replaces`: a
        version that answers nothing any more, and is closed once this one is open. Its memory is not counted until
        then: a full budget must not keep a model out of service. Raises VariantError: NoRoomError, a transient one, for
        lack of room.
        """
        if not self._is_used:
            return await self._fitting.loader.open(release, candidate, manifest)
        if (timed := self._timed) and (self._ticking is None or self._ticking.done()):
            self._ticking = asyncio.create_task(self._tick(timed), name="residency")
        cost, own = self._cost(release, candidate), self._settings.of(release.name)
        if words := self._ledger.excess(cost):
            raise VariantError(words)
        old = self._number(replaces)
        until_s = time.monotonic() + (self._settings.room_s if room_s is None else room_s)
        while True:
            if not is_wanted():
                raise NoRoomError("no request waits for it any more", transient=True)
            async with self._turn:
                if await self._made_room(cost, old, evicts=evicts):
                    used_ns = time.monotonic_ns()
                    number = self._ledger.add(
                        Resident(release.name, release.version, cost, own.priority, own.pin, used_ns, replaces=old)
                    )
                    opening = asyncio.ensure_future(self._opened(number, cost, release, candidate, manifest))
                    try:
                        await asyncio.wait({opening}, timeout=TURN_S)  # one that hangs keeps its room, and no turn
                    except asyncio.CancelledError:
                        _abandon(opening)
                        raise
                    break
            if time.monotonic() >= until_s:
                raise NoRoomError(self._no_room(cost, old), transient=True)
            async with self._line:  # first in, first out: it is at the end of the line afterwards
                await asyncio.sleep(self._settings.room_poll_s)
        try:
            return await opening
        except asyncio.CancelledError:
            _abandon(opening)
            raise

    async def open_or_leave(
        self, release: Release, candidate: Candidate, manifest: ModelManifest
    ) -> Opened | ModelTarget:
        """Open a candidate if there is room without closing another version, else return a closed version of it.

        A pinned one makes room for itself. Raises VariantError.
        """
        try:
            pinned = self._settings.of(release.name).pin
            return await self.open(release, candidate, manifest, room_s=0.0, evicts=pinned)
        except NoRoomError:
            cost = self._cost(release, candidate)
            old = self._registry.serving(release.name, release.version)
            return self._cold(self._fitting.cold(release, manifest, candidate, old, f"cold, {_words(cost)}"))

    async def _made_room(self, cost: ResidentCost, replaces: int | None, *, evicts: bool) -> bool:
        """Close other versions until `cost` fits. Return False if none can be closed now.

        One that does not close keeps its bytes, and another one is closed in place of it.
        """
        while self._ledger.lacking(cost, replaces):
            victims = self._victims(cost, replaces) if evicts else None
            if victims is None:
                return False
            for target in victims:
                self._evict(target, "memory")
            self._freed.clear()
            try:
                await wait_for(self._freed.wait(), self._context.settings.drain_s)
            except TimeoutError:
                self._ledger.overdue()
        return True

    def _victims(self, cost: ResidentCost | None = None, replaces: int | None = None) -> list[ModelTarget] | None:
        """Return what to close for `cost`; None if that does not help."""
        idle = dict(self._idle())
        numbers = self._ledger.victims(cost, {number: target.used_ns for number, target in idle.items()}, replaces)
        return None if numbers is None else [idle[number] for number in numbers]

    async def _opened(
        self, number: int, before: ResidentCost, release: Release, candidate: Candidate, manifest: ModelManifest
    ) -> Opened:
        """Open a candidate whose memory is reserved, and count what it really takes. Raises VariantError.

        The first one of an engine loads its library as well, which stays, and one that seems to be too large may have
        loaded a part of it: these are opened twice.
        """
        engine = candidate.variant.runtime, candidate.budget.provider
        least = 2 if self._ledger.budgets and engine not in self._shared else 1
        found = list[int]()
        try:
            for attempt in (1, 2):
                removals = self._removals
                opened, added, took_s = await self._measured(release, candidate, manifest)
                cost = revised_cost(before, candidate, added, took_s, alone=removals == self._removals)
                words = self._ledger.excess(cost)
                if words and before.measured:  # it had room before: other work of this process took the memory
                    cost, words = before, ""
                if not words and attempt >= least:
                    break
                found.append(added)
                await asyncio.to_thread(opened.session.close)
        except BaseException:
            self._remove(number)
            raise
        if words:
            self._remove(number)
            differs = max(found) - min(found) > NOISE_SHARE * max(found)  # other loads have memory for a while
            raise VariantError(words, transient=differs)
        self._costs[self._place(release, candidate)] = cost
        difference = max(0, expected_cost(candidate, {}).nbytes[CPU] - cost.nbytes[CPU])
        self._shared[engine] = min(self._shared.get(engine, difference), difference)
        self._ledger.revise(number, cost)
        for other in self._victims() or ():  # it takes more than was expected
            self._evict(other, "memory")
        ended = partial(self._closed, number, asyncio.get_running_loop())
        session = cast("Session", _CountedSession(opened.session, ended))
        return replace(opened, session=session, made=partial(self._made, number), taken=_words(cost))

    async def _measured(
        self, release: Release, candidate: Candidate, manifest: ModelManifest
    ) -> tuple[Opened, int, float]:
        """Open and warm a candidate. Return it, the bytes that this added, and the time that it took."""
        used, began_s = await asyncio.to_thread(used_bytes), time.monotonic()
        opened = await self._fitting.loader.open(release, candidate, manifest)
        warming = begin(f"warm {release.name}/{release.version}", _warm_up, opened)
        try:
            await asyncio.shield(asyncio.wrap_future(warming))
            took_s = time.monotonic() - began_s
            added = await asyncio.to_thread(used_bytes) - used
            return opened, added + getattr(opened.session, "memory_bytes", 0), took_s  # that of worker processes
        except BaseException:
            warming.add_done_callback(lambda _: opened.session.close())  # at once, unless it still runs
            raise

    def _made(self, number: int, target: ModelTarget) -> None:
        if number in self._ledger.residents:
            self._targets[number] = ref(target)
            self._ledger.succeed(number)

    def _number(self, target: ModelTarget | None) -> int | None:
        """Return the number of an open version; None if it has none."""
        return next((number for number, each in self._targets.items() if target and each() is target), None)

    def _closed(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        """Free what a session took. Called by any thread."""
        trim()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._remove, number)

    def _remove(self, number: int) -> None:
        self._ledger.remove(number)
        self._targets.pop(number, None)
        self._removals += 1
        self._freed.set()

    # ---- evictions -------------------------------------------------------------------------------------------------
    def _idle(self) -> Iterator[tuple[int, ModelTarget]]:
        """Yield the versions that serve and answer nothing now, and can be opened again.

        Staged ones stay open, as do those that fail over, and those of which a newer release does not serve: their own
        files may be gone.
        """
        for number, target_of in self._targets.items():
            target = target_of()
            if target is not None and not target.busy and not self._ledger.residents[number].closing:
                record = self._registry.record(target.manifest.name, target.manifest.version)
                held = record.serving if record.attempt is Attempt.NONE else None
                if held is not None and held.target is target and not self._context.failures.waits(target):
                    yield number, target

    def _evict(self, target: ModelTarget, reason: str) -> None:
        """Close a version that serves, and let a closed one answer for it."""
        model, version = target.manifest.name, target.manifest.version
        number = cast("int", self._number(target))
        self._ledger.close(number)
        held = cast("LoadedVersion[ModelTarget]", self._registry.record(model, version).serving)
        resident = self._ledger.residents[number]
        cold = self._cold(
            ColdParts(
                release=held.release,
                manifest=target.manifest,
                declared=target.declared,
                placement=replace(target.placement, residency=f"cold, {_words(resident.cost)}"),
                statistics=target.counted(0),
                used_ns=target.used_ns,
                streams=getattr(target, "streams", None),
            )
        )
        self._context.failures.show(cold)
        self._evictions[reason] += 1
        self._registry.entry(model).serve(version, LoadedVersion(held.release, cold))
        self._context.publish(ModelEvicted(model, version, reason, resident.cost.total))
        closing = asyncio.ensure_future(target.close(self._context.settings.drain_s))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    # ---- wake-ups --------------------------------------------------------------------------------------------------
    def wake(self, cold: ColdVersion) -> None:
        """Begin to open a closed version, unless that has begun."""
        if cold not in self._waking and not self._is_closed:
            self._waking[cold] = asyncio.ensure_future(self._woken(cold))

    async def _woken(self, cold: ColdVersion) -> None:
        try:
            await self._wake(cold)
        finally:  # in the step that found it not wanted: a later request begins again
            self._waking.pop(cold, None)

    async def _wake(self, cold: ColdVersion) -> None:
        """Open a closed version and let it answer. What happened to the version meanwhile has precedence."""
        model, version, began_s = cold.manifest.name, cold.manifest.version, time.monotonic()
        opening = partial(self.open, is_wanted=lambda: cold.is_wanted)
        try:
            opened = await self._fitting.loader.first(cold.release, opening)
            target = self._fitting.servable(opened, cold)
        except (VariantError, ConfigurationError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  a task's boundary: the requests get an answer to any error
            problem = f"{type(error).__name__}: {error}"
        else:
            self._wakes["opened"] += 1
            held = self._registry.record(model, version).serving
            if held is None or held.target is not cold:  # replaced or unloaded meanwhile
                await target.close(0.0)
                return
            if target.manifest == cold.manifest:
                target.manifest = cold.manifest  # those that remember it need not look again
            self._registry.entry(model).serve(version, LoadedVersion(held.release, target))
            self._context.failures.show(target)
            self._context.publish(ModelWoken(model, version, round(time.monotonic() - began_s, 3)))
            cold.hand_over(target)
            return
        if cold.is_wanted:
            self._wakes["failed"] += 1
            cold.failed(problem)
            self._context.publish(ModelWoken(model, version, round(time.monotonic() - began_s, 3), problem))
        else:
            self._wakes["abandoned"] += 1

    def _cold(self, parts: ColdParts) -> ColdVersion:
        return ColdVersion(parts, self._context, self._settings, self.wake, self._registry.serving)

    # ---- the clock -------------------------------------------------------------------------------------------------
    @property
    def _timed(self) -> Mapping[str, ResidentSettings]:
        """Return the settings of the models with times."""
        return {each.model: each for each in self._settings.model if each.idle_s or each.warm_at}

    async def _tick(self, timed: Mapping[str, ResidentSettings]) -> None:
        """Close idle versions, and open those whose time of the day has come."""
        minute = time.strftime("%H:%M")
        while True:
            await asyncio.sleep(self._settings.tick_s)
            now_ns, before, minute = time.monotonic_ns(), minute, time.strftime("%H:%M")
            for _, target in list(self._idle()):
                own = timed.get(target.manifest.name)
                if own and own.idle_s and now_ns - target.used_ns > own.idle_s * 1e9:
                    self._evict(target, "idle")
            for target in list(self._registry.targets()):
                own = timed.get(target.manifest.name)
                if own and isinstance(target, ColdVersion) and due(own.warm_at, before, minute):
                    target.is_scheduled = True
                    self.wake(target)

    async def close(self) -> None:
        """End wake-ups; their requests are refused by `ColdVersion.close`."""
        self._is_closed = True
        tasks = [*self._waking.values(), *([self._ticking] if self._ticking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._closing, return_exceptions=True)

    # ---- figures ---------------------------------------------------------------------------------------------------
    def samples(self) -> Iterable[MetricSample]:
        """Return the metrics of budgets, open versions, evictions and wake-ups."""
        for kind, budget in self._ledger.budgets.items():
            labels = {"kind": kind}
            yield MetricSample("residency_budget_bytes", BUDGET, budget, labels, counter=False)
            yield MetricSample("residency_used_bytes", USED, self._ledger.used(kind), labels, counter=False)
        taken = Counter[tuple[str, str]]()
        for each in self._ledger.residents.values():
            taken[each.model, each.version] += each.cost.nbytes[CPU]
        for (model, version), nbytes in taken.items():
            labels = {"model": model, "version": version}
            yield MetricSample("model_resident_bytes", RESIDENT, nbytes, labels, counter=False)
        for reason, number in sorted(self._evictions.items()):
            yield MetricSample("evictions_total", EVICTIONS, number, {"reason": reason})
        for outcome, number in sorted(self._wakes.items()):
            yield MetricSample("wakes_total", WAKES, number, {"outcome": outcome})

    def _cost(self, release: Release, candidate: Candidate) -> ResidentCost:
        shared = self._shared.get((candidate.variant.runtime, candidate.budget.provider), 0)
        known = self._costs.get(self._place(release, candidate))
        return known or expected_cost(candidate, self._ledger.budgets, shared)

    @staticmethod
    def _place(release: Release, candidate: Candidate) -> tuple[str, ...]:
        return release.digest, *candidate.place

    def _no_room(self, cost: ResidentCost, replaces: int | None) -> str:
        """Return why nothing could be closed, with what to do."""
        kind, lacks = next(iter(self._ledger.lacking(cost, replaces).items()))
        held = [each for each in self._ledger.residents.values() if each.cost.nbytes.get(kind)]
        pinned, late = sum(each.pinned for each in held), sum(each.late for each in held)
        what = f"takes {cost.nbytes[kind] / MIB:.0f} MiB, of which {lacks / MIB:.0f} MiB are not free"
        why = f"{pinned} open versions are pinned, {len(held) - pinned - late} answer requests"
        why += f", {late} do not close" if late else ""
        return f"{what}: {why}; ask again later, or raise the budget in [residency] (EG-317)"


BUDGET = "Memory that open model versions may take, by device: cpu is the process."
USED = "Memory that open model versions take or have reserved, by device."
RESIDENT = "Memory that an open model version takes in the process."
EVICTIONS = "Model versions that were closed while they served, by reason."
WAKES = "Openings of closed model versions, by outcome."


class _CountedSession:
    """Session that reports its end once. `run` is looked up without detours: it is called for each run."""

    def __init__(self, session: Session, ended: Callable[[], None]) -> None:
        self._session, self._ended, self._is_open = session, ended, True
        self.run = session.run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def close(self) -> None:
        try:
            self._session.close()
        finally:  # what it frees after a failure is not known; counted for ever, it would be no room for ever
            if self._is_open:
                self._is_open = False
                self._ended()


def _abandon(opening: asyncio.Future[Opened]) -> None:
    """Cancel an opening. Close its session if it ended nevertheless: in the same pass, for example."""
    opening.cancel()
    opening.add_done_callback(_close_unwanted)


def _close_unwanted(opening: asyncio.Future[Opened]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        begin("close", opening.result().session.close)


def _warm_up(opened: Opened) -> None:
    """Run the first row of the golden set, or what the trial accepted. Raises VariantError."""
    inputs = opened.witness() if opened.witness else None
    if inputs is not None:
        opened.session.run(inputs)


def _words(cost: ResidentCost) -> str:
    """Return what a version takes, for people."""
    own = [f"{nbytes / MIB:.0f} MiB" + ("" if kind == CPU else f" of {kind}") for kind, nbytes in cost.nbytes.items()]
    return " and ".join(own)
