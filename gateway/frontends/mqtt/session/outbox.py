"""Bounded queue of publications, in order, with no more in flight than the broker allows."""

from __future__ import annotations

from collections import deque

from gateway.frontends.mqtt.messages import OutgoingPublish


class Outbox:
    """Publications that wait, and those sent at QoS 1 and not yet acknowledged, by packet id."""

    def __init__(self, max_waiting: int, max_bytes: int, max_inflight: int) -> None:
        self._max_waiting, self._max_bytes = max_waiting, max_bytes
        self._max_inflight = max_inflight
        self._limit = max_inflight
        self._waiting: deque[OutgoingPublish] = deque()
        self._inflight: dict[int, OutgoingPublish] = {}
        self._held_bytes = 0
        """Payload bytes of all publications, waiting and in flight."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._inflight)

    def put(self, publication: OutgoingPublish, *, urgent: bool = False) -> bool:
        """Queue `publication`, an urgent one before all others.

        Return False if the outbox is full, in number or in bytes.
        An empty outbox accepts a publication of any size. An urgent publication replaces waiting ones on its topic.
        Otherwise an `online` sent after `offline` would stay at the broker, and those of connections that ended early
        would accumulate.
        """
        if urgent:
            self._waiting = deque((publication, *(one for one in self._waiting if one.topic != publication.topic)))
            self._held_bytes = sum(len(one.payload) for one in (*self._waiting, *self._inflight.values()))
            return True
        held_bytes = self._held_bytes + len(publication.payload)
        if len(self._waiting) >= self._max_waiting or (held_bytes > self._max_bytes and len(self)):
            return False
        self._waiting.append(publication)
        self._held_bytes = held_bytes
        return True

    def first(self) -> OutgoingPublish | None:
        """Return the next publication to send; None if nothing waits or too much is in flight."""
        if not self._waiting or (self._waiting[0].qos and len(self._inflight) >= self._limit):
            return None
        return self._waiting[0]

    def sent(self, mid: int) -> OutgoingPublish:
        """Record that the first publication was sent as packet `mid`. At QoS 1 it stays until `taken`."""
        publication = self._waiting.popleft()
        if publication.qos:
            self._inflight[mid] = publication
        else:
            self._held_bytes -= len(publication.payload)
        return publication

    def drop_first(self) -> OutgoingPublish:
        """Drop the first publication."""
        publication = self._waiting.popleft()
        self._held_bytes -= len(publication.payload)
        return publication

    def taken(self, mid: int) -> OutgoingPublish | None:
        """Return the publication that a PUBACK for `mid` acknowledges, or None."""
        publication = self._inflight.pop(mid, None)
        if publication is not None:
            self._held_bytes -= len(publication.payload)
        return publication

    def reconnected(self, receive_maximum: int, *, resumed: bool) -> bool:
        """Adapt to a new connection. Return False if publications in flight must be sent under new packet ids.

        That is the case if the broker has lost the session, or if its Receive Maximum is below their number.
        """
        self._limit = min(self._max_inflight, receive_maximum)
        if resumed and len(self._inflight) <= self._limit:
            return True
        self.rewind()
        return False

    def rewind(self) -> None:
        """Return publications in flight to the front of the queue, in order."""
        self._waiting.extendleft(reversed(self._inflight.values()))
        self._inflight.clear()
