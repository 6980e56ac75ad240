"""Delivery of answers and refusals to the broker, and acknowledgement of messages. Every message ends here.

A message is acknowledged as follows:

- Request or single message: after the broker accepted the answer, sent at QoS 1 if a copy of the message came at QoS 1.
- Sample of a window: once it is in the journal; without a journal, once it is in its window.
- Message that cannot be processed: after the broker accepted the error.
- Message of a route with `at_most_once`: as it arrives (`pipeline.samples`).

Acknowledgements are sent in the order of the answers, not in the order of MQTT 5, 4.6. Brokers match them by packet id.
Otherwise one slow model would delay all other sensors: a broker stops at about 20 unacknowledged messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.retry import draw_chance, pause_s
from gateway.serving.frontends.mqtt.messages import JSON, REFUSED, Message, OutgoingPublish, Taken
from gateway.serving.frontends.mqtt.outbound.contents import write_error
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.dedup import Dedup, SeenMessage

TRY_AGAIN_CODES = frozenset({0x80, 0x83, 0x97})
"""PUBACK codes after which another attempt may succeed: unspecified, implementation specific, quota exceeded.

See MQTT 5, 3.4.2.1.
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """Response topic and correlation data of a request, and the user properties that its answer repeats.

    `body_correlation` is the correlation of a request that brought it in its body.
    """

    topic: str
    correlation: bytes | None
    user: tuple[tuple[str, str], ...] = ()
    body_correlation: str = ""

    def publication(self, payload: bytes, qos: int, taken: Taken | None) -> OutgoingPublish:
        """Return an answer with the request's correlation data."""
        return OutgoingPublish(
            self.topic, payload, qos, content_type=JSON, correlation=self.correlation, taken=taken, user=self.user
        )


@dataclass(slots=True)
class Debt:
    """Answer or refusal that is due, with its destination and the message that it settles.

    `result` holds the properties of a route's result; its QoS is an upper limit. `dropped` is called if the outbox or
    the broker does not accept it, `settled` once the broker accepted it, or it will never be sent. `seen` is None for
    windows: their samples were settled before. `attempts` counts those that the broker refused. The record is small
    because it lives until the broker accepted the answer.
    """

    message: Message
    qos: int
    topic: str
    seen: SeenMessage | None = None
    reply: Reply | None = None
    identity: str = ""
    refusal: bool = False
    attempts: int = 0
    result: OutgoingPublish | None = None
    dropped: Callable[[], object] | None = None
    settled: Callable[[], object] | None = None

    def settle(self) -> None:
        """Report that no answer follows any more."""
        if self.settled is not None:
            self.settled()

    def drop(self) -> None:
        """Report that the answer was not published."""
        if self.dropped is not None:
            self.dropped()

    def publication(self, payload: bytes, taken: Taken) -> OutgoingPublish:
        """Return the message with the answer."""
        if self.reply is not None:
            return self.reply.publication(payload, self.qos, taken)
        if self.result is not None:
            form = self.result
            qos = min(self.qos, form.qos)
            return OutgoingPublish(
                self.topic, payload, qos, form.retain, form.content_type, None, taken, form.expiry_s, form.user
            )
        return OutgoingPublish(self.topic, payload, self.qos, content_type=JSON, taken=taken)

    def make_sure(self) -> bool:
        """Return True if the answer must not be dropped.

        If a copy of a QoS 0 message came at QoS 1, the answer belongs to that copy from now on.
        """
        if not self.qos and self.seen is not None and self.seen.waiting:
            self.message = self.seen.waiting.pop(0)
            self.qos = self.message.qos
        return bool(self.qos)


class Delivery:
    """Publisher of answers and refusals; it remembers the answers, and acknowledges messages."""

    def __init__(self, context: RouteContext) -> None:
        self._settings, self._outlet, self._counters = context.settings, context.outlet, context.counters
        self._errors, settings = f"edge/{context.gateway_id}/errors", context.settings
        self._dedup = Dedup(int(settings.dedup_ttl_s * 1e9), settings.dedup_entries, settings.dedup_bytes)
        self.session = ""
        """Name of the broker's session, for ids of results; empty without a journal, which remembers it."""

    def session_began(self, epoch: int) -> None:
        """Forget packet ids: the broker has a new session since this connection."""
        self._dedup.session_epoch = epoch

    def begin(self, key: Hashable | None, message: Message, reply: Reply | None = None) -> SeenMessage | None:
        """Return the record of a new message; None for a repetition, which this method handles.

        A repeated request is answered again, because its sender does not have the answer. A repeated sample is only
        acknowledged, because the broker accepted its result.
        """
        seen = self._dedup.earlier(key, message)
        if seen is None:
            return self._dedup.begin(key, message)
        self._counters["duplicates"] += 1
        message.payload = b""
        if seen.answer is None:
            seen.waiting += [message] if message.qos else []  # a copy at QoS 0 has no acknowledgement
        elif reply is None:
            self._acknowledge(message)
        else:
            own = self._dedup.begin(None, message)  # not `seen`: the broker's code for this copy is not for the first
            self.answer(Debt(message, message.qos, reply.topic, own, reply), seen.answer)
        return None

    def forget(self, seen: SeenMessage | None) -> None:
        """Drop the record of a message without result: its next copy counts as new."""
        if seen is not None:
            self._dedup.forget(seen)

    def finish(self, message: Message, seen: SeenMessage | None, answer: bytes = b"") -> None:
        """Acknowledge a finished message, and the repetitions that waited for it."""
        for each in (message, *(self._dedup.answered(seen, answer) if seen is not None else ())):
            self._acknowledge(each)

    def answer(self, debt: Debt, payload: bytes) -> None:
        """Publish an answer or a refusal. At QoS 0 it is dropped without a connection; the next copy counts as new."""
        if debt.seen is not None:
            debt.make_sure()
        if not self._outlet.publish(debt.publication(payload, partial(self._taken, debt, payload))):
            self.forget(debt.seen)
            debt.drop()
            debt.settle()

    def suppress(self, debt: Debt) -> None:
        """Acknowledge a message whose result is not published."""
        self._counters["suppressed"] += 1
        self._end(debt, b"")

    def refuse_debt(self, debt: Debt, refused: RequestError) -> None:
        """Publish a refusal instead of the answer.

        OVERLOADED arrives here at QoS 0 only, and the next copy counts as new. A request gets the refusal. A sensor's
        message is dropped without an error message, which would add to the load.
        """
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
            self._end(debt, b"")

    def refuse(
        self,
        message: Message,
        refused: RequestError,
        seen: SeenMessage | None,
        reply: Reply | None = None,
        identity: str = "",
    ) -> None:
        """Publish a refusal on the error topic, and on the response topic if there is one.

        The message is acknowledged when the broker accepted the refusal, or refused it permanently. Otherwise a message
        that cannot be processed would block the broker's queue.
        """
        self._counters["refused"] += 1
        identity = identity or message.user_property("id")
        if reply is not None:
            self.complain(message, refused, identity, message.qos)
        seen = seen or self._dedup.begin(None, message)
        debt = Debt(message, message.qos, self._errors, seen, reply, identity, refusal=True)
        correlation = "" if reply is None else reply.body_correlation
        self.answer(debt, write_error(identity, message.topic, refused, correlation))

    def complain(self, message: Message, refused: RequestError, identity: str, qos: int) -> None:
        """Publish on the error topic without settling the message."""
        payload = write_error(identity, message.topic, refused)
        self._outlet.publish(OutgoingPublish(self._errors, payload, qos, content_type=JSON))

    def discard(self, message: Message, reason: str) -> None:
        """Count a message that is not processed, and acknowledge it."""
        self._counters[reason] += 1
        self._acknowledge(message)

    def _acknowledge(self, message: Message) -> None:
        self._outlet.acknowledge(message) if message.kept is None else message.kept()

    def _taken(self, debt: Debt, payload: bytes, code: int) -> None:
        """Handle the broker's `code` for an answer.

        If a copy came at QoS 1 while the answer was sent at QoS 0, the answer is sent again at QoS 1.
        """
        if debt.seen is not None and not debt.qos and debt.make_sure():
            self.answer(debt, payload)
        elif code < REFUSED:
            if not debt.refusal:
                self._counters["answered"] += 1
            self._end(debt, payload)
        elif code in TRY_AGAIN_CODES and debt.attempts + 1 < self._settings.max_attempts:
            wait_s = pause_s(debt.attempts + 1, self._settings.retry_min_s, self._settings.retry_max_s, draw_chance())
            debt.attempts += 1
            asyncio.get_running_loop().call_later(wait_s, self.answer, debt, payload)
        elif debt.refusal:
            self._end(debt, payload)
        else:
            debt.drop()
            problem = (
                f"the broker refuses the answer on '{debt.topic}' with code 0x{code:02x}; correct its ACL or limits"
            )
            self.refuse_debt(debt, RequestError(Fault.DENIED, problem))

    def _end(self, debt: Debt, payload: bytes) -> None:
        if debt.settled is not None:
            debt.settled()
        if debt.seen is not None:
            self.finish(debt.message, debt.seen, payload)
