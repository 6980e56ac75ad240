"""Bounds of the backlog, the outbox, and waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.mqtt.messages import OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.runs import Backlog
from gateway.serving.frontends.mqtt.session.outbox import Outbox

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
    outbox = Outbox(9, MUCH, 20)
    outbox.reconnected(2)
    publications = [OutgoingPublish(str(index), b"") for index in range(3)]
    for publication in publications:
        outbox.put(publication)
    assert outbox.oldest_s is None
    assert outbox.sent(1, 10.0) is publications[0]
    assert outbox.sent(2, 11.0) is publications[1]
    assert outbox.first() is None
    assert outbox.oldest_s == 10.0
    assert outbox.taken(1) is publications[0]
    assert outbox.taken(1) is None
    assert outbox.oldest_s == 11.0
    assert outbox.first() is publications[2]
    assert len(outbox) == 2


def test_a_new_connection_sends_again_what_was_in_flight_in_order() -> None:
    outbox = Outbox(9, MUCH, 20)
    publications = [OutgoingPublish(str(index), b"") for index in range(3)]
    for publication in publications:
        outbox.put(publication)
    outbox.sent(1, 0.0)
    outbox.sent(2, 0.0)
    assert outbox.taken(1) is publications[0]
    outbox.reconnected(20)
    assert [outbox.sent(index, 0.0) for index in (3, 4)] == publications[1:]


def test_no_publication_has_the_packet_id_of_subscribe_however_many_are_in_flight() -> None:
    outbox, used = Outbox(65_535, MUCH, 65_535), set[int]()
    for _ in range(65_535):
        outbox.put(OutgoingPublish("", b""))
    while outbox.first() is not None:
        used.add(outbox.next_id())
        outbox.sent(outbox.next_id(), 0.0)
    assert used == set(range(1, 65_534))


def test_a_status_replaces_one_that_waits_on_its_topic_and_goes_first() -> None:
    outbox = Outbox(9, MUCH, 1)
    online, offline, result = (
        OutgoingPublish("status", b"online"),
        OutgoingPublish("status", b"offline"),
        OutgoingPublish("r", b""),
    )
    outbox.put(result)
    for status in (online, online, offline):
        outbox.put_first(status)
    assert len(outbox) == 2
    assert outbox.sent(1, 0.0) is offline
    outbox.taken(1)
    assert outbox.first() is result


def test_a_full_outbox_has_room_again_at_three_quarters_of_its_limit() -> None:
    outbox = Outbox(4, MUCH, 20)
    fullness = []
    for index in range(5):
        outbox.put(OutgoingPublish("t", b""))
        fullness.append(outbox.full)
        outbox.sent(index, 0.0)
    assert fullness == [False, False, False, True, True]
    fullness = []
    for index in range(3):
        outbox.taken(index)
        fullness.append(outbox.full)
    assert fullness == [True, True, False]


def test_large_publications_fill_the_outbox_by_their_bytes() -> None:
    outbox = Outbox(100, 12, 20)
    outbox.put(OutgoingPublish("t", b"x" * 9))
    assert not outbox.full
    outbox.put(OutgoingPublish("t", b"x"))
    assert outbox.full


@given(
    st.lists(
        st.tuples(st.sampled_from(["put 0", "put 1", "status", "send", "drop", "take", "reconnect"]), st.integers(0, 9))
    )
)
def test_the_outbox_loses_nothing_and_knows_its_bytes(steps: list[tuple[str, int]]) -> None:
    outbox, held, sent = Outbox(5, 40, 3), list[OutgoingPublish](), dict[int, OutgoingPublish]()
    for mid, (step, size) in enumerate(steps):
        publication = OutgoingPublish(step, b"x" * size, qos=int(step[-1]) if step.startswith("put") else 1)
        if step == "status":
            outbox.put_first(publication)
            held = [publication, *(one for one in held if one.topic != "status")]
        elif step.startswith("put"):
            outbox.put(publication)
            held.append(publication)
        elif step == "send" and outbox.first() is not None:
            assert outbox.sent(mid, 0.0) is held[0]
            sent |= {mid: held[0]} if held[0].qos else {}
            held.pop(0)
        elif step == "drop" and held:
            assert outbox.drop_first() is held.pop(0)
        elif step == "take" and sent:
            first = next(iter(sent))
            assert outbox.taken(first) is sent.pop(first)
        elif step == "reconnect":
            outbox.reconnected(3)
            held, sent = [*sent.values(), *held], {}
        assert len(outbox) == len(held) + len(sent)
        held_bytes = sum(len(one.topic) + len(one.payload) for one in (*held, *sent.values()))
        if len(outbox) >= 5 or held_bytes >= 40:
            assert outbox.full
        elif len(outbox) < 0.75 * 5 and held_bytes < 0.75 * 40:
            assert not outbox.full
