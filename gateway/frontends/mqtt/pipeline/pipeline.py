"""Path of a message to its inference: requests here, samples of routes in `samples`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from gateway.domain.errors import RequestError
from gateway.domain.ports import InferenceEngine
from gateway.frontends.mqtt.inbound.limits import MessageLimits, RouteQuotas
from gateway.frontends.mqtt.inbound.requests import CALLER, Asked, Requests
from gateway.frontends.mqtt.inbound.routing import Router
from gateway.frontends.mqtt.journal.journal import SampleJournal
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.outbound.dedup import key_of
from gateway.frontends.mqtt.outbound.delivery import Debt, Delivery, Outlet
from gateway.frontends.mqtt.outbound.publish_topics import ANY_TOPIC, PublishTopics
from gateway.frontends.mqtt.outbound.results import Seen
from gateway.frontends.mqtt.outbound.runs import InferenceJob, Runs, defect
from gateway.frontends.mqtt.pipeline.samples import SampleFlow
from gateway.frontends.mqtt.pipeline.work import MessageWork
from gateway.frontends.mqtt.settings.broker import MqttSettings

_log = logging.getLogger(__name__)


class Pipeline:
    """Receiver of messages. `receive` never raises and never waits."""

    def __init__(
        self,
        engine: InferenceEngine,
        settings: MqttSettings,
        gateway_id: str,
        *,
        router: Router,
        outlet: Outlet,
        counters: Counter[str],
        journal: SampleJournal | None = None,
        idle: Callable[[], None] = lambda: None,
        seen: Seen | None = None,
        topics: PublishTopics = ANY_TOPIC,
    ) -> None:
        self._router, self._outlet, self._counters = router, outlet, counters
        self._limits = MessageLimits(settings, engine.sizes)
        self._delivery = Delivery(settings, f"edge/{gateway_id}", outlet, counters)
        self._requests = Requests(settings, gateway_id, router, engine.describe, topics)
        self._quotas = RouteQuotas.of(settings, self._delivery)
        self._runs = Runs(engine, settings, self._delivery, counters, self._pace)
        self._work = MessageWork(lambda: engine.decoding, self._runs.retry_s, self._pace)
        self._samples = SampleFlow(
            engine,
            settings,
            gateway_id,
            limits=self._limits,
            delivery=self._delivery,
            runs=self._runs,
            work=self._work,
            outlet=outlet,
            counters=counters,
            journal=journal,
            seen=seen,
            topics=topics,
        )
        self._accepting, self._journal, self._idle = True, journal, idle
        self._repeat_ns, self._unrouted_due_ns = int(settings.error_repeat_s * 1e9), 0
        if journal is not None:
            journal.changed = self._pace

    @property
    def gauges(self) -> dict[str, int]:
        """Return the numbers of queued and running jobs, and of sensors with a window."""
        queued = self._runs.queued + self._work.waiting
        return {
            "queued": queued,
            "running": self._runs.running + self._samples.pending,
            "sensors": self._samples.sensors,
        }

    def connected(self, home: str, epoch: int, *, resumed: bool) -> None:
        """Forget packet ids unless the broker resumed the session to which they belong, before its messages come."""
        if self._journal is not None:
            resumed = not self._journal.connected(home, epoch, resumed=resumed)
            self._delivery.session = self._journal.session
        if not resumed:
            self._delivery.session_began(epoch)

    def recover(self) -> None:
        """Continue with the windows of the journal. Call it once, before messages come."""
        self._samples.recover()

    def readiness_changed(self) -> None:
        """Continue with the windows of models that became available."""
        if self._accepting:
            self._samples.readiness_changed()

    def receive(self, message: Message) -> None:
        """Process one message."""
        self._counters["received"] += 1
        if not self._accepting:
            self._counters["dropped_stopping"] += 1
        elif message.retain:
            self._delivery.discard(message, "dropped_retained")
        elif self._requests.asked(message.topic):
            self._receive_request(message)
        elif not (routes := self._router.routes(message.topic)):
            self._discard_unrouted(message)
        else:
            names = {route.name for route in routes} if len(routes) > 1 else None
            for route in routes:
                own = message if names is None else replace(message, routes=names)
                own.route = route.name
                if self._quotas is None or self._quotas.admits(route, own):
                    self._samples.receive(route, own)
                else:
                    self._samples.lose(route, own)

    def resume(self) -> None:
        """Begin waiting jobs, and read messages again: the outbox has room."""
        self._runs.flush()

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more messages, and wait for those in progress. Return False if some had to be abandoned."""
        self._accepting = False
        self._samples.windows.flush()
        await self._work.cancel(held=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ended()
        abandoned = self._runs.abandon() + await self._work.cancel()
        self._samples.close()
        self._counters["abandoned"] += abandoned
        return not abandoned

    async def _ended(self) -> None:
        """Wait until no work is in progress."""
        while self._work.tasks or self._samples.pending or not self._runs.idle.is_set():
            if self._work.tasks:
                await asyncio.wait(self._work.tasks)
            await self._runs.idle.wait()
            await asyncio.sleep(0)

    def _discard_unrouted(self, message: Message) -> None:
        """Acknowledge a message that no route takes, and log it, once in `error_repeat_s`.

        A filter that covers those of several routes may match more than they do: such messages are only counted.
        """
        if self._router.is_subscribed(message.topic):
            self._delivery.discard(message, "unwanted")
            return
        self._delivery.discard(message, "dropped_unrouted")
        if message.arrived_ns >= self._unrouted_due_ns:
            self._unrouted_due_ns = message.arrived_ns + self._repeat_ns
            _log.warning("message unrouted: no route takes topic %.200r; acknowledged and dropped", message.topic)

    def _receive_request(self, message: Message) -> None:
        seen, reply = None, None
        try:
            reply = self._requests.reply(message)
            message.name = message.correlation or message.user_property("id")
            self._limits.check(message, self._requests.model(message.topic))
            seen = self._delivery.begin(key_of(message), message, reply)
            if seen is not None:
                debt = Debt(message, message.qos, reply.topic, seen, reply)
                end = partial(self._end_request, debt)
                self._work.follow(self._work.decode(debt, CALLER, self._requests.steps(message), end))
        except RequestError as refused:
            self._delivery.refuse(message, refused, seen, reply)
        except Exception:  # noqa: BLE001  a message that causes a defect must not stop the others
            self._delivery.refuse(message, defect(message), seen, reply)

    def _end_request(self, debt: Debt, decoded: Callable[[], Asked]) -> None:
        try:
            request, encode = decoded()
        except RequestError as refused:
            self._delivery.refuse_debt(debt, refused)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse_debt(debt, defect(debt.message))
        else:
            self._counters["requests"] += 1
            debt.identity = request.id
            self._runs.add(InferenceJob(request, encode, debt))

    def _pace(self) -> None:
        """Pause reading the socket while the queues are full."""
        self._samples.windows.has_room(yes=not (self._runs.full or self._outlet.full))
        self._work.calm(yes=not (self._runs.queued or self._outlet.full))
        self._outlet.pause(on=self._runs.full or self._work.full or self._samples.windows.full)
        if self._runs.idle.is_set():
            self._idle()
