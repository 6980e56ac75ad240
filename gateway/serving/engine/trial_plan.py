"""Plan of the trials in the background: variants without a verdict, then measurements to repeat. No clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release
from gateway.common.domain.retry import SECOND_NS, longest_pause_s
from gateway.common.domain.selection import Candidate, untried
from gateway.serving.engine.loader import Loader
from gateway.serving.engine.registry import Registry

REPEATS = 6
"""Most repetitions of a disturbed measurement until the next start."""
REPEAT_S, LONGEST_REPEAT_S = 60.0, 3600.0
"""Wait after the first repetition, doubled after each, and the longest."""


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """Trial of a served release's candidate, not before `due_ns` (monotonic)."""

    release: Release
    manifest: ModelManifest
    candidate: Candidate
    due_ns: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """Return release digest, variant, accelerator and provider."""
        return self.release.digest, *self.candidate.place


class TrialPlan:
    """Trials of all served versions. Nothing is tried twice, even if its verdict is not kept, except repetitions."""

    def __init__(self, registry: Registry, loader: Loader) -> None:
        self._registry, self._loader = registry, loader
        self._tried: dict[tuple[str, ...], tuple[int, int]] = {}

    def next(self) -> PlannedTrial | None:
        """Return the next trial, or None if nothing is left."""
        serving = [record.serving for record in self._registry.records() if record.serving]
        for held in serving:
            for candidate in self._untried(self._loader.candidates(held.target.declared)):
                trial = PlannedTrial(held.release, held.target.declared, candidate)
                if trial.key not in self._tried:
                    return trial
        repeats = [
            replace(trial, due_ns=due_ns)
            for held in serving
            for candidate in self._loader.candidates(held.target.declared)
            if candidate.passed and candidate.is_provisional and not self._loader.exclusive.obstacle(candidate)
            for trial in [PlannedTrial(held.release, held.target.declared, candidate)]
            for count, due_ns in [self._tried.get(trial.key, (0, 0))]
            if count < REPEATS
        ]
        return min(repeats, key=lambda trial: trial.due_ns, default=None)

    def begin(self, trial: PlannedTrial, now_ns: int) -> None:
        """Remember a trial that begins."""
        count = self._tried.get(trial.key, (0, 0))[0] + (trial.candidate.verdict is not None)
        pause_s = longest_pause_s(count, REPEAT_S, LONGEST_REPEAT_S) if count else 0.0
        self._tried[trial.key] = count, now_ns + int(pause_s * SECOND_NS)

    def is_complete(self, release: Release, manifest: ModelManifest, candidates: Sequence[Candidate]) -> bool:
        """Return True if every candidate of a release was tried."""
        return all(PlannedTrial(release, manifest, each).key in self._tried for each in self._untried(candidates))

    def _untried(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates whose trial is due; on an accelerator that is held, none is."""
        return [each for each in untried(candidates) if not self._loader.exclusive.obstacle(each)]
