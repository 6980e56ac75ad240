"""Update of one slot: recorded steps, each safe to repeat. Power may fail between any two.

The old version is never unloaded before COMMIT.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Step(enum.Enum):
    """Step under way, recorded before it is done. DONE and ROLLED_BACK are ends."""

    FETCH = "fetch"
    LOAD = "load"
    SHIFT = "shift"
    PROBATION = "probation"
    TAKE_OVER = "take-over"
    COMMIT = "commit"
    RETIRE = "retire"
    DONE = "done"
    ROLL_BACK = "roll-back"
    ROLLED_BACK = "rolled-back"


_NEXT: Mapping[Step, Step] = {
    Step.FETCH: Step.LOAD,
    Step.LOAD: Step.SHIFT,
    Step.SHIFT: Step.PROBATION,
    Step.PROBATION: Step.TAKE_OVER,
    Step.TAKE_OVER: Step.COMMIT,
    Step.COMMIT: Step.RETIRE,
    Step.RETIRE: Step.DONE,
    Step.ROLL_BACK: Step.ROLLED_BACK,
}
ENDS = frozenset({Step.DONE, Step.ROLLED_BACK})
REVOCABLE = frozenset({Step.FETCH, Step.LOAD, Step.SHIFT, Step.PROBATION, Step.TAKE_OVER})
"""Steps from which an update may still roll back. From COMMIT on it is always finished."""

REPORTED: Mapping[Step, str] = {
    Step.FETCH: "downloading",
    Step.LOAD: "downloading",
    Step.SHIFT: "probation",
    Step.PROBATION: "probation",
    Step.TAKE_OVER: "probation",
    Step.COMMIT: "probation",
    Step.RETIRE: "committed",
    Step.DONE: "committed",
    Step.ROLL_BACK: "rolled_back",
    Step.ROLLED_BACK: "rolled_back",
}
"""States that a device reports. `committed` is reported only after it is durable."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Release (digest) that was begun last in a slot, and the fleet's attempt."""

    release: str
    attempt: int

    def excludes(self, release: str, attempt: int) -> bool:
        """Return whether an assigned release is not begun: what failed is tried again only at a greater attempt."""
        return self.release == release and attempt <= self.attempt


def after(step: Step) -> Step:
    """Return the step that follows. Raise KeyError at an end."""
    return _NEXT[step]


SUPERSEDED = "something else is assigned now"
WITHDRAWN = "its owner withdrew the release"
"""Reasons why an update is given up."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of an update. `reason` is text; `evidence` holds the measurements."""

    step: Step
    reason: str
    evidence: Mapping[str, float | int | str]
