"""Check that all of it happened: a decision on what was seen, so that the demo cannot end well by accident."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cameras import Played
from rollout import Rollout

LEAST_RIGHT = 0.97
"""Two points under the model's held-out accuracy (0.994)."""
GOOD, BAD = "2", "3"


@dataclass(frozen=True, slots=True)
class Ending:
    """Results of the demo: three rollouts, and what was seen at their end.

    By device: the versions that serve, and what came of its camera's calls. `doctor`: what a device that rolled back
    said when it was asked.
    """

    rollouts: tuple[Rollout, Rollout, Rollout]
    serving: Mapping[str, Sequence[str]]
    played: Mapping[str, Played]
    doctor: Mapping[str, Any]


def problems(ending: Ending) -> list[str]:
    """Return what did not happen; none where all did."""
    return [*_good(ending), *_bad(ending), *_cameras(ending)]


def _good(ending: Ending) -> Iterator[str]:
    for rollout in ending.rollouts[:2]:
        if rollout.state != "finished":
            yield f"a good release ended {rollout.state}"
        if missing := set(ending.serving) - set(rollout.devices("committed")):
            yield f"a good release was never committed by {', '.join(sorted(missing))}"
    waves = [fact["event"]["wave"] for fact in ending.rollouts[1].facts if fact["event"].get("decision") == "open_wave"]
    if waves != [0, 1]:
        yield f"version {GOOD} came in waves {waves}, not by a canary (0) and then a wave"


def _bad(ending: Ending) -> Iterator[str]:
    rollout = ending.rollouts[2]
    if rollout.state != "aborted":
        yield f"the bad release ended {rollout.state}"
    if not rollout.devices("rolled_back"):
        yield "no device rolled the bad release back"
    if not any((one["version"], one["state"]) == (BAD, "rolled_back") for one in ending.doctor["agent"]["history"]):
        yield "the device that was asked does not remember the bad release"
    if rollout.devices("committed"):
        yield f"the bad release was committed by {', '.join(rollout.devices('committed'))}"
    if len(rollout.offered()) == len(ending.serving):
        yield "the bad release reached every device before it was halted"
    for device, versions in ending.serving.items():
        if list(versions) != [GOOD]:
            yield f"{device} serves {', '.join(versions) or 'nothing'} at the end, not version {GOOD}"


def _cameras(ending: Ending) -> Iterator[str]:
    for device, played in ending.played.items():
        if played.failures:
            yield f"{len(played.failures)} of {played.calls} calls at {device} failed: {played.failures[0]}"
        if played.right < LEAST_RIGHT * played.calls or not played.calls:
            yield f"the camera at {device} had {played.right} right answers of {played.calls}"
        if not {"1", GOOD} <= set(played.versions):
            yield f"the camera at {device} saw version {', '.join(sorted(played.versions))} only"
