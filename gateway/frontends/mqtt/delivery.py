"""Getting answers and refusals to the broker, and acknowledging what they settle. Every way a message can end is here.

When it is acknowledged: a request and a single message after the broker took the answer, and at QoS 1 where one of
its copies came so, a sample once it is in its window, poison after the broker took the error. What the outbox has no
room for is not: it comes again with the next connection. Acknowledgements go out as answers come, not in the order of
MQTT 5, 4.6: brokers match them by packet id, and one slow model would else hold up every sensor behind it (a broker
stops at about 20 unacknowledged messages).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.domain.errors import Fault, RequestError
from gateway.domain.retry import draw_chance, pause_s
from gateway.frontends.mqtt import answers
from gateway.frontends.mqtt.dedup import Dedup, Seen
from gateway.frontends.mqtt.messages import JSON, REFUSED, Message, Publication
from gateway.frontends.mqtt.requests import Reply
from gateway.frontends.mqtt.settings import MqttSettings

TRY_AGAIN_CODES = frozenset({0x80, 0x83, 0x97})
"""PUBACK: unspecified, implementation specific, quota exceeded (MQTT 5, 3.4.2.1); the others will not change."""


class Outlet(Protocol):
    """What is needed of the link to the broker."""

    def publish(self, publication: Publication) -> bool: ...
    def acknowledge(self, message: Message) -> None: ...
    def pause(self, *, on: bool) -> None: ...


@dataclass(slots=True)
class Debt:
    """An answer that is due, or the refusal in its place: whither, as what, and which message it settles (`seen`; None:
    a window's samples are settled before). `attempts` are those that the broker refused. Small, since it lives until
    the broker took the answer."""

    message: Message
    qos: int
    topic: str
    seen: Seen | None = None
    reply: Reply | None = None
    identity: str = ""
    refusal: bool = False
    attempts: int = 0

    def make_sure(self) -> bool:
        """Whether the answer may not be dropped. Who asked at QoS 1 what came at QoS 0 before is owed it from now on,
        and that copy is not: it promised nothing."""
        if not self.qos and self.seen is not None and self.seen.waiting:
            self.message = self.seen.waiting.pop(0)
            self.qos = self.message.qos
        return bool(self.qos)


class Delivery:
    """Publishes, remembers what was answered, acknowledges."""

    def __init__(self, settings: MqttSettings, home: str, outlet: Outlet, counters: Counter[str]) -> None:
        self._settings, self._outlet, self._counters = settings, outlet, counters
        self._errors = f"{home}/errors"
        self._dedup = Dedup(int(settings.dedup_ttl_s * 1e9), settings.dedup_entries, settings.dedup_bytes)

    def begin(self, key: Hashable | None, message: Message, reply: Reply | None = None) -> Seen | None:
        """The record of a message that is new; None where it came before and is dealt with. A request is answered
        again, since who repeats it lacks the answer; a sample's result was taken by the broker, so that it is only
        acknowledged."""
        seen = self._dedup.earlier(key, message)
        if seen is None:
            return self._dedup.begin(key, message)
        self._counters["duplicates"] += 1
        message.payload = b""
        if seen.answer is None:
            seen.waiting += [message] if message.qos else []  # at QoS 0 nobody waits for an acknowledgement
        elif reply is None:
            self._outlet.acknowledge(message)
        else:
            own = self._dedup.begin(None, message)  # not `seen`: what the broker says of this copy is not the answer
            self.answer(Debt(message, message.qos, reply.topic, own, reply), seen.answer)
        return None

    def forget(self, seen: Seen | None) -> None:
        """Nothing came of a message: its next copy is new."""
        if seen is not None:
            self._dedup.forget(seen)

    def finish(self, message: Message, seen: Seen | None, answer: bytes = b"") -> None:
        """All that was to be done for `message` is done: acknowledge it, and the repetitions that waited for it."""
        self._outlet.acknowledge(message)
        for repetition in self._dedup.answered(seen, answer) if seen is not None else ():
            self._outlet.acknowledge(repetition)

    def answer(self, debt: Debt, payload: bytes) -> None:
        """Publish an answer or a refusal; where there is no room, nothing came of the message: it is not acknowledged
        and may come again."""
        debt.make_sure()
        taken = partial(self._taken, debt, payload)
        if debt.reply is not None:
            publication = debt.reply.publication(payload, debt.qos, taken)
        else:
            publication = Publication(debt.topic, payload, debt.qos, content_type=JSON, taken=taken)
        if not self._outlet.publish(publication):
            self.forget(debt.seen)

    def refuse_debt(self, debt: Debt, refused: RequestError) -> None:
        """Publish a refusal instead of the answer. OVERLOADED reaches this at QoS 0 only, and a next copy is new: an
        asker is told, a sensor's message just dropped, for telling would add to the load."""
        debt.make_sure()
        if refused.fault is Fault.OVERLOADED:
            self.forget(debt.seen)
        if refused.fault is Fault.OVERLOADED and debt.reply is None:
            self._counters["dropped_overloaded"] += 1
        elif debt.seen is not None:
            self.refuse(debt.message, refused, debt.seen, debt.reply, debt.identity)
        else:
            self._counters["refused"] += 1
            self.complain(debt.message, refused, debt.identity, debt.qos)

    def refuse(
        self,
        message: Message,
        refused: RequestError,
        seen: Seen | None,
        reply: Reply | None = None,
        identity: str = "",
    ) -> None:
        """Tell the error topic, and the asker where there is one; acknowledge when the broker has taken it.

        Also where the broker refuses the error itself for good: poison must not block its queue.
        """
        self._counters["refused"] += 1
        identity = identity or message.user_property("id")
        if reply is not None:
            self.complain(message, refused, identity, message.qos)
        seen = seen or self._dedup.begin(None, message)
        debt = Debt(message, message.qos, self._errors, seen, reply, identity, refusal=True)
        self.answer(debt, answers.error(identity, message.topic, refused))

    def complain(self, message: Message, refused: RequestError, identity: str, qos: int) -> None:
        """Tell the error topic, and settle nothing by it."""
        payload = answers.error(identity, message.topic, refused)
        self._outlet.publish(Publication(self._errors, payload, qos, content_type=JSON))

    def discard(self, message: Message, reason: str) -> None:
        """Acknowledge and count what nobody asked for."""
        self._counters[reason] += 1
        self._outlet.acknowledge(message)

    def _taken(self, debt: Debt, payload: bytes, code: int) -> None:
        """Who asked at QoS 1 while the answer went out at QoS 0 gets it again, now for sure."""
        if not debt.qos and debt.make_sure():
            self.answer(debt, payload)
        elif code < REFUSED:
            self._settle(debt, payload)
        elif code in TRY_AGAIN_CODES and debt.attempts + 1 < self._settings.max_attempts:
            wait_s = pause_s(debt.attempts + 1, self._settings.retry_min_s, self._settings.retry_max_s, draw_chance())
            debt.attempts += 1
            asyncio.get_running_loop().call_later(wait_s, self.answer, debt, payload)
        elif debt.refusal:
            self._settle(debt, payload)
        else:
            problem = f"the broker refuses the answer on '{debt.topic}' with code 0x{code:02x}; mend its ACL or limits"
            self.refuse_debt(debt, RequestError(Fault.DENIED, problem))

    def _settle(self, debt: Debt, payload: bytes) -> None:
        if not debt.refusal:
            self._counters["answered"] += 1
        if debt.seen is not None:
            self.finish(debt.message, debt.seen, payload)
