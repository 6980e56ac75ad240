"""Steps from a release on disk to an open session: complete, plan, try in a child process, choose, open.

Functions of other packages are passed in as callables. This file decides the order and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from gateway.common.domain.errors import VariantError, lacks_memory
from gateway.common.domain.events import ProofContradicted, Publish, TrialFinished
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.release import Release, complete
from gateway.common.domain.selection import (
    Candidate,
    Site,
    choose,
    level_obstacle,
    plan,
    required_level,
    settled,
    untried,
    with_verdict,
)
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.verdict import SessionBudget, Signature, Verdict, remeasured, verdict_key
from gateway.serving.domain.ports import Session
from gateway.serving.engine.exclusive import ExclusiveUse
from gateway.serving.engine.failover import CandidateKey, Failover, spare
from gateway.serving.engine.priority import stepped_back
from gateway.serving.engine.threads import begin

Trial = Callable[[ModelManifest, Variant, Path, SessionBudget], Awaitable[Verdict]]
Inspect = Callable[[Variant, Path], Awaitable[Signature]]
OpenSession = Callable[[ModelManifest, Variant, Path, SessionBudget], Session]
Witness = Callable[[ModelManifest, Path, Verdict | None], Callable[[], Tensors | None] | None]
"""Function that returns an input that the model answered in its trial, or None if there is none."""
T = TypeVar("T")
Opening = Callable[[Release, Candidate, ModelManifest], Awaitable[T]]
"""Function that opens a proven candidate, or decides not to. Raises VariantError."""
TURN_S = 60.0
"""Longest turn of an opening on an exclusive accelerator. One that hangs goes on to hold it, and others are told so."""


class Verdicts(Protocol):
    """Storage of verdicts over restarts."""

    def verdict(self, key: str) -> Verdict | None: ...
    def keep_verdict(self, key: str, verdict: Verdict) -> None: ...
    def signature(self, digest: str) -> Signature | None: ...
    def keep_signature(self, digest: str, signature: Signature) -> None: ...


class NoRoomError(VariantError):
    """Lack of room for a variant, which passes: the variant has no defect, and others are no better."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that passed its gate, its candidate, and the release of both.

    `candidates`: all of the release, with the verdicts from which it was chosen (empty: not known).
    `made` gets the target that uses the session. `taken`: memory that it takes, for people ("": it is not counted).
    """

    release: Release
    manifest: ModelManifest
    candidate: Candidate
    session: Session
    witness: Callable[[], Tensors | None] | None = None
    candidates: tuple[Candidate, ...] = ()
    made: Callable[[Any], None] = lambda _target: None
    taken: str = ""

    @property
    def served(self) -> ModelManifest:
        """Return the manifest as callers see it: with rows only if they are declared or proven."""
        return settled(self.manifest, self.candidate.verdict)


@dataclass(frozen=True, slots=True)
class Loader:
    """Loader of releases on one device (`site`), by one `objective`."""

    site: Site
    objective: str
    trial: Trial
    inspect: Inspect
    open_session: OpenSession
    verdicts: Verdicts
    publish: Publish
    witness: Witness = lambda _manifest, _folder, _verdict: None
    require: str = ""
    exclusive: ExclusiveUse = field(default_factory=ExclusiveUse)
    failover: Failover = field(default_factory=Failover)

    async def manifest(self, release: Release) -> ModelManifest:
        """Return the release's manifest. A child process completes that of a bare model. Raises VariantError."""
        if release.manifest is not None:
            return release.manifest
        if release.bare is None:
            raise VariantError(release.problem)
        signature = self.verdicts.signature(release.digest)
        if signature is None:
            signature = await self.inspect(release.bare, release.folder)
            self.verdicts.keep_signature(release.digest, signature)
        return complete(release, release.bare, signature)

    def plan(self, manifest: ModelManifest) -> tuple[Candidate, ...]:
        """Return every candidate on this device, without verdicts."""
        return plan(manifest, self.site)

    def candidates(self, manifest: ModelManifest) -> tuple[Candidate, ...]:
        """Return every candidate of the plan, with the verdicts kept for this device.

        Those that failed in service are not eligible while they are out, unless no other one is left.
        """
        known = self.known(manifest)
        usable = self.failover.usable(manifest.name, manifest.version, known)
        return usable if spare(usable) else known

    def known(self, manifest: ModelManifest) -> tuple[Candidate, ...]:
        """Return the candidates as `candidates` does, whatever failed in service."""
        return tuple(self._recalled(candidate, manifest) for candidate in self.plan(manifest))

    def can_replace(self, release: Release, manifest: ModelManifest, place: tuple[str, str, str]) -> bool:
        """Return True if another candidate than the one at `place` may serve."""
        usable = spare(self.failover.usable(manifest.name, manifest.version, self.known(manifest)))
        return any(each.place != place and not self.obstacle(release, manifest, each) for each in usable)

    async def prove(self, release: Release, manifest: ModelManifest, candidate: Candidate) -> Candidate:
        """Try one candidate in a child process, and keep the verdict; after an earlier one see `remeasured`."""
        return self.keep(manifest, candidate, await self.examine(release, manifest, candidate))

    def keep(self, manifest: ModelManifest, candidate: Candidate, verdict: Verdict) -> Candidate:
        """Keep the verdict of a trial. Return the candidate with it."""
        if (before := candidate.verdict) is not None:
            verdict = remeasured(before, verdict, time.time())
        if not verdict.transient:
            self.verdicts.keep_verdict(self._key(manifest, candidate), verdict)
        tried = with_verdict(candidate, verdict, manifest)
        self.publish(
            TrialFinished(
                manifest.name,
                manifest.version,
                candidate.variant.name,
                candidate.accelerator or "",
                tried.eligible,
                f"measured again: {tried.reason}" if before else tried.reason,
            )
        )
        if (joining := verdict.joining) and joining.basis == "proved" and joining.difference:
            named = manifest.name, manifest.version, candidate.variant.name
            self.publish(ProofContradicted(*named, joining.difference))
        return tried

    async def examine(self, release: Release, manifest: ModelManifest, candidate: Candidate) -> Verdict:
        """Try one candidate in a child process. Its verdict is not kept: a device may be gone."""
        async with self.exclusive.turn(candidate):
            if held := self.exclusive.obstacle(candidate):
                return Verdict(False, held, transient=True)
            return await self.trial(manifest, candidate.variant, release.folder, candidate.budget)

    async def open(self, release: Release, candidate: Candidate, manifest: ModelManifest) -> Opened:
        """Open a proven candidate in this process. Raises VariantError if the runtime refuses after all.

        On cancellation the session is closed as soon as it is open.
        """
        call = partial(self._open, release, candidate, manifest)
        nice = self.site.profile.budget.worker_nice if candidate.budget.accelerator == CPU else 0
        try:
            ending = None
            try:
                async with self.exclusive.turn(candidate):
                    opening = begin(f"open {manifest.name}/{manifest.version}", stepped_back, nice, call)
                    ending = asyncio.wrap_future(opening)
                    await asyncio.wait({ending}, timeout=TURN_S)
                return await ending
            except asyncio.CancelledError:
                if ending is not None:
                    ending.cancel()
                    opening.add_done_callback(_close_unwanted)
                raise
        except VariantError:
            raise
        except Exception as error:  # a thread's boundary: an error of an engine refuses this model only
            words = f"{type(error).__name__}: {error}"
            raise VariantError(words, transient=lacks_memory(words)) from error

    async def first(self, release: Release, opening: Opening[T]) -> T:
        """Open what serves first by `opening`: the choice among those that passed, else the first that passes a trial.

        Raises VariantError with every variant's reason if none passes: a transient one if a trial did not decide, and
        NoRoomError at once if one that passed has no room.
        """
        manifest = await self.manifest(release)
        candidates = self.candidates(manifest)
        reasons, transient = [f"{c.variant.name}: {c.reason}" for c in candidates if not c.eligible], False
        best = choose(candidates, self.objective)
        passed = [candidate for candidate in candidates if candidate.passed and candidate is not best]
        for candidate in [*([best] if best else []), *passed, *untried(candidates)]:
            tried = candidate if candidate.passed else await self.prove(release, manifest, candidate)
            obstacle = self.obstacle(release, manifest, tried) if tried.passed else tried.reason
            transient |= tried.verdict is not None and tried.verdict.transient
            if not obstacle:
                try:
                    found = await opening(release, tried, manifest)
                except NoRoomError as error:
                    raise NoRoomError(f"{tried.variant.name}: {error}", transient=True) from error
                except VariantError as error:
                    out = self.failover.obstacle(CandidateKey(manifest.name, manifest.version, tried.place))
                    obstacle, transient = str(error), transient or error.transient or bool(out)
                else:
                    if tried is candidate and isinstance(found, Opened):
                        return cast("T", replace(found, candidates=candidates))
                    return found
            reasons.append(f"{tried.variant.name}: {obstacle}")
        problem = f"no variant can serve on this device: {'; '.join(reasons) or 'the release has none'}"
        raise VariantError(problem, transient=transient)

    def obstacle(self, release: Release, manifest: ModelManifest, candidate: Candidate) -> str:
        """Return why a candidate that passed may not serve this release, or "" if it may."""
        required = required_level(manifest, signed=release.signed, configured=self.require)
        return level_obstacle(candidate.verdict, required) if candidate.verdict else ""

    def _open(self, release: Release, candidate: Candidate, manifest: ModelManifest) -> Opened:
        budget = replace(
            candidate.budget, threads=candidate.threads, runs=candidate.runs, ran_bytes=candidate.ran_bytes
        )
        witness = self.witness(manifest, release.folder, candidate.verdict)
        opening = partial(self.open_session, manifest, candidate.variant, release.folder, budget)
        session = self.exclusive.opened(candidate, f"{manifest.name}/{manifest.version}", opening)
        if candidate.runs > 1:
            with suppress(VariantError):  # too little memory for all of them: those that there are serve
                session.widen(candidate.runs)
        return Opened(release, manifest, candidate, session, witness)

    def _recalled(self, candidate: Candidate, manifest: ModelManifest) -> Candidate:
        if not candidate.eligible:
            return candidate
        return with_verdict(candidate, self.verdicts.verdict(self._key(manifest, candidate)), manifest)

    def _key(self, manifest: ModelManifest, candidate: Candidate) -> str:
        status = (self.site.runtimes or {}).get(candidate.variant.runtime)
        version = status.version_of(candidate.budget.provider) if status else ""
        cpu = self.site.inventory.cpu
        return verdict_key(manifest, candidate.variant, candidate.budget, version, candidate.device, cpu=cpu)


def _close_unwanted(opening: Future[Opened]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().session.close()
