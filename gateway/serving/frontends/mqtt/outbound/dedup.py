"""Detection of repeated messages, so that a repetition does not run again.

Pure, and bounded in time, number and size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from gateway.serving.frontends.mqtt.messages import Message


@dataclass(slots=True)
class SeenMessage:
    """Record of a message in progress or answered.

    `waiting`: repetitions at QoS 1 that arrived in the meantime. `answer`: what was published, None while the message
    is in progress. The code that processes the message holds this record until then, even if `Dedup` no longer does.
    """

    key: Hashable | None
    epoch: int
    expires_ns: int
    answer: bytes | None = None
    waiting: list[Message] = field(default_factory=list)


def key_of(message: Message) -> Hashable | None:
    """Return the key that equal messages share; None for QoS 0 without a name, which cannot be compared.

    A name identifies a message together with its payload, because clients count from 0 again after a restart. Without
    it only the broker's own repetition is recognised: same packet id, topic and payload. Each route of a sample
    has keys of its own.
    """
    if message.name:
        return (message.name, message.response_topic, message.route, message.topic, hash(message.payload))
    return (message.mid, message.route, message.topic, hash(message.payload)) if message.qos else None


class Dedup:
    """Messages of the last `ttl_ns`, at most `max_entries`, with at most `max_bytes` of answers."""

    def __init__(self, ttl_ns: int, max_entries: int, max_bytes: int) -> None:
        self._ttl_ns, self._max_entries, self._max_bytes = ttl_ns, max_entries, max_bytes
        self._seen: OrderedDict[Hashable, SeenMessage] = OrderedDict()
        self._bytes = 0
        self.session_epoch = 0
        """First connection of the broker's session: packet ids of earlier ones mean other messages."""

    def __len__(self) -> int:
        return len(self._seen)

    def earlier(self, key: Hashable | None, message: Message) -> SeenMessage | None:
        """Return the record of an earlier copy of `message`, or None if it is new.

        A message with a name always is a copy. Another one is if the broker sets DUP on a later connection of the same
        session.
        """
        while self._seen:  # the oldest come first
            oldest, seen = next(iter(self._seen.items()))
            if seen.expires_ns > message.arrived_ns:
                break
            self._remove(oldest)
        found = self._seen.get(key)
        if found is None or message.name:
            return found
        same_session = not found.epoch < self.session_epoch <= message.epoch
        return found if message.dup and same_session and found.epoch < message.epoch else None

    def begin(self, key: Hashable | None, message: Message) -> SeenMessage:
        """Return a record of a new message.

        It replaces the record with the same key; a key of None is not remembered.
        """
        seen = SeenMessage(key, message.epoch, message.arrived_ns + self._ttl_ns)
        if key is not None:
            if key in self._seen:
                self._remove(key)
            self._seen[key] = seen
            if len(self._seen) > self._max_entries:
                self._remove(next(iter(self._seen)))
        return seen

    def answered(self, seen: SeenMessage, answer: bytes) -> list[Message]:
        """Record the answer to a message. Return the repetitions that waited for it."""
        if self._seen.get(seen.key) is seen:
            self._bytes += len(answer) - len(seen.answer or b"")
        seen.answer = answer
        waiting, seen.waiting = seen.waiting, []
        while self._bytes > self._max_bytes:
            self._remove(next(iter(self._seen)))
        return waiting

    def forget(self, seen: SeenMessage) -> None:
        """Remove a record of a message without result: the next copy counts as new."""
        if self._seen.get(seen.key) is seen:
            self._remove(seen.key)

    def _remove(self, key: Hashable) -> None:
        seen = self._seen.pop(key, None)
        if seen is not None and seen.answer:
            self._bytes -= len(seen.answer)
