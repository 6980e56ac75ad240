"""Record of one model version, and the tables of its transitions. Pure: loaded objects are opaque values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gateway.common.domain.release import Release
from gateway.common.domain.retry import SECOND_NS, longest_pause_s

S = TypeVar("S")


class Holding(enum.Enum):
    """Loaded parts of a version. BOTH: one release serves, another one is staged under the same version."""

    NOTHING = "nothing"
    STAGED = "staged"
    SERVING = "serving"
    BOTH = "both"


class VersionChange(enum.Enum):
    """Change of the loaded parts. TAKE_OVER: the staged release serves from now on."""

    STAGE = "stage"
    UNSTAGE = "unstage"
    SERVE = "serve"
    TAKE_OVER = "take over"
    WITHDRAW = "withdraw"


TRANSITIONS: Mapping[tuple[Holding, VersionChange], Holding] = {
    (Holding.NOTHING, VersionChange.STAGE): Holding.STAGED,
    (Holding.NOTHING, VersionChange.SERVE): Holding.SERVING,
    (Holding.STAGED, VersionChange.STAGE): Holding.STAGED,
    (Holding.STAGED, VersionChange.UNSTAGE): Holding.NOTHING,
    (Holding.STAGED, VersionChange.SERVE): Holding.BOTH,
    (Holding.STAGED, VersionChange.TAKE_OVER): Holding.SERVING,
    (Holding.SERVING, VersionChange.STAGE): Holding.BOTH,
    (Holding.SERVING, VersionChange.SERVE): Holding.SERVING,
    (Holding.SERVING, VersionChange.WITHDRAW): Holding.NOTHING,
    (Holding.BOTH, VersionChange.STAGE): Holding.BOTH,
    (Holding.BOTH, VersionChange.UNSTAGE): Holding.SERVING,
    (Holding.BOTH, VersionChange.SERVE): Holding.BOTH,
    (Holding.BOTH, VersionChange.TAKE_OVER): Holding.SERVING,
    (Holding.BOTH, VersionChange.WITHDRAW): Holding.STAGED,
}


class Attempt(enum.Enum):
    """Stage of the newest release of a version, which is to serve. NONE: it serves, or there is none.

    UNDECIDED: its last trial had no result, for lack of memory for example; it is tried again.
    """

    NONE = "none"
    WAITING = "it waits for its trial"
    RUNNING = "its trial runs"
    UNDECIDED = "undecided"
    REFUSED = "refused"


ATTEMPTS: Mapping[Attempt, frozenset[Attempt]] = {
    Attempt.NONE: frozenset({Attempt.NONE, Attempt.WAITING, Attempt.REFUSED}),
    Attempt.WAITING: frozenset({Attempt.NONE, Attempt.RUNNING, Attempt.UNDECIDED}),
    Attempt.RUNNING: frozenset({Attempt.NONE, Attempt.UNDECIDED, Attempt.REFUSED}),
    Attempt.UNDECIDED: frozenset({Attempt.NONE, Attempt.WAITING, Attempt.REFUSED}),
    Attempt.REFUSED: frozenset({Attempt.NONE, Attempt.WAITING, Attempt.REFUSED}),
}
"""Stages that may follow each stage. UNDECIDED follows WAITING if another change interrupts the next attempt."""
RETRY_S, RETRY_LIMIT_S = 3.0, 300.0
"""Pause before an undecided release is tried again: the first one, and the longest, to which it is doubled."""


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Next attempt of an undecided release, and the attempts in a row that did not decide."""

    release: Release
    failures: int
    due_ns: int


@dataclass(frozen=True, slots=True)
class LoadedVersion(Generic[S]):
    """Loaded object (a target of requests), and the release that it was loaded from."""

    release: Release
    target: S


@dataclass(frozen=True, slots=True)
class VersionRecord(Generic[S]):
    """State of one model version.

    `serving` answers requests; `staged` answers only what a route gives it. `attempt`, `reason`: stage of the newest
    release, and why it did not serve at the last attempt. `retry`: its next attempt, kept while that runs. `hangs`:
    runs that did not end since the last load by hand.
    """

    serving: LoadedVersion[S] | None = None
    staged: LoadedVersion[S] | None = None
    attempt: Attempt = Attempt.NONE
    reason: str = ""
    retry: NextAttempt | None = None
    hangs: int = 0

    @property
    def holding(self) -> Holding:
        """Return the loaded parts."""
        if self.serving is not None:
            return Holding.SERVING if self.staged is None else Holding.BOTH
        return Holding.NOTHING if self.staged is None else Holding.STAGED

    @property
    def is_listed(self) -> bool:
        """Return True if the version belongs in an index: it serves, may serve soon, or is refused."""
        return self.serving is not None or self.attempt is not Attempt.NONE

    @property
    def is_loading(self) -> bool:
        """Return True if its newest release is being loaded to serve, or waits for that."""
        return self.attempt in {Attempt.WAITING, Attempt.RUNNING}

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to remember of the version."""
        return self.staged is None and not self.hangs and not self.is_listed

    def obstacle(self, now_ns: int) -> str:
        """Return why the newest release does not serve now, for people; "" if it does."""
        if self.is_loading:
            return self.attempt.value
        if self.attempt is not Attempt.UNDECIDED or self.retry is None:
            return self.reason
        wait_s = max(0, self.retry.due_ns - now_ns) / SECOND_NS
        return f"undecided: {self.reason}; next attempt in {wait_s:.0f} s"

    def serves(self, release: Release) -> bool:
        """Return True if exactly this release serves, by its digest."""
        return self.serving is not None and self.serving.release.digest == release.digest

    def stages(self, release: Release) -> bool:
        """Return True if exactly this release is staged, by its digest."""
        return self.staged is not None and self.staged.release.digest == release.digest


def attempted(
    record: VersionRecord[S], attempt: Attempt, reason: str = "", retry: NextAttempt | None = None
) -> VersionRecord[S]:
    """Return the record with its newest release at the stage `attempt`.

    The reason of the last attempt stays until the next one decides. Raises ValueError for a stage that the table does
    not allow: a defect of the caller.
    """
    if attempt not in ATTEMPTS[record.attempt]:
        raise ValueError(f"an attempt that is {record.attempt.name} cannot become {attempt.name}")
    if attempt in {Attempt.WAITING, Attempt.RUNNING}:
        return replace(record, attempt=attempt)
    return replace(record, attempt=attempt, reason=reason, retry=retry)


def undecided(record: VersionRecord[S], release: Release, reason: str, now_ns: int) -> VersionRecord[S]:
    """Return the record after an attempt that did not decide, with the time of the next one."""
    failures = record.retry.failures + 1 if record.retry else 1
    pause_ns = int(longest_pause_s(failures, RETRY_S, RETRY_LIMIT_S) * SECOND_NS)
    return attempted(record, Attempt.UNDECIDED, reason, NextAttempt(release, failures, now_ns + pause_ns))


def changed(
    record: VersionRecord[S], change: VersionChange, held: LoadedVersion[S] | None = None
) -> tuple[VersionRecord[S], LoadedVersion[S] | None]:
    """Return the record after `change`, and the object that it no longer holds. `held`: the staged or serving object.

    Raises ValueError for a change that the table does not allow: a defect of the caller.
    """
    after = TRANSITIONS.get((record.holding, change))
    if after is None or (held is None) == (change in {VersionChange.STAGE, VersionChange.SERVE}):
        raise ValueError(f"a version that holds {record.holding.value} cannot {change.value}")
    if change is VersionChange.STAGE:
        return replace(record, staged=held), record.staged
    if change is VersionChange.UNSTAGE:
        return replace(record, staged=None), record.staged
    if change is VersionChange.WITHDRAW:
        return replace(record, serving=None), record.serving
    if change is VersionChange.TAKE_OVER:
        return replace(record, serving=record.staged, staged=None), record.serving
    return replace(record, serving=held), record.serving
