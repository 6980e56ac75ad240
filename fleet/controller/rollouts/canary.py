"""The canary wave: a few devices of each set of accelerators, so that every kind of hardware is tried early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fleet.controller.rollouts.state import Member
from fleet.controller.rollouts.waves import in_order


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
