"""Bounds of the backlog, the outbox, and waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.frontends.mqtt.delivery.backlog import Backlog
from gateway.frontends.mqtt.messages import OutgoingPublish
from gateway.frontends.mqtt.session.outbox import Outbox

MUCH = 2**20


@given(st.lists(st.sampled_from(["put 0", "put 1", "take", "done"]), max_size=80), st.integers(1, 4), st.integers(1, 4))
def test_the_backlog_keeps_order_and_bounds(steps: list[str], queued: int, running: int) -> None:
    backlog: Backlog[int] = Backlog(queued, running)
    waiting: list[tuple[int, int]] = []
    taken: list[int] = []
    for number, step in enumerate(steps):
        if step.startswith("put"):
            qos = int(step[-1])
            waiting.append((number, qos))
            dropped = backlog.put(number, qos)
            if sum(not each for _, each in waiting) > queued:
                oldest = next(job for job, each in waiting if not each)
                assert dropped == oldest
                waiting = [entry for entry in waiting if entry[0] != oldest]
        elif step == "take":
            expected = waiting.pop(0) if waiting and len(taken) < running else None
            assert backlog.take() == expected
            taken += [] if expected is None else [expected[1]]
        elif taken:
            backlog.done(taken.pop(0))
        sure = sum(qos for _, qos in waiting) + sum(taken)
        assert backlog.full == (sure >= queued)
        assert len(backlog) == len(waiting)
        assert backlog.running == len(taken)


def test_the_outbox_sends_in_order_within_what_the_broker_takes() -> None:
    outbox = Outbox(3, MUCH, 20)
    outbox.reconnected(2, resumed=True)
    publications = [OutgoingPublish(str(index), b"") for index in range(4)]
    assert [outbox.put(publication) for publication in publications] == [True, True, True, False]
    assert outbox.sent(1) is publications[0]
    assert outbox.sent(2) is publications[1]
    assert outbox.first() is None
    assert outbox.taken(1) is publications[0]
    assert outbox.taken(1) is None
    assert outbox.first() is publications[2]
    assert len(outbox) == 2


def test_a_forgotten_session_sends_again_what_was_in_flight() -> None:
    outbox = Outbox(9, MUCH, 20)
    publications = [OutgoingPublish(str(index), b"") for index in range(3)]
    for publication in publications:
        outbox.put(publication)
    outbox.sent(1)
    outbox.sent(2)
    assert outbox.reconnected(20, resumed=True)
    assert outbox.taken(1) is publications[0]
    assert not outbox.reconnected(20, resumed=False)
    assert [outbox.sent(index) for index in (3, 4)] == publications[1:]


def test_fewer_at_a_time_than_are_in_flight_means_sending_anew() -> None:
    outbox = Outbox(9, MUCH, 20)
    for index in range(3):
        outbox.put(OutgoingPublish(str(index), b""))
        outbox.sent(index)
    assert not outbox.reconnected(2, resumed=True)
    assert outbox.first() is not None


def test_urgent_replaces_what_it_overtakes_on_its_topic() -> None:
    outbox = Outbox(9, MUCH, 1)
    online, offline, result = (
        OutgoingPublish("status", b"online"),
        OutgoingPublish("status", b"offline"),
        OutgoingPublish("r", b""),
    )
    outbox.put(result)
    outbox.sent(1)
    for _ in range(3):
        outbox.put(online, urgent=True)
    assert len(outbox) == 2
    outbox.put(offline, urgent=True)
    outbox.taken(1)
    assert outbox.first() is offline
    outbox.sent(2)
    outbox.taken(2)
    assert (outbox.first(), len(outbox)) == (None, 0)


def test_urgent_goes_first_and_always() -> None:
    outbox = Outbox(1, MUCH, 1)
    outbox.put(OutgoingPublish("a", b""))
    assert outbox.put(OutgoingPublish("status", b""), urgent=True)
    first = outbox.first()
    assert first is not None
    assert first.topic == "status"


@given(
    st.lists(
        st.tuples(st.sampled_from(["put 0", "put 1", "urgent", "send", "drop", "take", "rewind"]), st.integers(0, 9))
    )
)
def test_the_outbox_holds_no_more_bytes_than_its_bound_but_for_one(steps: list[tuple[str, int]]) -> None:
    outbox, held, sent = Outbox(5, 10, 3), [], dict[int, OutgoingPublish]()
    for mid, (step, size) in enumerate(steps):
        publication = OutgoingPublish(step, b"x" * size, qos=int(step[-1]) if step.startswith("put") else 1)
        if step == "urgent":
            outbox.put(publication, urgent=True)
            held = [publication, *(one for one in held if one.topic != "urgent")]
        elif step.startswith("put"):
            bytes_held = sum(len(one.payload) for one in (*held, *sent.values()))
            room = len(held) < 5 and (bytes_held + size <= 10 or not (held or sent))
            assert outbox.put(publication) == room
            held += [publication] if room else []
        elif step == "send" and outbox.first() is not None:
            assert outbox.sent(mid) is held[0]
            sent |= {mid: held[0]} if held[0].qos else {}
            held.pop(0)
        elif step == "drop" and held:
            assert outbox.drop_first() is held.pop(0)
        elif step == "take" and sent:
            first = next(iter(sent))
            assert outbox.taken(first) is sent.pop(first)
        elif step == "rewind":
            outbox.rewind()
            held, sent = [*sent.values(), *held], {}
