"""Keeps what is served in step with the releases on disk; the old version serves until the new one passes its gate."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gateway.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.domain.events import ModelRefused, Publish, VariantChosen
from gateway.domain.inventory import CPU
from gateway.domain.lifecycle import State
from gateway.domain.manifest import ModelManifest
from gateway.domain.manifest_toml import NAME_PATTERN
from gateway.domain.ports import IndexEntry
from gateway.domain.release import Release
from gateway.domain.routing import version_order
from gateway.domain.selection import Candidate, argument, choose, untried
from gateway.domain.statistics import Placement
from gateway.engine.cost import Cost, judge
from gateway.engine.engine import Engine
from gateway.engine.limiter import Limiter
from gateway.engine.loader import Loader, Opened
from gateway.engine.registry import Registry
from gateway.engine.servable import House, Servable
from gateway.engine.settings import EngineSettings, SelectionSettings
from gateway.engine.worker import Footing

ScanModel = Callable[[str], Sequence[Release]]
TrialKey = tuple[str, str, str | None]
"""Release digest, variant, accelerator."""


class ModelRepository:
    """Implements Repository. One change at a time: loads, unloads and swaps wait for each other."""

    def __init__(
        self,
        registry: Registry,
        engine: Engine,
        loader: Loader,
        scan_model: ScanModel,
        *,
        settings: EngineSettings,
        selection: SelectionSettings,
        control: Callable[[], bool],
        publish: Publish,
    ) -> None:
        self._registry, self._engine, self._loader, self._scan_model = registry, engine, loader, scan_model
        self._settings, self._selection, self._control, self._publish = settings, selection, control, publish
        self._releases: dict[tuple[str, str], Release] = {}
        self._changing = asyncio.Lock()
        self._decoders = ThreadPoolExecutor(settings.image_threads, thread_name_prefix="decode")
        self._house = House(settings, engine.turn, _footing(loader, settings), self._decoders, publish)

    def index(self) -> Sequence[IndexEntry]:
        """Repository.index."""
        return self._registry.index()

    def versions(self, model: str) -> Sequence[str]:
        """Repository.versions."""
        return sorted(self._registry.known(model).serving, key=version_order)

    async def load(self, model: str) -> None:
        """Repository.load: UNAVAILABLE with the reason where a version found on disk does not pass."""
        self._check_control("load")
        named = NAME_PATTERN.fullmatch(model)
        releases = await asyncio.to_thread(self._scan_model, model) if named else ()
        if not releases:
            raise RequestError(Fault.NOT_FOUND, f"failed to load '{model:.200}': the model directory does not hold it")
        await self.synchronise(releases, only=model)
        refused = self._registry.entry(model).refused
        if refused:
            raise RequestError(Fault.UNAVAILABLE, f"failed to load '{model}': {'; '.join(refused.values())}")

    async def unload(self, model: str) -> None:
        """Repository.unload: requests under way finish; the version stays in the index as UNAVAILABLE."""
        self._check_control("unload")
        entry = self._registry.known(model)
        async with self._changing:
            for version in list(entry.serving):
                self._releases.pop((model, version), None)
                entry.refused[version] = "unloaded"
                await self._retire(entry.withdraw(version))

    async def synchronise(self, releases: Sequence[Release], only: str = "") -> None:
        """Serve what `releases` say (of model `only`, where given): load the new and changed, retire what is gone."""
        async with self._changing:
            gate = asyncio.Semaphore(self._selection.loads_at_once)
            async with asyncio.TaskGroup() as loads:
                for release in releases:
                    loads.create_task(self._bring_up_through(gate, release))
            wanted = {(release.name, release.version) for release in releases}
            unread = {release.name for release in releases if not release.version}  # what it holds is not known
            for name, version in self._known() - wanted:
                if name not in unread and only in {"", name}:
                    await self._remove(name, version)

    async def refine(self) -> None:
        """Measure what was never tried while the device is idle; swap where the objective then says so.

        Returns when nothing is left to try. Nothing is tried twice, also where its verdict could not be kept.
        """
        tried: set[TrialKey] = set()
        while (job := self._next_trial(tried)) is not None:
            release, manifest, candidate = job
            tried.add(_trial_key(release, candidate))
            await self._wait_for_quiet()
            await self._loader.prove(release, manifest, candidate)
            async with self._changing:
                if self._releases.get((release.name, release.version)) is release:
                    await self._choose_again(release, tried)

    async def close(self) -> None:
        """Drain and free everything, in parallel."""
        async with self._changing:
            servables = list(self._registry.servables())
            await asyncio.gather(*(servable.close(self._settings.drain_s) for servable in servables))
            self._decoders.shutdown(wait=False, cancel_futures=True)

    def _check_control(self, verb: str) -> None:
        if not self._control():
            raise RequestError(Fault.DENIED, f"{verb} is not allowed here; set [models] control = true to allow it")

    def _known(self) -> set[tuple[str, str]]:
        return set(self._releases) | {(line.name, line.version) for line in self._registry.index()}

    async def _bring_up_through(self, gate: asyncio.Semaphore, release: Release) -> None:
        """A few at once, so that one whose trial hangs until its deadline holds up nobody."""
        async with gate:
            await self._bring_up(release)

    async def _bring_up(self, release: Release) -> None:
        key = (release.name, release.version)
        entry = self._registry.entry(release.name)
        kept = self._releases.get(key)
        if kept is not None and kept.digest == release.digest and release.version in entry.serving:
            entry.refused.pop(release.version, None)
            return
        entry.loading.add(release.version)
        try:
            opened = await self._loader.first(release)
        except (VariantError, ConfigurationError) as error:
            entry.refused[release.version] = str(error)
            self._publish(ModelRefused(release.name, release.version, str(error)))
        else:
            self._releases[key] = release
            entry.refused.pop(release.version, None)
            await self._swap(opened)
        finally:
            entry.loading.discard(release.version)
            self._registry.tidy(release.name)

    async def _swap(self, opened: Opened) -> None:
        manifest = opened.manifest
        entry = self._registry.entry(manifest.name)
        old = entry.serving.get(manifest.version)
        servable = self._servable(opened, old)
        servable.move(State.AVAILABLE)
        entry.serve(manifest.version, servable)
        candidate = opened.candidate
        self._publish(
            VariantChosen(
                manifest.name,
                manifest.version,
                candidate.variant.name,
                candidate.accelerator or "",
                servable.placement.reason,
            )
        )
        await self._retire(old)

    def _servable(self, opened: Opened, old: Servable | None) -> Servable:
        manifest, candidate = opened.manifest, opened.candidate
        variant = candidate.variant
        placement = Placement(
            variant=variant.name,
            runtime=variant.runtime,
            precision=variant.precision,
            accelerator=candidate.accelerator or "",
            reason=argument(self._loader.candidates(manifest), candidate, self._loader.objective),
            max_batch_rows=self._settings.max_batch_rows if manifest.batched else 0,
        )
        return Servable(
            manifest,
            placement,
            opened.session,
            cost=self._cost(candidate, manifest),
            threads=_threads(candidate),
            house=self._house,
            statistics=old.statistics if old and old.manifest == manifest else None,
        )

    def _cost(self, candidate: Candidate, manifest: ModelManifest) -> Cost:
        """A model whose requests wait to be joined runs on its worker: the loop's timers are too coarse for that."""
        settings = self._settings
        return judge(
            candidate.verdict.measured if candidate.verdict else None,
            candidate.accelerator or CPU,
            batched=manifest.batched,
            inline_limit_us=0 if settings.queue_of(manifest.name).delay_us else settings.inline_limit_us,
            batch_rows=settings.batch_rows,
            batch_gain=settings.batch_gain,
        )

    async def _retire(self, servable: Servable | None) -> None:
        if servable is not None:
            await servable.close(self._settings.drain_s)

    async def _remove(self, model: str, version: str) -> None:
        self._releases.pop((model, version), None)
        await self._retire(self._registry.entry(model).withdraw(version))
        self._registry.forget(model, version)

    def _next_trial(self, tried: set[TrialKey]) -> tuple[Release, ModelManifest, Candidate] | None:
        for release in self._releases.values():
            servable = self._registry.entry(release.name).serving.get(release.version)
            for candidate in untried(self._loader.candidates(servable.manifest)) if servable else ():
                if servable and _trial_key(release, candidate) not in tried:
                    return release, servable.manifest, candidate
        return None

    async def _wait_for_quiet(self) -> None:
        wanted_ns = int(self._selection.idle_before_trial_s * 1e9)
        while (quiet_ns := self._engine.quiet_ns(time.monotonic_ns())) < wanted_ns:  # noqa: ASYNC110  computed, not polled
            await asyncio.sleep((wanted_ns - quiet_ns) / 1e9)

    async def _choose_again(self, release: Release, tried: set[TrialKey]) -> None:
        serving = self._registry.find(release.name, release.version)
        manifest = serving.manifest
        candidates = self._loader.candidates(manifest)
        best = choose(candidates, self._loader.objective)
        left = [candidate for candidate in untried(candidates) if _trial_key(release, candidate) not in tried]
        if best is None or left or _serves(serving, best):
            return
        try:
            await self._swap(await self._loader.open(release, best, manifest))
        except VariantError as error:
            self._publish(ModelRefused(release.name, release.version, f"{best.variant.name} stays out: {error}"))


def _trial_key(release: Release, candidate: Candidate) -> TrialKey:
    return release.digest, candidate.variant.name, candidate.accelerator


def _footing(loader: Loader, settings: EngineSettings) -> Footing:
    budget, cores = loader.site.profile.budget, loader.site.inventory.cpu.cores or os.cpu_count() or 1
    return Footing(Limiter(budget.threads or cores, settings.thread_wait_s), budget.worker_nice)


def _threads(candidate: Candidate) -> int:
    """Of the processor, taken by a run; none where an accelerator does the work."""
    if candidate.accelerator not in {None, CPU}:
        return 0
    return candidate.verdict.threads if candidate.verdict else 1


def _serves(servable: Servable, candidate: Candidate) -> bool:
    placement = servable.placement
    return (placement.variant, placement.accelerator) == (candidate.variant.name, candidate.accelerator)
