"""Path of a message to its inference: route, decode, window, submit. `runs` and `delivery` do the rest."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.ports import InferenceEngine
from gateway.domain.tensor import Steps, finish
from gateway.frontends.mqtt.delivery.dedup import SeenMessage, key_of
from gateway.frontends.mqtt.delivery.delivery import Debt, Delivery, Outlet
from gateway.frontends.mqtt.delivery.jobs import InferenceJob, RemainingWindows, expired, passed
from gateway.frontends.mqtt.delivery.runs import Runs, defect
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.route_results import RouteResults, Seen
from gateway.frontends.mqtt.routes.feed import MessageDecoding, Ready, RouteDecoder, SensorSample
from gateway.frontends.mqtt.routes.large_messages import INLINE_BYTES, LargeMessages
from gateway.frontends.mqtt.routes.requests import CALLER, Asked, Requests
from gateway.frontends.mqtt.routes.routing import Router
from gateway.frontends.mqtt.settings import MqttSettings

WINDOWS_LIMIT = 64
"""Windows that are submitted at once: about 0.5 ms."""
Later = Coroutine[Any, Any, None]
"""Work on a message that continues while other messages are received."""
End = Callable[[Callable[[], Any]], Later | None]
"""Function that completes a message; its argument returns what was decoded, or raises."""


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
        seen: Seen | None = None,
    ) -> None:
        self._engine, self._settings, self._router, self._outlet = engine, settings, router, outlet
        self._counters = counters
        self._delivery = Delivery(settings, f"edge/{gateway_id}", outlet, counters)
        self._requests = Requests(settings, gateway_id, router)
        self._feeds = {route.name: RouteDecoder(route, engine.describe, counters) for route in settings.route}
        for feed in self._feeds.values():
            feed.prepare()
        self._results = {
            route.name: RouteResults(
                route, gateway_id, outlet=outlet, counters=counters, limit_bytes=settings.max_result_bytes, seen=seen
            )
            for route in settings.route
        }
        self._runs = Runs(engine, settings, self._delivery, counters, self._pace)
        self._large = LargeMessages()
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        """Set while the backlog has room."""
        self._complained_ns: dict[str, int] = {}
        self._accepting = True

    @property
    def gauges(self) -> dict[str, int]:
        """Return the numbers of queued and running jobs, and of sensors with a window."""
        sensors = sum(feed.sensors for feed in self._feeds.values())
        queued = self._runs.queued + self._large.waiting
        return {"queued": queued, "running": self._runs.running, "sensors": sensors}

    def receive(self, message: Message) -> None:
        """Process one message."""
        self._counters["received"] += 1
        if not self._accepting:
            self._counters["dropped_stopping"] += 1
        elif message.retain:
            self._delivery.discard(message, "dropped_retained")
        elif self._requests.asked(message.topic):
            self._receive_request(message)
        elif (route := self._router.route(message.topic)) is None:
            self._delivery.discard(message, "dropped_unrouted")
        else:
            self._receive_sample(self._feeds[route.name], message)

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more messages, and wait for those in progress. Return False if some had to be abandoned."""
        self._accepting = False
        for results in self._results.values():
            results.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ended()
        abandoned = len(self._tasks) + self._large.waiting + self._runs.abandon()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._counters["abandoned"] += abandoned
        return not abandoned

    async def _ended(self) -> None:
        """Wait until no work is in progress."""
        while self._tasks or self._runs.running:
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._runs.idle.wait()

    def _receive_request(self, message: Message) -> None:
        seen, reply = None, None
        try:
            reply = self._requests.reply(message)
            self._check_size(message, self._requests.model(message.topic))
            seen = self._delivery.begin(key_of(message), message, reply)
            if seen is not None:
                debt = Debt(message, message.qos, reply.topic, seen, reply)
                end = partial(self._end_request, debt)
                self._follow(self._decode(debt, CALLER, self._requests.steps(message), end))
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

    def _receive_sample(self, feed: RouteDecoder, message: Message) -> None:
        """Begin with a sample unless another one of its route is still being decoded: samples keep their order."""
        if self._large.wait(feed.route.name, message):
            self._pace()
        else:
            self._begin_sample(feed, message)

    def _begin_sample(self, feed: RouteDecoder, message: Message) -> None:
        seen = None
        try:
            self._check_size(message, feed.route.model)
            seen = self._delivery.begin(key_of(message) if message.qos else None, message)
            if seen is not None:
                self._follow(self._read_sample(feed, Debt(message, message.qos, "", seen)), feed)
        except RequestError as refused:
            self._refuse_sample(feed, message, refused, seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(message, defect(message), seen)

    def _read_sample(self, feed: RouteDecoder, debt: Debt) -> Later | None:
        reading = feed.begin(debt.message)
        end = partial(self._end_sample, feed, debt, reading)
        return self._decode(debt, f"mqtt:{feed.route.name}", feed.steps(debt.message, reading), end)

    def _end_sample(
        self, feed: RouteDecoder, debt: Debt, reading: MessageDecoding, decoded: Callable[[], SensorSample]
    ) -> Later | None:
        try:
            sample = decoded()
            if not feed.fits(reading):
                return self._read_sample(feed, debt)
            return self._complete_sample(feed, debt, reading, feed.complete(debt.message, reading, sample))
        except RequestError as refused:
            if refused.fault is Fault.OVERLOADED:
                self._delivery.refuse_debt(debt, refused)
            else:
                self._refuse_sample(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        return None

    def _complete_sample(
        self, feed: RouteDecoder, debt: Debt, reading: MessageDecoding, ready: Iterator[Ready]
    ) -> Later | None:
        left = RemainingWindows(ready, next(ready, None))
        if reading.windows is None and left.following is not None:
            self._runs.add(self._sample_job(feed, debt.message, left.following, debt.seen))
        elif not self._submit_windows(feed, debt.message, left):
            return self._submit_rest(feed, debt, left)
        else:
            self._delivery.finish(debt.message, debt.seen)
        return None

    def _submit_windows(self, feed: RouteDecoder, message: Message, left: RemainingWindows) -> bool:
        """Submit windows, but not more than the backlog has room for, or WINDOWS_LIMIT. Return True if none is left."""
        for count in range(WINDOWS_LIMIT):
            if left.following is None or (count and feed.route.qos and self._runs.full):
                break
            window = cast("Ready", left.take())
            self._counters["windows"] += 1
            self._runs.add(self._sample_job(feed, message, window, None))
        return left.following is None

    async def _submit_rest(self, feed: RouteDecoder, debt: Debt, left: RemainingWindows) -> None:
        """Submit the other windows of a message as the backlog has room. At QoS 0 it drops the oldest instead."""
        try:
            while left.following is not None:
                await asyncio.sleep(0)
                if feed.route.qos:
                    await self._room.wait()
                self._submit_windows(feed, debt.message, left)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        else:
            self._delivery.finish(debt.message, debt.seen)

    def _decode(self, debt: Debt, caller: str, steps: Steps[Any], end: End) -> Later | None:
        """Decode a message, and call `end`. Return the work that is left: a large message is decoded on a thread."""
        if len(debt.message.payload) <= INLINE_BYTES:
            return end(partial(finish, steps))
        return self._decode_apart(debt, caller, steps, end)

    async def _decode_apart(self, debt: Debt, caller: str, steps: Steps[Any], end: End) -> None:
        decoding = asyncio.ensure_future(self._decoded(debt, caller, steps))
        try:
            await asyncio.wait({decoding})
        finally:
            decoding.cancel()
        later = end(decoding.result)
        if later is not None:
            await later

    async def _decoded(self, debt: Debt, caller: str, steps: Steps[Any]) -> Any:
        """Decode on a thread. At QoS 1, try again until one can start or the message expires."""
        failures = 0
        while True:
            try:
                return await self._engine.decoding.run(caller, steps, apart=True)
            except RequestError as refused:
                if refused.fault is not Fault.OVERLOADED or not debt.make_sure():
                    raise
                failures += 1
                if passed(debt.message.deadline_ns()):
                    raise expired() from None
                await asyncio.sleep(self._runs.retry_s(refused, failures))

    def _follow(self, later: Later | None, feed: RouteDecoder | None = None) -> None:
        """Begin the work that is left; samples of the same route wait for it."""
        if later is not None:
            self._large.begin(feed.route.name if feed else "")
            self._begin_task(self._finish_apart(later, feed))
            self._pace()

    async def _finish_apart(self, later: Later, feed: RouteDecoder | None) -> None:
        """Finish a message; then continue with the samples of its route that waited behind it."""
        await later
        for behind in self._large.end(feed.route.name if feed else ""):
            if feed is not None:
                self._receive_sample(feed, behind)
        self._pace()

    def _begin_task(self, work: Later) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sample_job(self, feed: RouteDecoder, message: Message, ready: Ready, seen: SeenMessage | None) -> InferenceJob:
        route, tensor = feed.route, ready.manifest.inputs[0].name
        identity = message.user_property("id") or uuid.uuid4().hex
        request = InferRequest(
            route.model,
            {tensor: ready.tensor},
            version=route.version,
            id=identity,
            outputs=feed.requested,
            deadline_ns=message.deadline_ns(),
            caller=f"mqtt:{route.name}",
        )
        qos = route.qos if feed.windowed else message.qos
        debt = Debt(message, qos, "", seen, identity=identity)
        return InferenceJob(request, partial(self._result, feed, debt, ready), debt)

    def _result(self, feed: RouteDecoder, debt: Debt, ready: Ready, response: InferResponse) -> bytes | None:
        plan = feed.plan(ready, response.version)
        return self._results[feed.route.name].encode(debt, ready, plan, response)

    def _refuse_sample(
        self, feed: RouteDecoder, message: Message, refused: RequestError, seen: SeenMessage | None
    ) -> None:
        """Refuse a sample.

        If only the model of its window is unavailable, the error is published once per `error_repeat_s`.
        """
        if refused.fault not in {Fault.NOT_FOUND, Fault.UNAVAILABLE} or not feed.windowed:
            self._delivery.refuse(message, refused, seen)
            return
        self._counters["dropped_model_away"] += 1
        last_ns = self._complained_ns.get(feed.route.name)
        if last_ns is None or message.arrived_ns - last_ns >= self._settings.error_repeat_s * 1e9:
            self._complained_ns[feed.route.name] = message.arrived_ns
            self._delivery.complain(message, refused, message.user_property("id"), message.qos)
        self._delivery.finish(message, seen)

    def _check_size(self, message: Message, model: str) -> None:
        limit, size = self._settings.max_payload_bytes, len(message.payload)
        most = self._most_bytes(model)
        if most is not None and most < min(size, limit):
            problem = f"the payload has {size} bytes; the shapes and rows of model '{model:.200}' take at most {most}"
            raise RequestError(Fault.TOO_LARGE, problem)
        if size > limit:
            problem = f"the payload has {size} bytes; at most {limit} are taken (mqtt.max_payload_bytes)"
            raise RequestError(Fault.TOO_LARGE, problem)
        if len(message.topic) > self._settings.max_topic_bytes:
            raise RequestError(Fault.TOO_LARGE, f"the topic has {len(message.topic)} characters; shorten it")

    def _most_bytes(self, model: str) -> int | None:
        """Return the largest payload that a model accepts; None if there is no limit or the model is unavailable."""
        try:
            return self._engine.sizes(model).json_bytes
        except RequestError:
            return None  # the message is refused with this error later

    def _pace(self) -> None:
        """Pause reading the socket while the queues are full."""
        self._room.clear() if self._runs.full else self._room.set()
        self._outlet.pause(on=self._runs.full or self._large.full)
