"""Serving of the releases on disk: a version serves until the new one passes its gate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.common.domain.events import EntryIgnored, ModelRefused, ModelUndecided, Publish
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.domain.retry import SECOND_NS
from gateway.common.domain.routing import version_order
from gateway.common.domain.selection import choose
from gateway.common.timeouts import wait_for
from gateway.serving.domain.ports import IndexEntry, Loaded, Replayed, VersionStatus
from gateway.serving.engine.cold import ColdVersion
from gateway.serving.engine.comparing import Comparing
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.engine import Engine
from gateway.serving.engine.fitting import Fitting, worker_settings
from gateway.serving.engine.leases import Leases
from gateway.serving.engine.loader import Loader, Opened
from gateway.serving.engine.loading import load_all, outer_first
from gateway.serving.engine.openings import Openings
from gateway.serving.engine.recovery import Recovery
from gateway.serving.engine.registry import Registry
from gateway.serving.engine.settings import EngineSettings, ResidencySettings, SelectionSettings
from gateway.serving.engine.staging import Staging, chosen
from gateway.serving.engine.stream_store import StreamStore
from gateway.serving.engine.target import ModelTarget, RequestTarget
from gateway.serving.engine.threads import Threads
from gateway.serving.engine.trial_plan import PlannedTrial, TrialPlan
from gateway.serving.engine.versions import Attempt, LoadedVersion, NextAttempt, attempted, undecided
from gateway.serving.engine.waking import Residency

ScanModel = Callable[[str], Awaitable[Sequence[Release]]]
OpenPipeline = Callable[[Release, "Find", EngineContext, ModelTarget | None], Awaitable[ModelTarget]]
"""Function that opens a pipeline; the last argument is the version that it replaces. Raises VariantError."""
Find = Callable[[str, str], RequestTarget]
"""Function that returns what answers to a model's name and version now. Raises RequestError."""


class ModelRepository:
    """Implementation of Repository and Standings.

    One change at a time: loads, unloads and swaps wait for each other. Staging waits for none of them. A staged release
    belongs to its stager until a release of the same digest is to be served. Undecided releases are tried again until
    they decide; any other change interrupts that.
    """

    def __init__(
        self,
        registry: Registry,
        engine: Engine,
        loader: Loader,
        scan_model: ScanModel,
        *,
        settings: EngineSettings,
        selection: SelectionSettings,
        residency: ResidencySettings | None = None,
        control: Callable[[], bool],
        publish: Publish,
        open_pipeline: OpenPipeline,
        streams: StreamStore | None = None,
        opening_wait_s: float | None = None,
    ) -> None:
        self._open_pipeline = open_pipeline
        self._registry, self._engine, self._loader, self._scan_model = registry, engine, loader, scan_model
        self._settings, self._selection, self._control, self._publish = settings, selection, control, publish
        self._changing, self._followed = asyncio.Lock(), asyncio.Event()
        self._decoders = Threads(settings.image_threads, "decode")
        self._preparing = Threads(settings.image_threads, "prepare")
        self._comparing = Comparing(settings.comparisons)
        self.recovery = Recovery(registry, settings, publish, swap=self._swap, reopen=self._replace_later)
        self._context = EngineContext(
            settings,
            engine.batch_pass,
            worker_settings(loader, settings, engine.batch_pass.pauses),
            self._decoders,
            self._comparing,
            publish,
            self.recovery,
            preparing=self._preparing,
            streams=streams or StreamStore(),
        )
        self._replacing: set[asyncio.Task[None]] = set()
        self._misfits = dict[tuple[str, str], Release]()
        """Pipelines that were refused, by name and version. A change of their models may mend them."""
        self._openings = Openings(self._opened_pipeline, opening_wait_s, self._try_at_once)
        self._due = asyncio.Event()
        self._retrying: asyncio.Task[None] | None = None
        self.decided: Callable[[], None] = lambda: None
        """Callback after a later attempt of an undecided release served or refused it."""
        self.changed: Callable[[], None] = lambda: None
        """Callback after a change of what is served: `refine` may have something to try."""
        self._fitting = Fitting(loader, self._context)
        self._leases = Leases(registry, settings.lease_limit_s, publish)
        self.residency = Residency(registry, self._fitting, self._context, residency or ResidencySettings())
        self.recovery.begin(self._fitting, self.residency, lambda: self.changed())  # noqa: PLW0108  set later
        self._staging = Staging(
            registry,
            self._fitting,
            self._leases,
            settings,
            publish,
            opening=self.residency.open,
            open_pipeline=self._opened_pipeline,
        )

    def index(self) -> Sequence[IndexEntry]:
        """Implement `Repository.index`."""
        return self._registry.index()

    def versions(self, model: str) -> Sequence[str]:
        """Implement `Repository.versions`."""
        return sorted(self._registry.known(model).reachable, key=version_order)

    def standings(self) -> Sequence[VersionStatus]:
        """Implement `Standings.standings`."""
        return self._registry.standings()

    async def stage(self, model: str, version: str, fetch: Callable[[], Awaitable[Release]]) -> Loaded:
        """Load the release that `fetch` returns for this version as `synchronise` would, trials included, and keep it.

        It answers no request before `route` or `synchronise` selects it, and stays loaded whatever `synchronise`
        serves. A release that is staged or served already, by digest, is reported again. Another release replaces the
        one that was staged as the same version. While the same version serves from another release, the staged one
        answers nothing until it is committed.

        Raises what `fetch` raises. Raises VariantError or ConfigurationError with every reason if the release cannot
        serve, and a transient VariantError if it was unstaged or staged again in the meantime. Raises RequestError
        OVERLOADED if too many are staged.
        """
        return await self._staging.stage(model, version, fetch)

    def route(self, model: str, weights: Mapping[str, int], *, shadow: str = "", lease_s: float) -> None:
        """Implement `Serving.route`. Raises RequestError INVALID, or NOT_FOUND if a version is not loaded."""
        self._leases.route(model, weights, shadow, lease_s)

    async def replay(self, model: str, version: str) -> Replayed:
        """Implement `Serving.replay`."""
        return await self._staging.replay(model, version)

    async def unstage(self, model: str, version: str, drain_s: float) -> None:
        """Implement `Serving.unload`. Raises RequestError DENIED for a version that is served, not staged."""
        await self._staging.unstage(model, version, drain_s)
        self.changed()  # an exclusive accelerator may be free

    async def load(self, model: str) -> None:
        """Implement `Repository.load`. Raises UNAVAILABLE with the reason if a version found on disk does not pass."""
        self._check_control("load")
        named = NAME_PATTERN.fullmatch(model)
        async with self._change():
            releases = await self._scan_model(model) if named else ()
            if not releases:
                what = f"failed to load '{model:.200}': the model directory does not hold it"
                raise RequestError(Fault.NOT_FOUND, what)
            entry = self._registry.entry(model)
            for version, record in list(entry.records.items()):
                entry.note(version, replace(record, hangs=0))
                self._misfits.pop((model, version), None)
                self.recovery.loaded_by_hand(model, version)
            await self._follow(releases, only=model)
            obstacles = [one.obstacle(time.monotonic_ns()) for one in self._registry.entry(model).records.values()]
            if any(obstacles):
                raise RequestError(
                    Fault.UNAVAILABLE, f"failed to load '{model}': {'; '.join(filter(None, obstacles))} (EG-308)"
                )

    async def unload(self, model: str) -> None:
        """Implement `Repository.unload`: requests under way finish; the version stays in the index as UNAVAILABLE."""
        self._check_control("unload")
        async with self._change():
            entry = self._registry.known(model)
            if users := self._users(model):
                what = f"model '{model}' is run by the pipeline {', '.join(users)}; unload that first"
                raise RequestError(Fault.INVALID, what)
            self._leases.end(model, "unloaded")
            for version, record in list(entry.records.items()):
                if record.serving or record.retry:
                    await self._retire(self._withdraw(model, version, "unloaded"))

    async def synchronise(
        self, releases: Sequence[Release], *, again: bool = True, same: Mapping[tuple[str, str], Release] | None = None
    ) -> None:
        """Serve `releases`: load new and changed ones, retire versions that are gone.

        Undecided ones are tried at once, or with `again=False` when their next attempt is due. Those of `same` (by name
        and version) that are listed stay as they are.
        """
        async with self._change():
            await self._follow(releases, again=again, same=same)

    async def refine(self) -> None:
        """Measure untried variants while the device is idle; swap if the objective then requires it.

        What was measured on a busy machine is measured again, with back-off. Returns when nothing is left to try.
        """
        plan = TrialPlan(self._registry, self._loader)
        while (trial := await self._next_trial(plan)) is not None:
            if (wait_s := (trial.due_ns - time.monotonic_ns()) / 1e9) > 0:
                self._followed.clear()
                with suppress(TimeoutError):  # or until there are other releases
                    await wait_for(self._followed.wait(), wait_s)
                continue
            plan.begin(trial, time.monotonic_ns())
            await self._loader.prove(trial.release, trial.manifest, trial.candidate)
            async with self._change():
                serving = self._registry.record(trial.release.name, trial.release.version).serving
                if serving is not None and serving.release is trial.release:
                    await self._choose_again(serving, plan)

    async def close(self) -> None:
        """Drain and free everything, in parallel."""
        await self.recovery.close()
        async with self._change(last=True):
            self._staging.close()
            self._leases.close()
            self._comparing.close()
            await self.residency.close()
            held = [each for one in self._registry.records() for each in (one.serving, one.staged) if each]
            for level in outer_first([each.release for each in held if each.release.pipeline]):
                pipelines = [each.target for each in held if each.release in level]
                await asyncio.gather(*(pipeline.close(self._settings.drain_s) for pipeline in pipelines))
            servables = [each.target for each in held if not each.release.pipeline]
            await asyncio.gather(*(servable.close(self._settings.drain_s) for servable in servables))
            self._decoders.close()
            self._preparing.close()

    def _serving(self) -> list[LoadedVersion[ModelTarget]]:
        return [record.serving for record in self._registry.records() if record.serving]

    def _users(self, model: str) -> list[str]:
        """Return the pipelines that serve and run a model."""
        pipelines = [each.release.pipeline for each in self._serving() if each.release.pipeline]
        return sorted({one.name for one in pipelines if model in {named for named, _ in one.models}})

    def _check_control(self, verb: str) -> None:
        if not self._control():
            raise RequestError(Fault.DENIED, f"{verb} is not allowed here; set [models] control = true to allow it")

    def _replace_later(self, servable: ModelTarget, hangs: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._replace(servable, hangs))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, failed: ModelTarget, is_hung: bool) -> None:
        """Open a version again that nothing else can serve; after `max_hangs` runs that hang it stays out of service.

        The memory of a session that hangs and its thread are lost: nothing in this process can end them.
        """
        model, version = failed.manifest.name, failed.manifest.version
        async with self._change():
            record = self._registry.record(model, version)
            if record.serving is None or record.serving.target is not failed:  # staged, or already replaced
                await failed.close(0.0)
                return
            hangs = self._registry.entry(model).count_hang(version) if is_hung else record.hangs
            self._withdraw(model, version)
            await failed.close(0.0)
            if hangs <= self._settings.max_hangs:
                await self._bring_up_all([record.serving.release])
                return
            reason = f"{hangs} of its runs did not end; correct the model or its callers' inputs, then load it"
            self._registry.entry(model).attempt(version, Attempt.REFUSED, reason)
            self._publish(ModelRefused(model, version, reason))

    @asynccontextmanager
    async def _change(self, *, last: bool = False) -> AsyncIterator[None]:
        """Make a change. It interrupts an attempt of undecided releases, which are tried again after it."""
        if self._retrying is not None:
            self._retrying.cancel()
        async with self._changing:
            try:
                yield
            finally:
                if self._retrying is not None:
                    self._retrying.cancel()
                self._retrying = None
                await self._openings.keep([] if last else [retry.release for retry in self._retries()])
                if not last and any(self._retries()):
                    self._retrying = asyncio.create_task(self._try_again(), name="undecided")
                if not last:
                    self.changed()

    def _retries(self) -> list[NextAttempt]:
        return [
            record.retry for record in self._registry.records() if record.attempt is Attempt.UNDECIDED and record.retry
        ]

    def opens(self, release: Release) -> bool:
        """Return True if the Python code of a release starts, so that it may serve soon."""
        return self._openings.has(release)

    def _try_at_once(self, release: Release) -> None:
        """Make the next attempt of an undecided release due."""
        entry, retry = self._registry.entry(release.name), self._registry.record(release.name, release.version).retry
        if retry is not None and retry.release == release:
            due = replace(retry, due_ns=time.monotonic_ns())
            entry.note(release.version, replace(entry.record(release.version), retry=due))
            self._due.set()

    async def _try_again(self) -> None:
        """Try undecided releases again, each when it is due, until all have decided."""
        while retries := self._retries():
            first_ns = min(retry.due_ns for retry in retries)
            self._due.clear()
            with suppress(TimeoutError):
                await wait_for(self._due.wait(), max(0, first_ns - time.monotonic_ns()) / SECOND_NS)
                continue  # one is due earlier
            async with self._changing:
                now_ns = max(first_ns, time.monotonic_ns())
                due = [retry.release for retry in retries if retry.due_ns <= now_ns]
                await self._bring_up_all(due)
                if any(self._registry.record(one.name, one.version).retry is None for one in due):
                    self.decided()
                    self.changed()

    async def _follow(
        self,
        releases: Sequence[Release],
        only: str = "",
        *,
        again: bool = True,
        same: Mapping[tuple[str, str], Release] | None = None,
    ) -> None:
        """Serve `releases` as `synchronise` does; only those of model `only` if it is given."""
        waiting = []
        for release in releases:
            entry = self._registry.entry(release.name)
            record = entry.record(release.version)
            if (
                same
                and same.get((release.name, release.version)) == release
                and record.is_listed
                and not record.is_loading
            ):
                continue
            if not again and record.retry is not None and record.retry.release == release:
                continue
            entry.note(release.version, replace(record, retry=None))
            waiting.append(release)
        with self.recovery.replaces(waiting):
            await self._bring_up_all(waiting)
        wanted = {(release.name, release.version) for release in releases}
        kept = {release.name for release in releases if self._keeps_others(release)}
        gone = self._registry.listed() - wanted
        levels = outer_first([each.release for each in self._serving() if each.release.pipeline])
        users = [key for level in levels for each in level if (key := (each.name, each.version)) in gone]
        for name, version in (*users, *(gone - set(users))):  # a pipeline finishes while those that it runs serve
            if name not in kept and only in {"", name}:
                await self._retire(self._withdraw(name, version))
                self._registry.entry(name).forget(version)
                self._registry.tidy(name)
        self._followed.set()

    def _keeps_others(self, release: Release) -> bool:
        """Return True if the other versions of the model stay.

        They stay if the contents of its folder are not known, or if the version that the fleet committed could not be
        loaded.
        """
        if not release.version:
            return True
        held = self._registry.serving(release.name, release.version)
        return release.signed and (held is None or bool(held.refusal))

    async def _bring_up_all(self, releases: Sequence[Release]) -> None:
        """Load several releases at once. All that have to be loaded are listed from the beginning."""
        releases = list({(release.name, release.version): release for release in releases}.values())
        pipelines = list[Release]()
        for release in releases:
            entry = self._registry.entry(release.name)
            if not entry.record(release.version).serves(release):
                entry.attempt(release.version, Attempt.WAITING)
        self._registry.is_read = True
        try:
            models = [release for release in releases if release.pipeline is None]
            await load_all((partial(self._bring_up, release) for release in models), self._selection.loads_at_once)
            pipelines = self._pipelines(releases)
            # one that was staged may have run its golden set with earlier models
            tried = [one for one in pipelines if self._staging.staged(one) is None]
            for pipeline in pipelines:
                await self._bring_up(pipeline)
            for ring in self._rings():
                names = " → ".join(one.name for one in (*ring, ring[0]))
                for one in ring:
                    self._refuse(one, f"pipelines run each other: {names}; take one of these steps out")
            while left := [one.release for one in self._serving() if not (one.target.fits or one.release in tried)]:
                tried.append(left[0])
                await self._bring_up(left[0])
            await self._staging.renew()
        finally:
            for release in (*releases, *pipelines):
                self._give_up(release)

    def _pipelines(self, releases: Sequence[Release]) -> list[Release]:
        """Return the pipelines among the releases, and those that wait for one of them, after those that they run.

        Those that were refused wait for a change of their models, too.
        """
        named = {release.name for release in releases}
        found = [release for release in releases if release.pipeline]
        given = {(release.name, release.version) for release in found}
        waiting = [
            one
            for one in (*(retry.release for retry in self._retries()), *self._misfits.values())
            if (one.name, one.version) not in given
        ]
        while more := [
            one
            for one in waiting
            if one not in found and one.pipeline and any(model in named for model, _ in one.pipeline.models)
        ]:
            found += more
            named |= {one.name for one in more}
        ordered = list[Release]()
        while found:
            left = {release.name for release in found}
            first = [one for one in found if one.pipeline and not left & {model for model, _ in one.pipeline.models}]
            ordered += first or found  # those that run each other are refused afterwards (`_rings`)
            found = [one for one in found if one not in ordered]
        return ordered

    def _rings(self) -> list[list[Release]]:
        """Return the undecided pipelines that wait for each other, each in the order in which they run."""
        left = {retry.release.name: retry.release for retry in self._retries() if retry.release.pipeline}
        rings = list[list[Release]]()
        while left:
            path = [next(iter(left.values()))]
            while (after := self._awaited(path[-1], left)) is not None and after not in path:
                path.append(after)
            ring = path[path.index(after) :] if after is not None else path[-1:]  # or one that waits for none of them
            rings += [ring] if after is not None else []
            for one in ring:
                del left[one.name]
        return rings

    def _awaited(self, release: Release, others: Mapping[str, Release]) -> Release | None:
        """Return the one of `others` that a pipeline runs, and that does not serve."""
        for model, version in release.pipeline.models if release.pipeline else ():
            other = others.get(model)
            if other is not None and version in {"", other.version}:
                try:
                    self._registry.find(model, version)
                except RequestError:
                    return other
        return None

    def _give_up(self, release: Release) -> None:
        """End an attempt that was interrupted: an undecided release stays so, another one is forgotten."""
        entry = self._registry.entry(release.name)
        record = entry.record(release.version)
        if record.is_loading:
            stage = Attempt.UNDECIDED if record.retry else Attempt.NONE
            if record.attempt is Attempt.RUNNING and (release.name, release.version) in self._misfits:
                stage = Attempt.REFUSED
            entry.note(release.version, attempted(record, stage, record.reason, record.retry))
        self._registry.tidy(release.name)

    async def _bring_up(self, release: Release) -> None:
        """Serve a release, or record why it does not serve."""
        entry, version = self._registry.entry(release.name), release.version
        record = entry.record(version)
        held = record.serving if record.serves(release) else None
        if held is not None and held.target.fits:
            self._misfits.pop((release.name, version), None)
            entry.attempt(version, Attempt.NONE)
            self._serve(held, committed=release.signed)
            return
        if held is not None and held.target.refusal and (release.name, version) in self._misfits:
            self._refuse(release, held.target.refusal)  # the same models are not asked again
            return
        if record.attempt is not Attempt.WAITING:  # a pipeline that does not fit its models any more
            entry.attempt(version, Attempt.WAITING)
        entry.attempt(version, Attempt.RUNNING)
        try:
            servable = self._staging.staged(release) or await self._opened(release)
        except (VariantError, ConfigurationError) as error:
            self._misfits.pop((release.name, version), None)
            if isinstance(error, VariantError) and error.transient:
                entry.note(version, undecided(entry.record(version), release, str(error), time.monotonic_ns()))
                self._publish(
                    ModelUndecided(release.name, version, entry.record(version).obstacle(time.monotonic_ns()))
                )
            else:
                self._refuse(release, str(error))
        else:
            self._misfits.pop((release.name, version), None)
            entry.attempt(version, Attempt.NONE)
            old = self._serve(LoadedVersion(release, servable), committed=release.signed)
            await asyncio.shield(self._retire(old))  # an interrupted attempt must not leave it open

    def _refuse(self, release: Release, reason: str) -> None:
        if release.pipeline:
            self._misfits[release.name, release.version] = release
        self._registry.entry(release.name).attempt(release.version, Attempt.REFUSED, reason)
        is_version = release.version != NO_VERSION
        refusal = ModelRefused(release.name, release.version, reason)
        self._publish(refusal if is_version else EntryIgnored(release.name, reason))

    async def _opened(self, release: Release) -> ModelTarget:
        if release.name in self._registry.caches:
            of = release.pipeline
            if of.state if of else (await self._loader.manifest(release)).sequence:
                raise VariantError("its answers depend on earlier requests; remove its [[residency.cache]] (EG-318)")
        if release.pipeline is not None:
            return await (self._openings.opened if release.pipeline.python else self._opened_pipeline)(release)
        opened = await self._fitting.first(release, self._staging.staged, self.residency.open_or_leave)
        return self._made(opened) if isinstance(opened, Opened) else opened

    async def _opened_pipeline(self, release: Release) -> ModelTarget:
        record = self._registry.record(release.name, release.version)
        old = record.staged if record.stages(release) else record.serving
        try:
            return await self._open_pipeline(release, self._registry.find, self._context, old.target if old else None)
        except (VariantError, ConfigurationError):
            raise
        except Exception as error:  # one release's boundary: the others are served all the same
            raise VariantError(f"failed to open: {type(error).__name__}: {error}") from error

    def _made(self, opened: Opened) -> ModelTarget:
        manifest = opened.manifest
        return self._fitting.servable(opened, self._registry.serving(manifest.name, manifest.version))

    def _serve(self, held: LoadedVersion[ModelTarget], *, committed: bool) -> ModelTarget | None:
        """Let a servable answer for its version. Return the servable that it replaces."""
        model, version = held.release.name, held.release.version
        entry = self._registry.entry(model)
        before, serving = entry.route, self._registry.serving(model, version)
        old = entry.serve(version, held, committed=committed)
        self._leases.settle(model, before, f"version {version} is served")
        if serving is not held.target:
            self._publish(chosen(held.target))
        return old

    def _withdraw(self, model: str, version: str, reason: str = "") -> ModelTarget | None:
        self._misfits.pop((model, version), None)
        entry = self._registry.entry(model)
        before, servable = entry.route, entry.withdraw(version, reason)
        self._leases.settle(model, before, f"version {version} is gone")
        return servable

    async def _retire(self, servable: ModelTarget | None) -> None:
        if servable is not None:
            await servable.close(self._settings.drain_s)

    async def _next_trial(self, plan: TrialPlan) -> PlannedTrial | None:
        """Return the next trial once the device is idle. To plan many takes the event loop milliseconds."""
        wanted_ns = int(self._selection.idle_before_trial_s * 1e9)
        while (quiet_ns := self._engine.quiet_ns(time.monotonic_ns())) < wanted_ns:  # noqa: ASYNC110  computed, not polled
            await asyncio.sleep((wanted_ns - quiet_ns) / 1e9)
        return plan.next()

    async def _choose_again(self, held: LoadedVersion[ModelTarget], plan: TrialPlan) -> None:
        release, serving = held.release, held.target
        if isinstance(serving, ColdVersion):  # it is chosen again when it is opened
            return
        manifest = serving.declared
        candidates = self._loader.candidates(manifest)
        best = choose(candidates, self._loader.objective)
        complete = plan.is_complete(release, manifest, candidates)
        if best is None or not complete or self._loader.obstacle(release, manifest, best):
            return
        if self.recovery.leaves(serving):
            return
        if serving.placement.place == best.place and self._fitting.refit(serving, release, best):
            return
        try:
            servable = self._made(await self.residency.open(release, best, manifest, room_s=0.0))
        except VariantError as error:
            self._publish(ModelRefused(release.name, release.version, f"{best.variant.name} stays out: {error}"))
        else:
            await self._retire(serving if self._swap(serving, servable) else servable)

    def _swap(self, old: ModelTarget, new: ModelTarget) -> bool:
        """Let `new` take the place of `old`. Return False if that is neither served nor staged any more."""
        model, version = old.manifest.name, old.manifest.version
        record = self._registry.record(model, version)
        if record.serving is not None and record.serving.target is old:
            self._serve(LoadedVersion(record.serving.release, new), committed=record.serving.release.signed)
        elif record.staged is not None and record.staged.target is old:
            self._registry.entry(model).stage(version, LoadedVersion(record.staged.release, new))
            self._publish(chosen(new))
        else:
            return False
        self.changed()
        return True
