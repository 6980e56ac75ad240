"""Persistent map of a rollout's devices: a changed copy costs what was changed, not the size of the fleet.

Reports arrive one by one, and each makes a new state. Copying a plain dictionary takes 1.7 ms at 100,000 devices, a
copy of this map 0.02 ms (`python -m tests.performance.fleet_decisions`).
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from zlib import crc32

from fleet.controller.rollouts.state import Member

BUCKETS = 512
"""Number of parts; a change copies one. The hash is the same in every process: it sets the order of decisions."""


class Roster(Mapping[str, Member]):
    """Members by device. Immutable; `Changes` makes a changed copy."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, buckets: tuple[Mapping[str, Member], ...] = ({},) * BUCKETS) -> None:
        self._buckets, self._count = buckets, sum(map(len, buckets))

    @property
    def buckets(self) -> tuple[Mapping[str, Member], ...]:
        """The parts of the map. Do not change them."""
        return self._buckets

    def __getitem__(self, device: str) -> Member:
        return self._buckets[_place(device)][device]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._count

    def values(self) -> ValuesView[Member]:
        """Return the members in the same order as the devices."""
        return _Members(self)

    def items(self) -> ItemsView[str, Member]:
        """Return devices and members, in the same order as the devices."""
        return _Entries(self)


class _Members(ValuesView[Member]):
    """View of the members that iterates without a look-up for each."""

    _mapping: Roster

    def __iter__(self) -> Iterator[Member]:
        return chain.from_iterable(bucket.values() for bucket in self._mapping.buckets)


class _Entries(ItemsView[str, Member]):
    """View of devices and members that iterates without a look-up for each."""

    _mapping: Roster

    def __iter__(self) -> Iterator[tuple[str, Member]]:
        return chain.from_iterable(bucket.items() for bucket in self._mapping.buckets)


class Changes:
    """Mutable copy of a roster. The original does not change."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        roster = members if isinstance(members, Roster) else Roster()
        self._buckets: list[Mapping[str, Member]] = list(roster.buckets)
        self._own: dict[int, dict[str, Member]] = {}
        if roster is not members:
            for member in members.values():
                self.put(member)

    def get(self, device: str) -> Member | None:
        """Return the member of a device, or None if it is not in the rollout."""
        return self._buckets[_place(device)].get(device)

    def put(self, member: Member) -> None:
        """Add a member, or replace the one of the same device."""
        place = _place(member.device)
        if place not in self._own:
            self._buckets[place] = self._own[place] = dict(self._buckets[place])
        self._own[place][member.device] = member

    def members(self) -> list[Member]:
        """Return all members."""
        return [member for bucket in self._buckets for member in bucket.values()]

    def roster(self) -> Roster:
        """Return the roster in its present state. Nothing may be changed afterwards."""
        return Roster(tuple(self._buckets))


def _place(device: str) -> int:
    return crc32(device.encode(errors="replace")) % BUCKETS
