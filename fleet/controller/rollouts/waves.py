"""Membership of waves. A wave has a number of places, and waiting devices take them by rank; nothing is planned ahead.

A device that was taken keeps its place. A percentage covers more devices as devices join, and fewer as they leave. So
the share holds exactly at any time, and each device is taken once.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from fleet.controller.rollouts.spec import Wave
from fleet.controller.rollouts.state import Member


def canaries(waiting: Iterable[Member], taken: Iterable[Member], per_accelerator: int) -> Sequence[Member]:
    """Return the next devices of `waiting`, by rank: per stratum as many as `taken` leaves of `per_accelerator`.

    The rank is a hash of device and rollout: the same result each time, other devices in each rollout.
    """
    places = Counter(member.stratum for member in taken)
    chosen = []
    for member in in_order(waiting):
        if places[member.stratum] < per_accelerator:
            places[member.stratum] += 1
            chosen.append(member)
    return chosen


def share(devices: int, percent: float) -> int:
    """Return `percent` of `devices`, rounded up, so that no wave of some devices is empty.

    The percentage is read as a decimal number: 0.1 is exactly a tenth of a percent.
    """
    return math.ceil(devices * Fraction(str(percent)) / 100)


def places(wave: Wave, devices: int, taken: int, taken_here: int) -> int:
    """Return how many more devices a wave takes.

    `devices`: all in the rollout; `taken`: by all waves so far; `taken_here`: by this wave.
    """
    if wave.count is not None:
        return max(0, wave.count - taken_here)
    return max(0, share(devices, wave.percent or 0.0) - taken)


def next_in_line(waiting: Iterable[Member], number: int) -> Sequence[Member]:
    """Return the first `number` members by rank."""
    return heapq.nsmallest(number, waiting, key=_place)


def in_order(members: Iterable[Member]) -> Sequence[Member]:
    """Return all members by rank."""
    return sorted(members, key=_place)


def _place(member: Member) -> tuple[int, str]:
    return member.rank, member.device
