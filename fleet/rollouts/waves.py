"""Which devices are in which wave. Nothing is planned ahead: a wave has places, and who waits takes them by rank.

A device that was taken keeps its place. Devices that join make a percentage larger, those that leave make it smaller;
so the share holds exactly at any time, whoever comes and goes, and each device has its turn once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from fleet.rollouts.spec import Wave
from fleet.rollouts.state import Member


def share(devices: int, percent: float) -> int:
    """`percent` of `devices`, as the number is written (0.1 is a tenth of a percent), rounded up: a started device is
    a whole one, and no wave of some devices is empty."""
    return math.ceil(devices * Fraction(str(percent)) / 100)


def places(wave: Wave, devices: int, taken: int, taken_here: int) -> int:
    """How many more devices a wave takes, of `devices` in all; `taken`: by all waves so far, `taken_here`: by it."""
    if wave.count is not None:
        return max(0, wave.count - taken_here)
    return max(0, share(devices, wave.percent or 0.0) - taken)


def next_in_line(waiting: Iterable[Member], number: int) -> Sequence[Member]:
    """The first `number` by rank."""
    return heapq.nsmallest(number, waiting, key=_place)


def in_order(members: Iterable[Member]) -> Sequence[Member]:
    """All by rank."""
    return sorted(members, key=_place)


def _place(member: Member) -> tuple[int, str]:
    return member.rank, member.device
