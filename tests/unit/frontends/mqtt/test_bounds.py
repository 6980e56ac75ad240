"""What is bounded and remembered: the backlog, the outbox, what was seen before, and waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.frontends.mqtt.backlog import Backlog
from gateway.frontends.mqtt.backoff import ceiling_s, delay_s
from gateway.frontends.mqtt.dedup import Dedup, key_of
from gateway.frontends.mqtt.messages import Message, Publication
from gateway.frontends.mqtt.outbox import Outbox


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
    outbox = Outbox(3, 20)
    outbox.reconnected(2, resumed=True)
    publications = [Publication(str(index), b"") for index in range(4)]
    assert [outbox.put(publication) for publication in publications] == [True, True, True, False]
    assert outbox.sent(1) is publications[0]
    assert outbox.sent(2) is publications[1]
    assert outbox.first() is None
    assert outbox.taken(1) is publications[0]
    assert outbox.taken(1) is None
    assert outbox.first() is publications[2]
    assert len(outbox) == 2


def test_a_forgotten_session_sends_again_what_was_in_flight() -> None:
    outbox = Outbox(9, 20)
    publications = [Publication(str(index), b"") for index in range(3)]
    for publication in publications:
        outbox.put(publication)
    outbox.sent(1)
    outbox.sent(2)
    assert outbox.reconnected(20, resumed=True)
    assert outbox.taken(1) is publications[0]
    assert not outbox.reconnected(20, resumed=False)
    assert [outbox.sent(index) for index in (3, 4)] == publications[1:]


def test_fewer_at_a_time_than_are_in_flight_means_sending_anew() -> None:
    outbox = Outbox(9, 20)
    for index in range(3):
        outbox.put(Publication(str(index), b""))
        outbox.sent(index)
    assert not outbox.reconnected(2, resumed=True)
    assert outbox.first() is not None


def test_urgent_replaces_what_it_overtakes_on_its_topic() -> None:
    outbox = Outbox(9, 1)
    online, offline, result = Publication("status", b"online"), Publication("status", b"offline"), Publication("r", b"")
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
    outbox = Outbox(1, 1)
    outbox.put(Publication("a", b""))
    assert outbox.put(Publication("status", b""), urgent=True)
    first = outbox.first()
    assert first is not None
    assert first.topic == "status"


def message(payload: bytes = b"p", *, at_ns: int = 0, **more: object) -> Message:
    return Message("t", payload, qos=1, mid=5, arrived_ns=at_ns, **more)  # type: ignore[arg-type]


def test_equal_samples_are_not_repetitions_unless_the_broker_says_so() -> None:
    dedup = Dedup(100, 10, 1000)
    first = message(epoch=1)
    assert dedup.begin(key_of(first), first) is None
    for other in (message(epoch=1), message(epoch=1, dup=True), message(epoch=2)):
        assert dedup.begin(key_of(other), other) is None
    again = message(epoch=3, dup=True)
    assert dedup.begin(key_of(again), again) is not None


def test_named_messages_repeat_whenever_they_come_with_the_same_payload() -> None:
    dedup = Dedup(100, 10, 1000)
    for more in ({"correlation": b"c"}, {"user": (("id", "u"),)}):
        first = message(**more)
        assert dedup.begin(key_of(first), first) is None
        seen = dedup.begin(key_of(first), message(**more))
        assert seen is not None
        other = message(b"q", **more)
        assert dedup.begin(key_of(other), other) is None


def test_what_waited_for_the_answer_is_given_back_once() -> None:
    dedup = Dedup(100, 10, 1000)
    first = message(correlation=b"c")
    key = key_of(first)
    dedup.begin(key, first)
    seen = dedup.begin(key, first)
    assert seen is not None
    seen.waiting.append(first)
    assert dedup.answered(key, b"answer") == [first]
    assert dedup.answered(key, b"answer") == []
    again = dedup.begin(key, first)
    assert again is not None
    assert again.answer == b"answer"


def test_memory_is_bounded_by_time_number_and_bytes() -> None:
    dedup = Dedup(100, 3, 10)
    for index in range(5):
        each = message(b"%d" % index)
        dedup.begin(key_of(each), each)
        dedup.answered(key_of(each), b"1234")
    assert len(dedup) == 2
    late = message(b"late", at_ns=1000)
    dedup.begin(key_of(late), late)
    assert len(dedup) == 1
    dedup.forget(key_of(late))
    assert len(dedup) == 0


def test_qos_0_without_an_id_cannot_repeat() -> None:
    assert key_of(Message("t", b"p")) is None


@given(st.integers(0, 2000), st.floats(0.01, 10), st.floats(10, 100))
def test_delays_stay_below_a_ceiling_that_doubles(failures: int, low: float, high: float) -> None:
    assert 0 <= delay_s(failures, low, high) <= ceiling_s(failures, low, high) <= high
    assert ceiling_s(failures + 1, low, high) in {min(high, 2 * ceiling_s(failures, low, high)), high}
