"""Queue of publications, in order, with no more in flight than the broker allows. Pure: the clock is passed in.

The queue drops nothing. `full` says that no more messages should be read and no more inferences begun.
"""

from __future__ import annotations

from collections import deque

from gateway.serving.frontends.mqtt.messages import OutgoingPublish

ID_LIMIT = 65_533
"""Largest packet id of a publication. Those above it are for SUBSCRIBE and UNSUBSCRIBE."""
ROOM = 0.75
"""Share of the limits below which a full outbox counts as not full again, so that reading does not stop at each one."""


class Outbox:
    """Publications that wait, and those sent at QoS 1 and not yet acknowledged, by packet id."""

    def __init__(self, max_count: int, max_bytes: int, max_inflight: int) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._max_inflight = min(max_inflight, ID_LIMIT)
        self._limit, self._maximum_qos = self._max_inflight, 1
        self._last_id = 0
        self._waiting: deque[OutgoingPublish] = deque()
        self._inflight: dict[int, tuple[OutgoingPublish, float]] = {}
        """Publications in flight with the time when each was sent, oldest first."""
        self._held_bytes = 0
        """Bytes of all publications, waiting and in flight."""
        self._full = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._inflight)

    @property
    def full(self) -> bool:
        """Return True from a limit, in number or in bytes, until there is room again."""
        share, count = ROOM if self._full else 1.0, len(self._waiting) + len(self._inflight)
        self._full = count >= share * self._max_count or self._held_bytes >= share * self._max_bytes
        return self._full

    @property
    def waits(self) -> bool:
        """Return True if a publication was not sent yet."""
        return bool(self._waiting)

    @property
    def oldest_s(self) -> float | None:
        """Return the time when the oldest publication in flight was sent; None if none is."""
        return next((sent_s for _, sent_s in self._inflight.values()), None)

    def put(self, publication: OutgoingPublish) -> None:
        """Queue `publication`."""
        self._waiting.append(publication)
        self._held_bytes += _size_bytes(publication)

    def put_first(self, publication: OutgoingPublish) -> None:
        """Queue `publication` before all others, in place of those that wait on its topic.

        Otherwise an `online` sent after `offline` would stay at the broker, and those of connections that ended early
        would accumulate.
        """
        self._waiting = deque((publication, *(one for one in self._waiting if one.topic != publication.topic)))
        sent = (one for one, _ in self._inflight.values())
        self._held_bytes = sum(_size_bytes(one) for one in (*self._waiting, *sent))

    def first(self) -> OutgoingPublish | None:
        """Return the next publication to send; None if nothing waits or too much is in flight."""
        if not self._waiting:
            return None
        publication = self._waiting[0]
        publication.qos = min(publication.qos, self._maximum_qos)
        return None if publication.qos and len(self._inflight) >= self._limit else publication

    def next_id(self) -> int:
        """Return the packet id of the first publication: one that is not in flight (MQTT 5, 2.2.1)."""
        free = self._last_id % ID_LIMIT + 1
        while free in self._inflight:
            free = free % ID_LIMIT + 1
        return free

    def sent(self, mid: int, now_s: float) -> OutgoingPublish:
        """Record that the first publication was sent as packet `mid`. At QoS 1 it stays until `taken`."""
        publication = self._waiting.popleft()
        self._last_id = mid
        if publication.qos:
            self._inflight[mid] = publication, now_s
        else:
            self._held_bytes -= _size_bytes(publication)
        return publication

    def drop_first(self) -> OutgoingPublish:
        """Drop the first publication."""
        publication = self._waiting.popleft()
        self._held_bytes -= _size_bytes(publication)
        return publication

    def taken(self, mid: int) -> OutgoingPublish | None:
        """Return the publication that a PUBACK for `mid` acknowledges, or None."""
        publication, _ = self._inflight.pop(mid, (None, 0.0))
        if publication is not None:
            self._held_bytes -= _size_bytes(publication)
        return publication

    def reconnected(self, receive_maximum: int, maximum_qos: int = 1) -> None:
        """Adapt to a new connection: what was in flight is sent again, under new packet ids."""
        self._limit, self._maximum_qos = min(self._max_inflight, receive_maximum), maximum_qos
        self._waiting.extendleft(publication for publication, _ in reversed(self._inflight.values()))
        self._inflight.clear()


def _size_bytes(publication: OutgoingPublish) -> int:
    """Return the bytes that a publication holds: payload, topic, correlation and user properties."""
    size = len(publication.payload) + len(publication.topic)
    if publication.user or publication.correlation:
        size += sum(len(name) + len(value) for name, value in publication.user) + len(publication.correlation or b"")
    return size
