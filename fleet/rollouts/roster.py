"""The devices of a rollout, of which a changed copy costs what was changed: reports come one by one, and each is a new
state. A plain dictionary would be copied for each (`python -m tests.performance.fleet_decisions`: 1.7 ms at 100,000
devices, 0.02 ms so).
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from zlib import crc32

from fleet.rollouts.state import Member

BUCKETS = 512
"""A change copies one of them. By a hash that is the same in every process: their order is that of decisions."""


class Roster(Mapping[str, Member]):
    """Members by device. Never changes; `Changes` makes another one."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, buckets: tuple[Mapping[str, Member], ...] = ({},) * BUCKETS) -> None:
        self._buckets, self._count = buckets, sum(map(len, buckets))

    @property
    def buckets(self) -> tuple[Mapping[str, Member], ...]:
        """Not to be changed."""
        return self._buckets

    def __getitem__(self, device: str) -> Member:
        return self._buckets[_place(device)][device]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._count

    def values(self) -> ValuesView[Member]:
        """In the same order as the devices."""
        return _Members(self)

    def items(self) -> ItemsView[str, Member]:
        """Likewise."""
        return _Entries(self)


class _Members(ValuesView[Member]):
    """Without a look-up for each."""

    _mapping: Roster

    def __iter__(self) -> Iterator[Member]:
        return chain.from_iterable(bucket.values() for bucket in self._mapping.buckets)


class _Entries(ItemsView[str, Member]):
    """Likewise."""

    _mapping: Roster

    def __iter__(self) -> Iterator[tuple[str, Member]]:
        return chain.from_iterable(bucket.items() for bucket in self._mapping.buckets)


class Changes:
    """A roster that is being written. What it began with stays as it is."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        roster = members if isinstance(members, Roster) else Roster()
        self._buckets: list[Mapping[str, Member]] = list(roster.buckets)
        self._own: dict[int, dict[str, Member]] = {}
        if roster is not members:
            for member in members.values():
                self.put(member)

    def get(self, device: str) -> Member | None:
        """None: it is not in the rollout."""
        return self._buckets[_place(device)].get(device)

    def put(self, member: Member) -> None:
        """In place of what was known of its device."""
        place = _place(member.device)
        if place not in self._own:
            self._buckets[place] = self._own[place] = dict(self._buckets[place])
        self._own[place][member.device] = member

    def members(self) -> list[Member]:
        """All of them."""
        return [member for bucket in self._buckets for member in bucket.values()]

    def roster(self) -> Roster:
        """As it is now; afterwards nothing is to be written any more."""
        return Roster(tuple(self._buckets))


def _place(device: str) -> int:
    return crc32(device.encode(errors="replace")) % BUCKETS
