"""Releases that are loaded before they are served: tried, opened, kept apart, taken over or released."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.common.domain.events import ModelRefused, Publish, VariantChosen
from gateway.common.domain.release import Release
from gateway.common.domain.selection import Candidate
from gateway.serving.domain.ports import Loaded, Replayed
from gateway.serving.engine.fitting import Fitting
from gateway.serving.engine.leases import Leases
from gateway.serving.engine.loader import Opened, Opening
from gateway.serving.engine.registry import Registry
from gateway.serving.engine.replay import read_rows, replay
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.versions import LoadedVersion

Key = tuple[str, str]
"""Key of a staged release: model and version."""


class Staging:
    """Staged releases, by model and version. Trials run concurrently with everything else."""

    def __init__(
        self,
        registry: Registry,
        fitting: Fitting,
        leases: Leases,
        settings: EngineSettings,
        publish: Publish,
        *,
        opening: Opening[Opened | ModelTarget],
        open_pipeline: Callable[[Release], Awaitable[ModelTarget]],
    ) -> None:
        self._registry, self._fitting, self._leases = registry, fitting, leases
        self._opening, self._open_pipeline = opening, open_pipeline
        self._settings, self._publish = settings, publish
        self._loads: dict[Key, object] = {}
        """Last load under way of each version: results of an earlier load or of an unloaded version are discarded."""
        self._closed = False

    async def stage(self, model: str, version: str, fetch: Callable[[], Awaitable[Release]]) -> Loaded:
        """Implement `ModelRepository.stage`. On cancellation no session is left open."""
        key = (model, version)
        if self._registry.serving(model, version) is None:  # else it may be the serving one, which takes no place
            self._check_room(key)
        load = self._loads[key] = object()
        try:
            return await self._stage(await fetch(), load)
        finally:
            if self._loads.get(key) is load:
                del self._loads[key]

    async def unstage(self, model: str, version: str, drain_s: float) -> None:
        """Implement `ModelRepository.unstage`."""
        load, servable = self._loads.pop((model, version), None), self._unstage(model, version)
        if servable is not None:
            await servable.close(drain_s)
        elif load is None and self._registry.serving(model, version) is not None:
            what = f"model '{model}' version {version} is what is committed or given by hand; commit another one first"
            raise RequestError(Fault.DENIED, what)

    async def replay(self, model: str, version: str) -> Replayed:
        """Implement `Serving.replay`."""
        staged = self._registry.record(model, version).staged
        if staged is None:
            what = f"model '{model:.200}' version {version:.100} is not loaded for an update; load it first"
            raise RequestError(Fault.NOT_FOUND, what)
        golden = await asyncio.to_thread(read_rows, staged.release)
        if golden is None:
            ran = staged.release.pipeline is not None and staged.release.pipeline.golden is not None
            return Replayed(0, True, "its golden set ran when it was loaded" if ran else "it has no golden set")
        return await replay(staged.target, golden)

    def staged(self, release: Release) -> ModelTarget | None:
        """Return the servable that is staged from exactly this release, or None."""
        record = self._registry.record(release.name, release.version)
        return record.staged.target if record.staged and record.stages(release) else None

    async def renew(self) -> None:
        """Open staged pipelines again of which a model was replaced: a route gives them requests.

        Those that a load opens now, and those that refuse requests with these models, stay as they are.
        """
        for model, version in self._registry.staged() - self._loads.keys():
            held = self._registry.record(model, version).staged
            if held is not None and not held.target.fits and not held.target.refusal:

                async def same(release: Release = held.release) -> Release:
                    return release

                with suppress(VariantError, ConfigurationError, RequestError):  # its stager asks, too
                    await self.stage(model, version, same)

    def close(self) -> None:
        """Discard all trials and releases that are not open yet."""
        self._closed = True

    def _served(self, release: Release) -> ModelTarget | None:
        record = self._registry.record(release.name, release.version)
        return record.serving.target if record.serving and record.serves(release) else None

    async def _stage(self, release: Release, load: object) -> Loaded:
        served = self._served(release)
        if (there := served or self.staged(release)) is not None:
            if there.refusal:
                raise VariantError(there.refusal)
            if served or there.fits:
                return self._earlier_result(there)
        if (unwanted := self._unwanted(release, load)) is not None:
            raise unwanted
        self._check_room((release.name, release.version))
        opened = await self._opened(release)
        if not (isinstance(opened, Opened) or release.pipeline):
            return self._earlier_result(opened)
        servable, old = self._keep(release, opened, load)
        if old is not None:
            await old.close(self._settings.drain_s)
        return self._loaded(servable, opened.candidate if isinstance(opened, Opened) else None)

    def _check_room(self, key: Key) -> None:
        others = (self._registry.staged() | self._loads.keys()) - {key}
        if len(others) >= self._settings.staged_versions:
            many = f"{len(others)} versions are loaded for updates or about to be"
            what = f"{many}, the most there may be; unload one of them"
            raise RequestError(Fault.OVERLOADED, what, retry_after_s=self._settings.retry_after_s)

    async def _opened(self, release: Release) -> Opened | ModelTarget:
        try:
            if release.pipeline:
                return await self._open_pipeline(release)
            return await self._fitting.first(release, self._served, self._opening)
        except (VariantError, ConfigurationError) as error:
            self._publish(ModelRefused(release.name, release.version, str(error)))
            raise

    def _keep(
        self, release: Release, opened: Opened | ModelTarget, load: object
    ) -> tuple[ModelTarget, ModelTarget | None]:
        """Return the servable that is staged now, and the one that it replaces. Never waits, so that nothing leaks."""
        if (unwanted := self._unwanted(release, load)) is not None:
            if isinstance(opened, Opened):
                opened.session.close()
            raise unwanted
        servable = self._fitting.servable(opened) if isinstance(opened, Opened) else opened
        release = opened.release if isinstance(opened, Opened) else release
        entry = self._registry.entry(release.name)
        old = entry.stage(release.version, LoadedVersion(release, servable))
        self._publish(chosen(servable))
        return servable, old

    def _unwanted(self, release: Release, load: object) -> VariantError | None:
        if self._closed:
            return VariantError("the gateway stops", transient=True)
        if self._loads.get((release.name, release.version)) is not load:
            what = f"model '{release.name}' version {release.version} was unloaded or loaded again meanwhile"
            return VariantError(what, remedy="load it again if it is wanted", transient=True)
        return None

    def _unstage(self, model: str, version: str) -> ModelTarget | None:
        if self._registry.record(model, version).staged is None:
            return None
        entry = self._registry.entry(model)
        before, servable = entry.route, entry.unstage(version)
        self._leases.settle(model, before, f"version {version} is unloaded")
        self._registry.tidy(model)
        return servable

    def _earlier_result(self, servable: ModelTarget) -> Loaded:
        """Return the result of an earlier load."""
        candidates = self._fitting.loader.candidates(servable.declared)
        return self._loaded(servable, next((c for c in candidates if c.place == servable.placement.place), None))

    @staticmethod
    def _loaded(servable: ModelTarget, candidate: Candidate | None) -> Loaded:
        placement = servable.placement
        verdict = candidate.verdict if candidate else None
        measured = verdict.measured if verdict else None
        return Loaded(placement.variant, placement.accelerator, placement.reason, measured)


def chosen(servable: ModelTarget) -> VariantChosen:
    """Return the event for the variant that serves a version, with the reason."""
    manifest, placement = servable.manifest, servable.placement
    return VariantChosen(
        manifest.name,
        manifest.version,
        placement.variant,
        placement.accelerator,
        placement.reason,
        placement.level,
        (*placement.remarks, *([f"requests are not joined: {placement.joining}"] if placement.joining else [])),
    )
