"""The order in which connections are served: by what was done for them and for their callers so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gateway.common.wire.connection_schedule import CREDIT_NS, KEPT_CALLERS, CallerQueue, ConnectionSchedule

SLICE_NS = 500_000


@dataclass(eq=False)
class Connection:
    """A connection that has `slices` to be served, each of `slice_ns`."""

    caller: CallerQueue
    served: list[Connection]
    slices: int = 1_000_000
    slice_ns: int = SLICE_NS
    work_ns: int = 0
    queued: bool = False

    @property
    def behind(self) -> bool:
        return self.slices > 0

    def serve(self) -> int:
        self.slices -= 1
        self.served.append(self)
        return self.slice_ns


class Scene:
    """Turns, and who had them."""

    def __init__(self) -> None:
        self.turns, self.served = ConnectionSchedule(), list[Connection]()

    def connect(self, key: str, **more: int) -> Connection:
        connection = Connection(self.turns.caller(key), self.served, **more)
        self.turns.add(connection)
        return connection

    def serve(self, count: int) -> list[Connection]:
        self.served.clear()
        for _ in range(count):
            self.turns.serve()
        return list(self.served)


def test_connections_of_one_caller_have_one_share() -> None:
    scene = Scene()
    many = [scene.connect("many") for _ in range(100)]
    one = scene.connect("one")
    counts = Counter(map(id, scene.serve(400)))
    assert abs(counts[id(one)] - 200) <= 4
    assert {counts[id(each)] for each in many} == {2} or max(counts[id(each)] for each in many) <= 3


def test_shares_are_of_work_and_not_of_turns() -> None:
    scene = Scene()
    dear, cheap = scene.connect("dear"), scene.connect("cheap", slice_ns=SLICE_NS // 10)
    counts = Counter(map(id, scene.serve(1100)))
    assert 8 <= counts[id(cheap)] / counts[id(dear)] <= 12


def test_a_caller_that_has_little_to_do_goes_before_those_that_have_much() -> None:
    scene = Scene()
    for _ in range(128):
        scene.connect("flood")
    scene.serve(1000)
    for _ in range(50):
        honest = scene.connect("honest", slices=1, slice_ns=50_000)
        assert honest in scene.serve(1)
        scene.serve(5)


def test_a_connection_that_has_little_to_do_goes_before_others_of_its_caller() -> None:
    scene = Scene()
    for _ in range(128):
        scene.connect("loopback")
    scene.serve(1000)
    honest = scene.connect("loopback", slices=1, slice_ns=50_000)
    assert honest in scene.serve(1)


def test_what_was_not_used_is_not_saved_up() -> None:
    scene = Scene()
    scene.connect("flood")
    scene.serve(10_000)
    late = scene.connect("late")
    first = scene.serve(100)
    head = next(place for place, each in enumerate(first) if each is not late)
    assert head <= CREDIT_NS // SLICE_NS + 1
    assert 45 <= first.count(late) <= 55


def test_a_caller_alone_is_served_without_a_break() -> None:
    scene = Scene()
    only = scene.connect("only")
    assert scene.serve(1000) == [only] * 1000
    assert scene.turns.waiting


def test_a_connection_waits_once() -> None:
    scene = Scene()
    connection = scene.connect("a", slices=1)
    scene.turns.add(connection)
    scene.serve(1)
    assert not scene.turns.waiting


def test_callers_that_left_are_forgotten_where_there_are_many() -> None:
    turns = ConnectionSchedule()
    kept = turns.caller("kept")
    for number in range(2 * KEPT_CALLERS):
        turns.caller(f"address:{number}").connections -= 1
    assert len(turns._callers) <= KEPT_CALLERS
    assert turns.caller("kept") is kept
