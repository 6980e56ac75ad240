"""How long a device is waited for: by the time in which it could have been heard, and could have worked.

Each function answers a member whose times are moved; who asks records why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from fleet.rollouts.decisions import MarkSilent
from fleet.rollouts.spec import Spec
from fleet.rollouts.state import BEGINNING, IN_FLIGHT, DeviceState, Member, State


def silences(spec: Spec, state: State, now: datetime) -> Iterator[MarkSilent]:
    """Who has been waited for long enough. A hold that the device tells of stops its deadline, for as long as that at
    most: who says for ever that it is held is no better than who is never done."""
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


def heard(member: Member, at: datetime, state: DeviceState, *, held: bool = False) -> Member:
    """It said that it goes on in `state`, or that its policy holds it. Only what passed between two words of it, of
    which the first told of a hold, counts as held: until when it says that the hold lasts is not believed."""
    if not member.held:
        return replace(member, heard_at=at, state=state, held=held)
    passed = max(at - member.heard_at, timedelta())
    offered_at, held_for = member.offered_at + passed, member.held_for + passed
    return replace(member, heard_at=at, state=state, held=held, offered_at=offered_at, held_for=held_for)


def set_back(member: Member, at: datetime) -> Member:
    """What was recorded before cannot have happened later than now: nobody waits for a time that was a mistake."""
    return _moved(_held_less(member, member.heard_at - at), lambda moment: min(moment, at))


def given_back(member: Member, since: datetime, at: datetime) -> Member:
    """Nobody looked from `since` to `at`: that time counts for nothing. What happened within it begins at its end."""
    gap = at - since
    told_within = min(member.heard_at, at) - since
    return _moved(_held_less(member, told_within), lambda moment: moment + gap if moment <= since else max(moment, at))


def _held_less(member: Member, mistaken: timedelta) -> Member:
    """Of a hold, without what was counted by a clock or in a time that does not count."""
    return replace(member, held_for=max(member.held_for - max(mistaken, timedelta()), timedelta()))


def _moved(member: Member, move: Callable[[datetime], datetime]) -> Member:
    """All its times, but those of what never happened."""
    names = ("offered_at", "heard_at", "verdict_at")
    times = {name: moment for name in names if (moment := getattr(member, name)) != BEGINNING}
    return replace(member, **{name: move(moment) for name, moment in times.items()})  # type: ignore[arg-type]
