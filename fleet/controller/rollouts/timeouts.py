"""Waiting for devices: only time in which a device could have reported and worked counts against it.

Each function returns a member with adjusted times. The caller records the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from fleet.controller.rollouts.decisions import MarkSilent
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import BEGINNING, IN_FLIGHT, DeviceState, Member, RolloutState


def silences(spec: Spec, state: RolloutState, now: datetime) -> Iterator[MarkSilent]:
    """Yield a `MarkSilent` for each device that has been silent, held or unfinished for too long.

    A hold that the device reports stops its deadline, for at most the length of the deadline. A device that reports a
    hold for ever counts as failed, as one that never finishes.
    """
    silence, deadline = timedelta(seconds=spec.silence_s), timedelta(seconds=spec.deadline_s)
    for member in state.members.values():
        if member.state not in IN_FLIGHT or not member.present:
            continue
        unheard = now - member.heard_at
        if unheard >= silence:
            yield MarkSilent(member.device, f"nothing was heard of it for {spec.silence_s:g} s")
        elif member.held and member.held_for + unheard >= deadline:
            yield MarkSilent(member.device, f"its policy held it for {spec.deadline_s:g} s")
        elif not member.held and now - member.offered_at >= deadline:
            yield MarkSilent(member.device, f"it was not done {spec.deadline_s:g} s after the offer")


def reported(member: Member, at: datetime, state: DeviceState, *, held: bool = False) -> Member:
    """Return `member` after a report that it continues in `state`, or that its policy holds it.

    Only the time between two reports counts as held, if the first of them reported a hold. The end of the hold that the
    device announces is not trusted.
    """
    if not member.held:
        return replace(member, heard_at=at, state=state, held=held)
    passed = max(at - member.heard_at, timedelta())
    offered_at, held_for = member.offered_at + passed, member.held_for + passed
    return replace(member, heard_at=at, state=state, held=held, offered_at=offered_at, held_for=held_for)


def set_back(member: Member, at: datetime) -> Member:
    """Limit the times of `member` to `at`, after the clock was set back: no recorded time is later than now."""
    return _moved(_held_less(member, member.heard_at - at), lambda moment: min(moment, at))


def given_back(member: Member, since: datetime, at: datetime) -> Member:
    """Exclude the time from `since` to `at`, in which no leader evaluated the rollout.

    Events within that time count as if they happened at its end.
    """
    gap = at - since
    contact = min(member.heard_at, at) - since
    return _moved(_held_less(member, contact), lambda moment: moment + gap if moment <= since else max(moment, at))


def _held_less(member: Member, mistaken: timedelta) -> Member:
    """Subtract `mistaken` from the time that the member was held."""
    return replace(member, held_for=max(member.held_for - max(mistaken, timedelta()), timedelta()))


def _moved(member: Member, move: Callable[[datetime], datetime]) -> Member:
    """Apply `move` to all times of the member that are set."""
    names = ("offered_at", "heard_at", "verdict_at")
    times = {name: moment for name in names if (moment := getattr(member, name)) != BEGINNING}
    return replace(member, **{name: move(moment) for name, moment in times.items()})  # type: ignore[arg-type]
