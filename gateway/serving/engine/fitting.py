"""Construction of a servable from a release: session, placement, cost of runs, and threads that a run takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release
from gateway.common.domain.selection import Candidate, argument, joining_obstacle, settled
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.serving.domain.lifecycle import ServableState
from gateway.serving.engine.cold import ColdParts
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.cost import Cost, estimate_cost, of_one_shape
from gateway.serving.engine.failover import CandidateKey, spare
from gateway.serving.engine.limiter import Limiter
from gateway.serving.engine.loader import Loader, Opened, Opening
from gateway.serving.engine.pauses import Pauses
from gateway.serving.engine.sequences import SequenceServable
from gateway.serving.engine.servable import Servable, ServableParts
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.worker import WorkerSettings

if TYPE_CHECKING:
    from gateway.serving.tasks.interpreter import Interpreter


@dataclass(frozen=True, slots=True)
class Fitting:
    """Factory of servables for one device."""

    loader: Loader
    context: EngineContext

    async def first(
        self,
        release: Release,
        meanwhile: Callable[[Release], ModelTarget | None],
        opening: Opening[Opened | ModelTarget],
    ) -> Opened | ModelTarget:
        """Open a release as `Loader.first` does, unless `meanwhile` returns a target of it after that.

        `meanwhile` is called after success and after failure, and its target has precedence. The session that was
        opened is closed then.
        """
        try:
            opened = await self.loader.first(release, opening)
        except (VariantError, ConfigurationError):
            if (there := meanwhile(release)) is None:
                raise
            return there
        if (there := meanwhile(release)) is not None and isinstance(opened, Opened):
            opened.session.close()
        return there or opened

    def servable(self, opened: Opened, old: ModelTarget | None = None) -> Servable:
        """Return a servable of an opened release. It continues the counters of `old` if that has the same manifest.

        Raises VariantError, with the session closed, if no thread can start for it, or its task does not fit.
        """
        try:
            interpreter = _interpreter_of(opened.served)
            manifest = opened.served if interpreter is None else interpreter.described
            parts = ServableParts(
                manifest=manifest,
                declared=opened.manifest,
                contents=(opened.release.digest,),
                placement=self._placement(
                    opened.release, opened.manifest, opened.candidate, opened.taken, opened.candidates
                ),
                session=opened.session,
                interpreter=interpreter,
                witness=opened.witness,
                cost=self._cost(opened.manifest, opened.candidate),
                threads=_threads(opened.candidate),
                runs=opened.candidate.runs,
            )
            made = Servable if manifest.sequence is None else SequenceServable
            servable = made(parts, self.context, old.statistics if old and old.manifest == manifest.seen else None)
        except ConfigurationError as error:
            opened.session.close()
            raise VariantError(str(error)) from error
        except RuntimeError as error:
            opened.session.close()
            what, remedy = f"no thread for its runs: {error}", "allow the gateway more (TasksMax, ulimit -u)"
            raise VariantError(what, remedy=remedy, transient=True) from error
        opened.made(servable)
        self._note(opened, servable)
        servable.move(ServableState.AVAILABLE)
        return servable

    def _note(self, opened: Opened, servable: Servable) -> None:
        """Let a candidate serve that is open, and note and show those on accelerators that are gone."""
        failover, declared, now_ns = self.loader.failover, opened.manifest, time.monotonic_ns()
        version = declared.name, declared.version
        if opened.candidate.accelerator not in failover.gone:
            failover.tried(CandidateKey(*version, opened.candidate.place), now_ns)
        for each in spare(self.loader.known(declared)) if failover.gone else ():
            if each.accelerator in failover.gone:  # tried once it is back
                key = CandidateKey(*version, each.place)
                failover.failed(key, failover.obstacle(key), now_ns, at_once=True)
        servable.degrade(failover.degraded(*version, time.time() - time.monotonic()))

    def cold(
        self, release: Release, declared: ModelManifest, candidate: Candidate, old: ModelTarget | None, residency: str
    ) -> ColdParts:
        """Return what callers see of a proven candidate that is not opened; see `servable`. Raises VariantError."""
        try:
            served = settled(declared, candidate.verdict)
            interpreter = _interpreter_of(served)
        except ConfigurationError as error:
            raise VariantError(str(error)) from error
        seen = (interpreter.described if interpreter else served).seen
        return ColdParts(
            release=release,
            manifest=seen,
            declared=declared,
            placement=self._placement(release, declared, candidate, residency),
            statistics=old.statistics if old and old.manifest == seen else ServableStatistics(seen.name, seen.version),
            streams=getattr(old, "streams", None),
        )

    def refit(self, target: ModelTarget, release: Release, candidate: Candidate) -> bool:
        """Give a servable the cost of its candidate's present verdict. Return False if it must be opened again."""
        if not isinstance(target, Servable):
            return False
        declared = target.declared
        served = settled(declared, candidate.verdict)
        interpreter = _interpreter_of(served)
        if (interpreter.described if interpreter else served).seen != target.manifest:
            return False
        if (_threads(candidate), candidate.runs) != target.parallel:
            return False
        target.remeasured(
            self._cost(declared, candidate), self._placement(release, declared, candidate, target.placement.residency)
        )
        return True

    def _placement(
        self,
        release: Release,
        declared: ModelManifest,
        candidate: Candidate,
        residency: str,
        candidates: Sequence[Candidate] = (),
    ) -> Placement:
        manifest, variant = settled(declared, candidate.verdict), candidate.variant
        measured = candidate.verdict.measured if candidate.verdict else None
        return Placement(
            variant=variant.name,
            runtime=variant.runtime,
            precision=variant.precision,
            accelerator=candidate.accelerator or "",
            reason=argument(candidates or self.loader.candidates(declared), candidate, self.loader.objective),
            max_batch_rows=manifest.rows_limit(self.context.settings.max_batch_rows) if manifest.batched else 0,
            signed=release.signed,
            level=candidate.level,
            joining=self._not_joined(declared, candidate),
            remarks=candidate.verdict.remarks if candidate.verdict else (),
            provider=candidate.budget.provider,
            runs=candidate.runs,
            cpu_us=measured.cpu_us if measured else 0.0,
            isolated=candidate.budget.isolated,
            residency=residency,
        )

    def _not_joined(self, declared: ModelManifest, candidate: Candidate) -> str:
        """Return why requests are not joined, or "" if they may be."""
        if not self.context.settings.queue_of(declared.name).join:
            return "[[limits.queue]] switches it off"
        return joining_obstacle(declared, candidate.verdict)

    def _cost(self, declared: ModelManifest, candidate: Candidate) -> Cost:
        """Return the cost of a candidate.

        A model whose requests wait to be joined runs on its worker: the event loop's timers are too coarse for that. So
        does one in a worker process, for which the event loop must not wait.
        """
        settings, manifest = self.context.settings, settled(declared, candidate.verdict)
        on_loop = not (settings.queue_of(manifest.name).delay_us or candidate.budget.isolated)
        joining = candidate.verdict.joining if candidate.verdict else None
        return estimate_cost(
            candidate.verdict,
            candidate.accelerator or CPU,
            joins=not self._not_joined(declared, candidate),
            opened=not of_one_shape(manifest),
            inline_limit_us=settings.inline_limit_us if on_loop else 0,
            batch_rows=min(manifest.rows_limit(settings.batch_rows), joining.rows if joining else 1),
            batch_gain=settings.batch_gain,
        )


def worker_settings(loader: Loader, settings: EngineSettings, pauses: Pauses) -> WorkerSettings:
    """Return the settings of the workers on the loader's device."""
    budget, cores = loader.site.profile.budget, loader.site.inventory.cpu.cores or os.cpu_count() or 1
    return WorkerSettings(Limiter(budget.threads or cores, settings.thread_wait_s), pauses, budget.worker_nice)


def _threads(candidate: Candidate) -> int:
    """Return the processor threads that a run takes; 0 if an accelerator runs it."""
    return candidate.threads if candidate.accelerator in {None, CPU} else 0


def _interpreter_of(manifest: ModelManifest) -> Interpreter | None:
    """Return the interpreter of a model, or None if it has no task: then no task is imported."""
    if manifest.task_options is None:
        return None
    from gateway.serving.tasks.interpreter import interpreter_of

    return interpreter_of(manifest)
