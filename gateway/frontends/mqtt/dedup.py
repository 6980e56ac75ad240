"""Which messages were seen before, so that a repetition is neither run nor judged twice. Pure; bounded in all ways."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from gateway.frontends.mqtt.messages import Message


@dataclass(slots=True)
class Seen:
    """A message under way or answered. `waiting` are its repetitions at QoS 1 that came meanwhile; `answer` is what was
    published, None while it is under way. Who deals with the message holds this until then, remembered or not."""

    key: Hashable | None
    epoch: int
    expires_ns: int
    answer: bytes | None = None
    waiting: list[Message] = field(default_factory=list)


def key_of(message: Message) -> Hashable | None:
    """What makes two messages the same; None for QoS 0 without an id, where nothing can.

    Correlation data or the user property `id` names a message, together with its payload: clients do count from 0
    again after a restart. Without them a repetition is the broker's own: the same packet id, topic and payload.
    """
    name = message.correlation if message.correlation is not None else message.user_property("id")
    if name:
        return (name, message.response_topic, message.topic, hash(message.payload))
    return (message.mid, message.topic, hash(message.payload)) if message.qos else None


class Dedup:
    """The messages of the last `ttl_ns`, at most `max_entries`, with at most `max_bytes` of answers."""

    def __init__(self, ttl_ns: int, max_entries: int, max_bytes: int) -> None:
        self._ttl_ns, self._max_entries, self._max_bytes = ttl_ns, max_entries, max_bytes
        self._seen: OrderedDict[Hashable, Seen] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._seen)

    def earlier(self, key: Hashable | None, message: Message) -> Seen | None:
        """The record of an earlier copy of `message`; None where it is new."""
        self._expire(message.arrived_ns)
        seen = self._seen.get(key)
        return seen if seen is not None and _repeats(message, seen) else None

    def begin(self, key: Hashable | None, message: Message) -> Seen:
        """The record of a new message, remembered in the place of one that had its key, unless that is None."""
        seen = Seen(key, message.epoch, message.arrived_ns + self._ttl_ns)
        if key is not None:
            self._remove(key)
            self._seen[key] = seen
            self._shrink()
        return seen

    def answered(self, seen: Seen, answer: bytes) -> list[Message]:
        """Record what a message was answered; the repetitions that waited for it."""
        if self._remembers(seen):
            self._bytes += len(answer) - len(seen.answer or b"")
        seen.answer = answer
        waiting, seen.waiting = seen.waiting, []
        self._shrink()
        return waiting

    def forget(self, seen: Seen) -> None:
        """Nothing came of it: the next copy is new."""
        if self._remembers(seen):
            self._remove(seen.key)

    def _remembers(self, seen: Seen) -> bool:
        return self._seen.get(seen.key) is seen

    def _expire(self, now_ns: int) -> None:
        while self._seen:
            key, seen = next(iter(self._seen.items()))
            if seen.expires_ns > now_ns:
                return
            self._remove(key)

    def _shrink(self) -> None:
        while len(self._seen) > self._max_entries or self._bytes > self._max_bytes:
            self._remove(next(iter(self._seen)))

    def _remove(self, key: Hashable) -> None:
        seen = self._seen.pop(key, None)
        if seen is not None and seen.answer:
            self._bytes -= len(seen.answer)


def _repeats(message: Message, seen: Seen) -> bool:
    """A named message repeats whenever it comes again; an unnamed one if the broker says so on a later connection."""
    named = message.correlation is not None or bool(message.user_property("id"))
    return named or (message.dup and message.epoch > seen.epoch)
