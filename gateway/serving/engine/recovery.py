"""Failover in service: requests of a version run on the next candidate; the one that failed is tried again later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from weakref import WeakKeyDictionary

from gateway.common.domain.errors import Fault, RequestError, VariantError, lacks_device, lacks_memory
from gateway.common.domain.events import AcceleratorChanged, CandidateFailed, CandidateRecovered, FailedOver, Publish
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release
from gateway.common.domain.retry import SECOND_NS
from gateway.common.domain.selection import Candidate, choose
from gateway.common.domain.verdict import Verdict
from gateway.common.timeouts import wait_for
from gateway.serving.engine.cold import ColdVersion
from gateway.serving.engine.failover import CandidateKey, spare
from gateway.serving.engine.fitting import Fitting
from gateway.serving.engine.loader import NoRoomError, Opened
from gateway.serving.engine.registry import Registry
from gateway.serving.engine.servable import Servable
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.ticket import Ticket
from gateway.serving.engine.versions import Holding, LoadedVersion
from gateway.serving.engine.waking import Residency

OPENING_S = 120.0
"""Longest opening of a candidate in a failover. One that hangs must not keep the version from the next one."""
ASKED_NS = SECOND_NS
"""Validity of the answer whether another candidate can serve, for runs that fail: to plan takes a millisecond."""
Swap = Callable[[ModelTarget, Servable], object]
"""Function that lets a servable take the place of another one."""
Reopen = Callable[[Servable, bool], None]
"""Function that opens a version again that nothing else can serve; True: count a hang."""


class Recovery:
    """Implementation of `FailureHandler`. Servables stay in use while no other candidate is left."""

    def __init__(
        self, registry: Registry, settings: EngineSettings, publish: Publish, *, swap: Swap, reopen: Reopen
    ) -> None:
        self._registry, self._settings, self._publish = registry, settings, publish
        self._swap, self._reopen = swap, reopen
        self._waiting: dict[Servable, list[Ticket]] = {}
        """Tickets of servables that failed, until the next one is open."""
        self._successors: dict[Servable, Servable] = {}
        """Servables that took over, while the one that failed is being closed."""
        self._asked = WeakKeyDictionary[Servable, tuple[int, bool]]()
        """Last answers of `_can_replace`, and until when they are valid."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._retrying: asyncio.Task[None] | None = None
        self._changed, self._closed = asyncio.Event(), False

    def begin(self, fitting: Fitting, residency: Residency, changed: Callable[[], None]) -> None:
        """Use this factory of servables, and this way to open candidates. `changed`: there may be more to measure."""
        self._open, self._measure = partial(residency.open, room_s=residency.failover_room_s), changed
        self._fitting, self._loader, self._failover = fitting, fitting.loader, fitting.loader.failover

    async def close(self) -> None:
        """End what is under way, and begin nothing more. Sessions that open meanwhile are closed."""
        self._closed = True
        tasks = [*self._tasks, *([self._retrying] if self._retrying else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- what a servable reports -----------------------------------------------------------------------------------
    def take(self, servable: Servable, failure: str, tickets: Sequence[Ticket]) -> bool:
        """Implement `FailureHandler.take`."""
        if self.waits(servable):
            for ticket in tickets:
                self.hold(servable, ticket, again=True)
            return True
        held = self._held(servable)
        if held is None or lacks_memory(failure):
            return False
        key, now_ns, repeats = _key(servable), time.monotonic_ns(), max((each.repeats for each in tickets), default=0)
        if lacks_device(failure) and key.accelerator != CPU:
            self._leave_all(key.accelerator, failure)
        elif self._failover.failed(key, failure, now_ns, answered=servable.answered):
            self._leave(held, servable, failure)
        elif self._could_replace(held, servable):
            if self._failover.obstacle(key):
                self._leave(held, servable, failure)
            elif repeats < self._failover.settings.failures:
                for each in tickets:
                    each.repeats += 1
                servable.adopt(tickets)  # it may be one failure: they run once more here
                return True
        return self.waits(servable) and self.take(servable, failure, tickets)

    def gives_up(self, servable: Servable) -> bool:
        """Implement `FailureHandler.gives_up`: on an accelerator, if another candidate can serve."""
        held = self._held(servable)
        return held is not None and servable.placement.accelerator != CPU and self._can_replace(held, servable)

    def hung(self, servable: Servable, reason: str, *, ends: bool = False) -> None:
        """Implement `FailureHandler.hung`. One that hangs too often is not tried again: each run costs a thread."""
        held = self._held(servable)
        if held is None or not self._can_replace(held, servable):
            self._reopen(servable, True)
            return
        entry, version = self._registry.entry(held.release.name), held.release.version
        barred = not ends and entry.count_hang(version) > self._settings.max_hangs
        self._leave_out(servable.declared, servable.placement.place, reason, barred=barred)
        self._leave(held, servable, reason, hung=not ends)

    def leaves(self, target: ModelTarget) -> bool:
        """Return True if another candidate is being opened in place of this one."""
        return target in self._waiting

    def show(self, target: Servable | ColdVersion) -> None:
        """Implement `FailureHandler.show`."""
        target.degrade(self._failover.degraded(*_key(target)[:2], time.time() - time.monotonic()))

    def waits(self, servable: Servable) -> bool:
        """Implement `FailureHandler.waits`."""
        return servable in self._waiting or servable in self._successors

    def hold(self, servable: Servable, ticket: Ticket, *, again: bool = False) -> bool:
        """Implement `FailureHandler.hold`. `again`: the ticket had its place already."""
        if (successor := self._successors.get(servable)) is not None:
            successor.adopt([ticket])
            return True
        waiting, most = self._waiting[servable], self._settings.queue_of(servable.manifest.name).requests
        if len(waiting) >= most:
            waiting[:] = [each for each in waiting if not each.done]
        if not again and len(waiting) >= most:
            return False
        waiting.append(ticket)
        return True

    # ---- what the device reports -----------------------------------------------------------------------------------
    def accelerator_changed(self, accelerator: str, device: str, is_there: bool) -> None:
        """Let the versions on an accelerator that is gone fail over, all at once; try one that is back."""
        self._publish(AcceleratorChanged(accelerator, device, "returned" if is_there else "gone"))
        if is_there:
            self._failover.returned(accelerator, time.monotonic_ns())
            self._retry_soon()
            self._measure()
        else:
            self._failover.leave(accelerator, device)
            self._leave_all(accelerator, f"{accelerator} at {device} is gone")
        for target in self._registry.targets():
            if isinstance(target, (Servable, ColdVersion)):
                self.show(target)

    # ---- failover --------------------------------------------------------------------------------------------------
    def _leave_all(self, accelerator: str, reason: str) -> None:
        """Leave an accelerator with every version that it runs, rather than after a failure of each."""
        for target in list(self._registry.targets()):
            if not isinstance(target, Servable) or target.placement.accelerator != accelerator:
                continue
            now_ns, held = time.monotonic_ns(), self._held(target)
            is_new = self._failover.failed(_key(target), reason, now_ns, at_once=True, answered=target.answered)
            if held is not None and target not in self._waiting and (is_new or self._could_replace(held, target)):
                self._leave(held, target, reason)

    def _leave_out(
        self, manifest: ModelManifest, place: tuple[str, str, str], reason: str, *, barred: bool = False
    ) -> None:
        """Leave out a candidate that hangs, and the others on its accelerator while one is left elsewhere."""
        version, now_ns = (manifest.name, manifest.version), time.monotonic_ns()
        self._failover.failed(CandidateKey(*version, place), reason, now_ns, at_once=True, barred=barred)
        left = spare(self._loader.candidates(manifest))
        if place[1] != CPU and any(each.accelerator != place[1] for each in left):
            for each in left:
                if each.accelerator == place[1]:
                    words = f"{place[0]} hangs on {place[1]}: {reason}"
                    self._failover.failed(CandidateKey(*version, each.place), words, now_ns, at_once=True)

    def _leave(self, held: LoadedVersion[ModelTarget], servable: Servable, reason: str, *, hung: bool = False) -> None:
        """Begin a failover, unless no other candidate can serve: then the servable stays, and says so."""
        placement, name, version = servable.placement, held.release.name, held.release.version
        can_replace = self._can_replace(held, servable)
        self.show(servable)
        retry = "the next variant serves" if can_replace else "no other variant can serve; it is tried again"
        self._publish(CandidateFailed(name, version, placement.variant, placement.accelerator, reason, retry))
        self._retry_soon()
        if can_replace and servable not in self._waiting and not self._closed:
            self._waiting[servable] = []
            for ticket in servable.suspend():
                self.hold(servable, ticket, again=True)
            task = asyncio.get_running_loop().create_task(self._fail_over(held, servable, hung=hung))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fail_over(self, held: LoadedVersion[ModelTarget], failed: Servable, *, hung: bool) -> None:
        """Open the next candidate, give it what waits, and close the servable that failed."""
        began_ns, served, refusal = time.monotonic_ns(), None, None
        try:
            opened = await self._loader.first(held.release, partial(self._open_in_time, replaces=failed))
            if self._held(failed) is None:
                opened.session.close()
            else:
                made = self._fitting.servable(opened, failed)
                self._swap(failed, made)
                served = made
        except Exception as error:  # noqa: BLE001  a task's boundary: the requests get an answer to any error
            refusal = self._remains(held, failed, error, began_ns)
            if hung:
                self._reopen(failed, False)  # the hang is counted
        finally:
            waiting = [each for each in self._waiting.pop(failed) if not each.done]
            if served is None:
                self._give_back(failed, waiting, refusal)
        if served is None:
            return
        self._successors[failed] = served
        served.adopt(waiting)
        served.statistics.failovers += 1
        placed, took_ms = served.placement, (time.monotonic_ns() - began_ns) // 1_000_000
        self._publish(FailedOver(*_key(served)[:2], placed.variant, placed.accelerator, len(waiting), took_ms))
        try:
            await failed.close(0.0 if hung else self._settings.drain_s)
        finally:
            del self._successors[failed]

    async def _open_in_time(
        self, release: Release, candidate: Candidate, manifest: ModelManifest, *, replaces: Servable | None = None
    ) -> Opened:
        """Open a candidate, unless it is out by now. Raises VariantError, also after OPENING_S."""
        if all(each.place != candidate.place for each in spare(self._loader.candidates(manifest))):
            raise VariantError(self._failover.obstacle(CandidateKey(manifest.name, manifest.version, candidate.place)))
        try:
            return await wait_for(self._open(release, candidate, manifest, replaces=replaces), OPENING_S)
        except TimeoutError as error:
            reason = f"its opening took longer than {OPENING_S:g} s"
            self._leave_out(manifest, candidate.place, reason)
            raise VariantError(reason, transient=True) from error

    def _remains(
        self, held: LoadedVersion[ModelTarget], failed: Servable, error: Exception, began_ns: int
    ) -> RequestError | None:
        """Note that no other candidate could be opened. Return the refusal of what waits, if it is not to run again."""
        if isinstance(error, NoRoomError):  # no evidence: the next failure leads to the next candidate again
            words = f"the variant that served failed, and the next one has no room: {error}"
            return RequestError(Fault.UNAVAILABLE, words, retry_after_s=self._settings.retry_after_s)
        reason = _words(error)
        for each in spare(self._loader.known(failed.declared)):
            self._failover.failed(CandidateKey(*_key(failed)[:2], each.place), reason, began_ns, at_once=True)
        self._leave(held, failed, f"no other variant could be opened: {reason}")
        return None

    def _give_back(self, failed: Servable, waiting: Sequence[Ticket], refusal: RequestError | None) -> None:
        """Let what waits run on what serves now, or refuse it."""
        heir = failed if self._held(failed) else self._registry.serving(*_key(failed)[:2])
        if heir is failed:  # it fails again, and its callers are told why
            failed.resume()
        if refusal is not None:
            failed.refuse(waiting, refusal)
        else:
            (heir if isinstance(heir, Servable) else failed).adopt(waiting)  # None: unloaded, which refuses them

    # ---- return ----------------------------------------------------------------------------------------------------
    def loaded_by_hand(self, model: str, version: str) -> None:
        """Try the candidates of a version that are out now; forget them if nothing serves: the load opens one."""
        if self._registry.serving(model, version) is None:
            self._failover.forget(model, version)
        self._failover.try_now(model, version, time.monotonic_ns())
        self._retry_soon()

    @contextmanager
    def replaces(self, releases: Iterable[Release]) -> Iterator[None]:
        """Forget the failures of versions that are loaded from other files, unless these do not serve in the end."""
        records = [(each, self._registry.record(each.name, each.version)) for each in releases]
        others = [each for each, record in records if record.serving and not record.serves(each)]
        forgotten = [(each, self._failover.forget(each.name, each.version)) for each in others]
        try:
            yield
        finally:
            for each, failures in forgotten:
                if not self._registry.record(each.name, each.version).serves(each):
                    self._failover.restore(failures)
                    self._retry_soon()

    def _retry_soon(self) -> None:
        self._changed.set()
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.get_running_loop().create_task(self._retry(), name="failover")

    async def _retry(self) -> None:
        """Try candidates that are out, each when it is due."""
        while (due := self._failover.next())[1] is not None:
            self._changed.clear()
            due_ns, key = due
            if (wait_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
                with suppress(TimeoutError):
                    await wait_for(self._changed.wait(), wait_s)
            elif key is not None:
                record = self._registry.record(*key[:2])
                if record.holding is Holding.NOTHING and (record.is_loading or record.retry):  # it will be opened
                    self._failover.failed_again(key, self._failover.obstacle(key), time.monotonic_ns())
                    continue
                try:
                    await self._try_again(key)
                except Exception as error:  # noqa: BLE001  a task's boundary: the others are tried all the same
                    self._failover.failed_again(key, _words(error), time.monotonic_ns())

    async def _try_again(self, key: CandidateKey) -> None:
        """Try a candidate in a child process. If it passes, the best candidate serves from now on."""
        record = self._registry.record(key.model, key.version)
        held = record.serving or record.staged
        serving = held.target if held else None
        known = self._loader.known(serving.declared) if serving else ()
        candidate = next((each for each in known if each.place == key.place), None)
        if held is None or not isinstance(serving, (Servable, ColdVersion)) or candidate is None:
            self._failover.forget(key.model, key.version)
            return
        is_serving = serving.placement.place == key.place
        if is_serving and isinstance(serving, Servable) and self._loader.exclusive.obstacle(candidate):
            self._judge(key, serving)  # it holds the accelerator, so that no trial can start
            return
        verdict = await self._examined(held.release, serving.declared, candidate)
        if self._held(serving) is None or key.accelerator in self._failover.gone:
            return
        if not verdict.passed:
            self._failover.failed_again(key, verdict.reason, time.monotonic_ns())
            self.show(serving)
            return
        self._failover.tried(key, time.monotonic_ns())
        if isinstance(serving, ColdVersion):  # it is chosen again when it is opened
            self.show(serving)
        else:
            await self._return(held, serving, key, is_serving=is_serving)

    async def _return(
        self, held: LoadedVersion[ModelTarget], serving: Servable, key: CandidateKey, *, is_serving: bool
    ) -> None:
        """Let the best candidate serve, now that one passed its trial; a new session of it if it `is_serving`."""
        best = choose(self._loader.candidates(serving.declared), self._loader.objective)
        try:
            if best is not None and (is_serving or best.place != serving.placement.place):
                opened = await self._open_in_time(held.release, best, serving.declared)
                if self._held(serving) is None:
                    opened.session.close()
                    return
                served = self._fitting.servable(opened, serving)
                self._swap(serving, served)
                self._successors[serving] = served
                self._publish(
                    CandidateRecovered(key.model, key.version, served.placement.variant, best.accelerator or "")
                )
                try:
                    await asyncio.shield(serving.close(self._settings.drain_s))
                finally:
                    self._successors.pop(serving, None)
            else:
                self.show(serving)
        except NoRoomError:
            self._failover.put_off(key, time.monotonic_ns())
            self.show(serving)
        except VariantError as error:
            self._failover.failed_again(key, str(error), time.monotonic_ns())
            self.show(serving)

    def _judge(self, key: CandidateKey, serving: Servable) -> None:
        """Go on with what answers requests again on an exclusive accelerator, where no trial can start, or reopen it.

        It stays out until it is open: one that is not out is refused for good if it does not open.
        """
        if self._failover.works(key, serving.answered):
            self._failover.tried(key, time.monotonic_ns())
            self.show(serving)
            self._publish(CandidateRecovered(key.model, key.version, *key.place[:2]))
        else:
            self._failover.failed_again(key, self._failover.obstacle(key), time.monotonic_ns())
            self._reopen(serving, False)

    async def _examined(self, release: Release, manifest: ModelManifest, candidate: Candidate) -> Verdict:
        """Return the verdict of a trial. The first one that passes is kept: without it, nothing could be chosen."""
        verdict = await self._loader.examine(release, manifest, candidate)
        if verdict.passed and candidate.verdict is None:
            self._loader.keep(manifest, candidate, verdict)
        return verdict

    def _held(self, servable: ModelTarget) -> LoadedVersion[ModelTarget] | None:
        """Return the release that a servable serves or is staged for; None if it is neither any more."""
        record = self._registry.record(*_key(servable)[:2])
        found = (each for each in (record.serving, record.staged) if each is not None and each.target is servable)
        return next(found, None)

    def _can_replace(self, held: LoadedVersion[ModelTarget], servable: Servable) -> bool:
        can = self._loader.can_replace(held.release, servable.declared, servable.placement.place)
        self._asked[servable] = time.monotonic_ns() + ASKED_NS, can
        return can

    def _could_replace(self, held: LoadedVersion[ModelTarget], servable: Servable) -> bool:
        """Return the answer of `_can_replace`, or that of the last second."""
        until_ns, can = self._asked.get(servable, (0, False))
        return can if time.monotonic_ns() < until_ns else self._can_replace(held, servable)


def _key(servable: ModelTarget) -> CandidateKey:
    return CandidateKey(servable.manifest.name, servable.manifest.version, servable.placement.place)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, VariantError) else f"{type(error).__name__}: {error}"
