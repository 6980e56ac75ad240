"""Places of connections: who gets one, and who gives way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.serving.domain.shares import RefusalReason
from gateway.serving.frontends.connections import FRUITLESS_S, GIVE_WAY_BURST, GIVE_WAY_S, ConnectionPlaces
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.settings import ShareSettings

NORTH, SOUTH, EAST = (Peer(address=f"198.51.{number}.1") for number in (1, 2, 3))
LOCAL = Peer(uid=1000)


@dataclass(eq=False)
class Held:
    """A connection; `gone`: it gave way."""

    idle: bool = True
    gone: bool = False
    half_open: bool = False

    def give_way(self) -> None:
        self.gone = True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 2 * FRUITLESS_S
        return self.now_s


def places(total: int = 10, caller_percent: int = 40, local_percent: int = 20) -> ConnectionPlaces[Held]:
    pools = Pools(ShareSettings(caller_percent=caller_percent, local_percent=local_percent))
    return ConnectionPlaces(pools.make("connections", "max_connections", total), Clock())


def entered(connections: ConnectionPlaces[Held], peer: Peer, count: int, *, idle: bool = True) -> list[Held]:
    held = [Held(idle) for _ in range(count)]
    assert all(connections.enter(each, peer) for each in held)
    return held


def test_a_caller_has_its_share_and_its_oldest_idle_one_gives_way() -> None:
    connections = places()
    held = entered(connections, NORTH, 4)
    held[0].idle = False
    entered(connections, NORTH, 1)
    assert [each.gone for each in held] == [False, True, False, False]
    assert len(connections) == 4


def test_a_caller_whose_connections_are_busy_gets_no_more_and_the_others_do() -> None:
    connections = places()
    entered(connections, NORTH, 4, idle=False)
    assert not connections.enter(Held(), NORTH)
    entered(connections, SOUTH, 1)


def test_beyond_the_total_the_caller_with_most_gives_way() -> None:
    connections = places(local_percent=10)
    most, fewer = entered(connections, NORTH, 4), entered(connections, SOUTH, 3)
    entered(connections, EAST, 1, idle=False)
    entered(connections, EAST, 1)  # more than is left to those on a network
    assert [each.gone for each in most] == [True, False, False, False]
    assert not any(each.gone for each in fewer)


def test_one_on_this_device_never_gives_way_to_one_on_a_network() -> None:
    connections = places(local_percent=0)
    local = entered(connections, LOCAL, 4)
    entered(connections, NORTH, 3, idle=False)
    entered(connections, SOUTH, 3, idle=False)
    assert not connections.enter(Held(), EAST)
    assert not any(each.gone for each in local)


def test_the_reserve_is_for_callers_on_this_device() -> None:
    connections = places(local_percent=10)
    entered(connections, NORTH, 4, idle=False)
    entered(connections, SOUTH, 4, idle=False)
    assert not connections.enter(Held(), EAST)
    entered(connections, LOCAL, 2, idle=False)


def test_a_place_that_was_given_away_is_not_given_back() -> None:
    connections = places(total=1, caller_percent=100, local_percent=0)
    (first,) = entered(connections, NORTH, 1)
    (second,) = entered(connections, NORTH, 1)
    connections.leave(first)
    assert len(connections) == 1
    connections.leave(second)
    connections.leave(second)
    assert len(connections) == 0
    entered(connections, SOUTH, 1)


def test_the_oldest_half_open_one_gives_way_if_no_one_is_idle() -> None:
    connections = places()
    held = entered(connections, NORTH, 4, idle=False)
    held[1].half_open = held[2].half_open = True
    entered(connections, NORTH, 1)
    assert [each.gone for each in held] == [False, True, False, False]


@pytest.mark.parametrize("for_calls", [False, True])
def test_half_open_ones_of_the_caller_with_most_give_way_before_an_own_one(for_calls: bool) -> None:
    """A caller that a busy machine delays is half-open for a moment, and must not lose that to another of its own."""
    connections = places(caller_percent=80, local_percent=0)
    most, own = entered(connections, NORTH, 8, idle=False), entered(connections, SOUTH, 2, idle=False)
    for each in (*most, *own):
        each.half_open = True
    for refused, count in ((SOUTH, [1, 0]), (NORTH, [2, 0])):
        assert connections.make_room(refused.share_key, False, RefusalReason.TOTAL, half_open=for_calls)
        assert [sum(each.gone for each in held) for held in (most, own)] == count


def test_half_open_ones_of_many_addresses_give_way_to_another_address_of_their_network() -> None:
    pools = Pools(ShareSettings(caller_percent=25, local_percent=10))
    connections: ConnectionPlaces[Held] = ConnectionPlaces(pools.make("connections", "max_connections", 40), Clock())
    other = entered(connections, SOUTH, 4)
    held = [
        one for number in range(2, 6) for one in entered(connections, Peer(address=f"127.0.0.{number}"), 5, idle=False)
    ]
    assert not connections.enter(Held(), Peer(address="127.0.0.1"))
    for each in held:
        each.half_open = True
    entered(connections, Peer(address="127.0.0.1"), 8, idle=False)
    assert sum(each.gone for each in held) == 8
    assert not any(each.gone for each in other)
    entered(connections, LOCAL, 10, idle=False)


def test_a_certificate_moves_a_connection_to_its_own_share() -> None:
    connections = places()
    held = entered(connections, NORTH, 4, idle=False)
    assert connections.identify(held[0], Peer("camera", address=NORTH.address))
    entered(connections, NORTH, 1)


def test_a_caller_that_connects_again_and_again_replaces_few_and_others_replace_its_own() -> None:
    pools, now_s = Pools(ShareSettings(caller_percent=80, local_percent=0)), [1.0]
    connections: ConnectionPlaces[Held] = ConnectionPlaces(
        pools.make("connections", "max_connections", 5), lambda: now_s[0]
    )
    held = entered(connections, NORTH, 4)
    while connections.enter(again := Held(), NORTH):
        held.append(again)
    replaced = sum(each.gone for each in held)
    assert 0 <= replaced - GIVE_WAY_BURST <= 1
    entered(connections, SOUTH, 1, idle=False)
    entered(connections, EAST, 1)
    assert sum(each.gone for each in held) == replaced + 1
    assert not connections.enter(Held(), NORTH), "nor by taking what was its own from the total"
    now_s[0] += GIVE_WAY_S
    entered(connections, NORTH, 1)
    assert sum(each.gone for each in held) == replaced + 2


def test_a_caller_without_an_idle_connection_is_not_searched_again_at_once() -> None:
    class Counted(Held):
        looked = 0

        @property  # type: ignore[override]
        def idle(self) -> bool:
            Counted.looked += 1
            return False

        @idle.setter
        def idle(self, _: bool) -> None: ...

    pools = Pools(ShareSettings(caller_percent=100, local_percent=0))
    connections: ConnectionPlaces[Held] = ConnectionPlaces(pools.make("connections", "max_connections", 1), lambda: 1.0)
    assert connections.enter(Counted(), NORTH)
    assert not any(connections.enter(Held(), NORTH) for _ in range(100))
    assert Counted.looked == 1
