"""Record of one model version, and the table of its transitions. Pure: loaded objects are opaque values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gateway.domain.release import Release

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


@dataclass(frozen=True, slots=True)
class LoadedVersion(Generic[S]):
    """Loaded object (a servable), and the release that it was loaded from."""

    release: Release
    servable: S


@dataclass(frozen=True, slots=True)
class VersionRecord(Generic[S]):
    """State of one model version.

    `serving` answers requests; `staged` answers only what a route gives it. `loading`: a release is being loaded to
    serve. `refused`: why the newest release does not serve. `hangs`: runs that did not end since the last load by hand.
    """

    serving: LoadedVersion[S] | None = None
    staged: LoadedVersion[S] | None = None
    loading: bool = False
    refused: str = ""
    hangs: int = 0

    @property
    def holding(self) -> Holding:
        """Return the loaded parts."""
        if self.serving is not None:
            return Holding.SERVING if self.staged is None else Holding.BOTH
        return Holding.NOTHING if self.staged is None else Holding.STAGED

    @property
    def is_listed(self) -> bool:
        """Return True if the version belongs in an index: it serves, will serve, or is refused."""
        return self.serving is not None or self.loading or bool(self.refused)

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to remember of the version."""
        return self.staged is None and not self.hangs and not self.is_listed

    def serves(self, release: Release) -> bool:
        """Return True if exactly this release serves, by its digest."""
        return self.serving is not None and self.serving.release.digest == release.digest

    def stages(self, release: Release) -> bool:
        """Return True if exactly this release is staged, by its digest."""
        return self.staged is not None and self.staged.release.digest == release.digest


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
