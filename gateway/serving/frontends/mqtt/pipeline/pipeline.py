"""Path of a message to its inference: requests here, samples of routes in `samples`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from gateway.common.domain.errors import RequestError
from gateway.common.timeouts import timeout
from gateway.serving.frontends.mqtt.inbound.limits import MessageLimits, RouteQuotas
from gateway.serving.frontends.mqtt.inbound.requests import CALLER, Asked, Requests
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.dedup import key_of
from gateway.serving.frontends.mqtt.outbound.delivery import Debt, Delivery
from gateway.serving.frontends.mqtt.outbound.runs import InferenceJob, Runs, defect
from gateway.serving.frontends.mqtt.pipeline.samples import SampleFlow
from gateway.serving.frontends.mqtt.pipeline.work import MessageWork

_log = logging.getLogger(__name__)


class MessagePipeline:
    """Receiver of messages. `receive` never raises and never waits."""

    def __init__(self, context: RouteContext, router: Router, idle: Callable[[], None] = lambda: None) -> None:
        settings, engine = context.settings, context.engine
        self._router, self._outlet, self._counters = router, context.outlet, context.counters
        self._limits = MessageLimits(settings, engine.sizes)
        self._delivery = Delivery(context)
        self._requests = Requests(settings, context.gateway_id, router, engine.describe, context.topics)
        self._quotas = RouteQuotas.of(settings, self._delivery)
        self._runs = Runs(context, self._delivery, self._pace)
        self._work = MessageWork(lambda: engine.decoding, self._runs.retry_s, self._pace)
        self._samples = SampleFlow(context, self._limits, self._delivery, self._runs, self._work)
        self._accepting, self._journal, self._idle = True, context.journal, idle
        self._repeat_ns, self._unrouted_due_ns = int(settings.error_repeat_s * 1e9), 0
        if self._journal is not None:
            self._journal.changed = self._pace

    @property
    def gauges(self) -> dict[str, int]:
        """Return the numbers of queued and running jobs, and of sensors with a window."""
        queued = len(self._runs.backlog) + self._work.queues.waiting
        running = self._runs.running + self._samples.pending
        return {"queued": queued, "running": running, "sensors": self._samples.sensors}

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
        elif message.topic.startswith(self._requests.prefix):
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
        kept, idle = self._samples.windows.kept, self._runs.idle
        self._samples.windows.flush()
        await self._work.cancel(held=True)
        with suppress(TimeoutError):
            async with timeout(timeout_s):
                while self._work.tasks or self._samples.pending or not (kept.is_set() and idle.is_set()):
                    if self._work.tasks:
                        await asyncio.wait(self._work.tasks)
                    await kept.wait()
                    await idle.wait()
                    await asyncio.sleep(0)
        abandoned = self._runs.abandon() + await self._work.cancel()
        self._samples.close()
        self._counters["abandoned"] += abandoned
        return not abandoned

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
        outlet_full, runs_full = self._outlet.full, self._runs.backlog.full
        has_room, is_calm = self._samples.windows.room, self._work.calm
        has_room.clear() if outlet_full or runs_full else has_room.set()
        is_calm.clear() if outlet_full or len(self._runs.backlog) else is_calm.set()
        journal_full = self._journal is not None and self._journal.full
        self._outlet.pause(on=runs_full or self._work.queues.full or journal_full)
        if self._runs.idle.is_set():
            self._idle()
