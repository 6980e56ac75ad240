"""Memory of messages: which repeat, which wait for which, and that memory stays bounded."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.dedup import Dedup, SeenMessage, key_of


def message(payload: bytes = b"p", *, at_ns: int = 0, **more: Any) -> Message:
    return Message("t", payload, qos=1, mid=5, arrived_ns=at_ns, **more)


def begun(dedup: Dedup, one: Message) -> SeenMessage:
    """Return the record of a message, which is new."""
    assert dedup.earlier(key_of(one), one) is None
    return dedup.begin(key_of(one), one)


def test_equal_samples_are_not_repetitions_unless_the_broker_says_so() -> None:
    dedup = Dedup(100, 10, 1000)
    for other in (message(epoch=1), message(epoch=1), message(epoch=1, dup=True), message(epoch=2)):
        last = begun(dedup, other)
    again = message(epoch=3, dup=True)
    assert dedup.earlier(key_of(again), again) is last


def test_packet_ids_of_another_session_are_forgotten_and_names_are_not() -> None:
    dedup = Dedup(100, 10, 1000)
    begun(dedup, message(epoch=1))
    named = begun(dedup, message(epoch=1, name="n"))
    dedup.session_epoch = 2
    kept = begun(dedup, message(epoch=3, dup=True))
    again = message(epoch=3, dup=True, name="n")
    assert dedup.earlier(key_of(again), again) is named
    again = message(epoch=4, dup=True)
    assert dedup.earlier(key_of(again), again) is kept


def test_a_copy_that_waited_while_its_session_ended_is_one() -> None:
    dedup = Dedup(100, 10, 1000)
    first = begun(dedup, message(epoch=1))
    waited = message(epoch=2, dup=True)
    dedup.session_epoch = 3
    assert dedup.earlier(key_of(waited), waited) is first


def test_named_messages_repeat_whenever_they_come_with_the_same_payload() -> None:
    dedup = Dedup(100, 10, 1000)
    for name in (b"c", "u"):
        first = begun(dedup, message(name=name))
        again = message(name=name)
        assert dedup.earlier(key_of(again), again) is first
        begun(dedup, message(b"q", name=name))


def test_correlation_data_and_properties_are_no_names() -> None:
    dedup = Dedup(100, 10, 1000)
    for more in ({"correlation": b"c"}, {"user": (("id", "u"),)}):
        begun(dedup, message(**more))
        begun(dedup, message(**more))


def test_what_waited_for_the_answer_is_given_back_once() -> None:
    dedup = Dedup(100, 10, 1000)
    first = message(name=b"c")
    seen = begun(dedup, first)
    seen.waiting.append(first)
    assert dedup.answered(seen, b"answer") == [first]
    assert dedup.answered(seen, b"answer") == []
    assert dedup.earlier(key_of(first), first) is seen
    assert seen.answer == b"answer"


def test_memory_is_bounded_by_time_number_and_bytes() -> None:
    dedup = Dedup(100, 3, 10)
    for index in range(5):
        dedup.answered(begun(dedup, message(b"%d" % index)), b"1234")
    assert len(dedup) == 2
    late = begun(dedup, message(b"late", at_ns=1000))
    assert len(dedup) == 1
    dedup.forget(late)
    assert len(dedup) == 0


def test_qos_0_without_a_name_cannot_repeat() -> None:
    dedup = Dedup(100, 10, 1000)
    unsure = Message("t", b"p")
    assert key_of(unsure) is None
    for _ in range(2):
        dedup.answered(begun(dedup, unsure), b"answer")
    assert len(dedup) == 0


class Remembering(RuleBasedStateMachine):
    """State machine of messages that come, are answered and forgotten in any order, also without their records."""

    records = Bundle("records")

    @initialize(entries=st.integers(1, 4), held=st.integers(0, 12))
    def start(self, entries: int, held: int) -> None:
        self.entries, self.held, self.now_ns = entries, held, 0
        self.dedup = Dedup(100, entries, held)
        self.waiting: dict[int, int] = {}

    @rule(target=records, name=st.sampled_from([b"a", b"b", b"c", b""]), later_ns=st.sampled_from([0, 60, 120]))
    def come(self, name: bytes, later_ns: int) -> SeenMessage:
        self.now_ns += later_ns
        one = message(at_ns=self.now_ns, name=name)
        key = key_of(one) if name else None
        seen = self.dedup.earlier(key, one)
        if seen is None:
            seen = self.dedup.begin(key, one)
        elif seen.answer is None:
            seen.waiting.append(one)
            self.waiting[id(seen)] = self.waiting.get(id(seen), 0) + 1
        return seen

    @rule(seen=records, size=st.integers(0, 6))
    def answer(self, seen: SeenMessage, size: int) -> None:
        assert len(self.dedup.answered(seen, b"x" * size)) == self.waiting.pop(id(seen), 0)

    @rule(seen=records)
    def forget(self, seen: SeenMessage) -> None:
        self.dedup.forget(seen)
        again = message(at_ns=self.now_ns, name=b"a")
        assert self.dedup.earlier(seen.key, again) is not seen

    @invariant()
    def counts_what_it_keeps(self) -> None:
        kept = self.dedup._seen.values()
        assert self.dedup._bytes == sum(len(seen.answer or b"") for seen in kept) <= self.held
        assert len(self.dedup) <= self.entries


TestRemembering = Remembering.TestCase
TestRemembering.settings = settings(stateful_step_count=40, deadline=None)
