"""What is to be published: bounded, in order, with no more in flight than the broker takes."""

from __future__ import annotations

from collections import deque

from gateway.frontends.mqtt.messages import Publication


class Outbox:
    """Publications that wait, and those sent at QoS 1 and not yet acknowledged, by packet id."""

    def __init__(self, max_waiting: int, max_bytes: int, max_inflight: int) -> None:
        self._max_waiting, self._max_bytes = max_waiting, max_bytes
        self._max_inflight = max_inflight
        self._limit = max_inflight
        self._waiting: deque[Publication] = deque()
        self._inflight: dict[int, Publication] = {}
        self._held_bytes = 0
        """Payloads of all publications, waiting and in flight."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._inflight)

    def put(self, publication: Publication, *, urgent: bool = False) -> bool:
        """Queue `publication`, an urgent one before all others; False where the outbox is full, in number or in bytes.
        An empty one takes a publication of any size.

        Whom an urgent one overtakes on its own topic it replaces: an `online` that came after `offline` would stay at
        the broker, and one of each connection that ended too early would pile up.
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

    def first(self) -> Publication | None:
        """The next to send, or None where nothing waits or too much is in flight."""
        if not self._waiting or (self._waiting[0].qos and len(self._inflight) >= self._limit):
            return None
        return self._waiting[0]

    def sent(self, mid: int) -> Publication:
        """The first has gone to the socket as packet `mid`; at QoS 1 it stays until `taken`."""
        publication = self._waiting.popleft()
        if publication.qos:
            self._inflight[mid] = publication
        else:
            self._held_bytes -= len(publication.payload)
        return publication

    def drop_first(self) -> Publication:
        """Give up the first."""
        publication = self._waiting.popleft()
        self._held_bytes -= len(publication.payload)
        return publication

    def taken(self, mid: int) -> Publication | None:
        """The publication that a PUBACK for `mid` acknowledges; None where there is none."""
        publication = self._inflight.pop(mid, None)
        if publication is not None:
            self._held_bytes -= len(publication.payload)
        return publication

    def reconnected(self, receive_maximum: int, *, resumed: bool) -> bool:
        """A new connection stands. False where what was in flight must be sent anew under new packet ids, because the
        broker has forgotten the session or takes fewer at a time than were in flight."""
        self._limit = min(self._max_inflight, receive_maximum)
        if resumed and len(self._inflight) <= self._limit:
            return True
        self.rewind()
        return False

    def rewind(self) -> None:
        """Put what was in flight back to the front, in order."""
        self._waiting.extendleft(reversed(self._inflight.values()))
        self._inflight.clear()
