"""One message: route, decode, window, infer, publish, acknowledge. Every way it can end is written here.

When it is acknowledged: a request and a single message after the broker took the answer, a sample once it is in its
window, poison after the broker took the error. OVERLOADED and what the outbox has no room for is not acknowledged:
the first is tried again here, the second comes again with the next connection. Acknowledgements go out as answers
come, not in the order of MQTT 5, 4.6: brokers match them by packet id, and one slow model would else hold up every
sensor behind it (a broker stops at about 20 unacknowledged messages).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.ports import Inference
from gateway.frontends.mqtt import answers
from gateway.frontends.mqtt.backlog import Backlog
from gateway.frontends.mqtt.backoff import delay_s
from gateway.frontends.mqtt.dedup import Dedup, key_of
from gateway.frontends.mqtt.feed import Feed, Ready
from gateway.frontends.mqtt.messages import JSON, REFUSED, Message, Publication
from gateway.frontends.mqtt.requests import Reply, Requests
from gateway.frontends.mqtt.routing import Router, topic_level
from gateway.frontends.mqtt.settings import MqttSettings

_LOG = logging.getLogger(__name__)
TRY_AGAIN_CODES = frozenset({0x80, 0x83, 0x97})
"""PUBACK: unspecified, implementation specific, quota exceeded (MQTT 5, 3.4.2.1); the others will not change."""


class Outlet(Protocol):
    """What the pipeline needs of the link to the broker."""

    def publish(self, publication: Publication) -> bool: ...
    def acknowledge(self, message: Message) -> None: ...
    def pause(self, *, on: bool) -> None: ...


@dataclass(slots=True)
class Job:
    """An inference to run, and what becomes of its answer. `owed`: the message is acknowledged by it."""

    message: Message
    request: InferRequest
    qos: int
    encode: Callable[[InferResponse], bytes]
    topic: str
    key: Hashable | None = None
    reply: Reply | None = None
    owed: bool = True
    refusals: int = 0


class Pipeline:
    """Takes messages as they come; `receive` never raises and never waits."""

    def __init__(
        self,
        inference: Inference,
        settings: MqttSettings,
        gateway_id: str,
        *,
        router: Router,
        outlet: Outlet,
        counters: Counter[str],
    ) -> None:
        self._inference, self._settings, self._router, self._outlet = inference, settings, router, outlet
        self._counters = counters
        self._home = f"edge/{gateway_id}"
        self._requests = Requests(settings, gateway_id, router)
        self._feeds = {route.name: Feed(route, inference.describe, counters) for route in settings.route}
        self._dedup = Dedup(int(settings.dedup_ttl_s * 1e9), settings.dedup_entries, settings.dedup_bytes)
        self._backlog: Backlog[Job] = Backlog(settings.max_queued, settings.max_running)
        self._tasks: set[asyncio.Task[None]] = set()
        self._complained_ns: dict[str, int] = {}
        self._accepting = True

    @property
    def gauges(self) -> dict[str, int]:
        """How much there is now of what comes and goes."""
        sensors = sum(feed.sensors for feed in self._feeds.values())
        return {"queued": len(self._backlog), "running": self._backlog.running, "sensors": sensors}

    def receive(self, message: Message) -> None:
        """Deal with one message."""
        self._counters["received"] += 1
        if not self._accepting:
            self._counters["dropped_stopping"] += 1
        elif message.retain:
            self._discard(message, "dropped_retained")
        elif self._requests.asked(message.topic):
            self._receive_request(message)
        elif (route := self._router.route(message.topic)) is None:
            self._discard(message, "dropped_unrouted")
        else:
            self._receive_sample(self._feeds[route.name], message)

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing more; wait for what is under way. False where some of it had to be given up."""
        self._accepting = False
        ends_s = time.monotonic() + timeout_s
        while self._tasks and (left_s := ends_s - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        abandoned = len(self._tasks) + len(self._backlog)
        self._backlog.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._counters["abandoned"] += abandoned
        return not abandoned

    def _receive_request(self, message: Message) -> None:
        key, reply = None, None
        try:
            reply = self._requests.reply(message)
            self._check_size(message)
            key = key_of(message)
            if self._repeated(key, message, reply):
                return
            request, encode = self._requests.read(message)
        except RequestError as refused:
            self._refuse(message, refused, key, reply)
        except Exception:  # noqa: BLE001  the message's boundary: one that meets a defect of ours must not stop the others
            self._refuse(message, _defect(message), key, reply)
        else:
            self._counters["requests"] += 1
            self._submit(Job(message, request, message.qos, encode, reply.topic, key, reply))

    def _receive_sample(self, feed: Feed, message: Message) -> None:
        key = key_of(message) if message.qos else None
        try:
            self._check_size(message)
            if self._repeated(key, message, None):
                return
            ready = feed.take(message)
        except RequestError as refused:
            self._refuse_sample(feed, message, refused, key)
        except Exception:  # noqa: BLE001  as above
            self._refuse(message, _defect(message), key, None)
        else:
            if feed.windowed:
                self._finish(message, key, b"")
                self._counters["windows"] += len(ready)
            for one in ready:
                self._submit(self._sample_job(feed, message, one, key))

    def _sample_job(self, feed: Feed, message: Message, ready: Ready, key: Hashable | None) -> Job:
        route, tensor = feed.route, ready.manifest.inputs[0].name
        identity = message.user_property("id") or uuid.uuid4().hex
        request = InferRequest(
            route.model,
            {tensor: ready.tensor},
            version=route.version,
            id=identity,
            deadline_ns=message.deadline_ns(),
            caller=f"mqtt:{route.name}",
        )
        topic = f"{self._home}/results/{route.name}/{topic_level(ready.sensor)}"
        encode = partial(answers.result, identity, ready)
        if feed.windowed:
            return Job(message, request, route.qos, encode, topic, owed=False)
        return Job(message, request, message.qos, encode, topic, key)

    def _check_size(self, message: Message) -> None:
        limit = self._settings.max_payload_bytes
        if len(message.payload) > limit:
            problem = (
                f"the payload has {len(message.payload)} bytes; at most {limit} are taken (mqtt.max_payload_bytes)"
            )
            raise RequestError(Fault.TOO_LARGE, problem)
        if len(message.topic) > self._settings.max_topic_bytes:
            raise RequestError(Fault.TOO_LARGE, f"the topic has {len(message.topic)} characters; shorten it")

    def _repeated(self, key: Hashable | None, message: Message, reply: Reply | None) -> bool:
        """Whether `message` came before. A request is answered again, since who repeats it lacks the answer; a
        sample's result was taken by the broker, so that it is only acknowledged."""
        seen = self._dedup.begin(key, message)
        if seen is None:
            return False
        self._counters["duplicates"] += 1
        if seen.answer is None:
            seen.waiting.append(message)
        elif reply is None:
            self._outlet.acknowledge(message)
        else:
            self._outlet.publish(reply.publication(seen.answer, message.qos, partial(self._repetition_taken, message)))
        return True

    def _repetition_taken(self, message: Message, _code: int) -> None:
        self._outlet.acknowledge(message)

    def _submit(self, job: Job) -> None:
        dropped = self._backlog.put(job, job.qos)
        if dropped is not None:
            self._counters["dropped_queue_full"] += 1
            self._dedup.forget(dropped.key)
        self._start_next()

    def _start_next(self) -> None:
        while (taken := self._backlog.take()) is not None:
            task = asyncio.get_running_loop().create_task(self._run(*taken))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._outlet.pause(on=self._backlog.full)

    async def _run(self, job: Job, qos: int) -> None:
        try:
            answer = job.encode(await self._infer(job))
        except RequestError as refused:
            self._refuse_job(job, refused)
        except asyncio.CancelledError:
            self._dedup.forget(job.key)
            raise
        except Exception:  # noqa: BLE001  the task's boundary: nobody awaits it
            self._refuse_job(job, _defect(job.message))
        else:
            self._answer(job, answer)
        finally:
            self._backlog.done(qos)
            self._start_next()

    async def _infer(self, job: Job) -> InferResponse:
        """Run; again where the engine is overloaded (QoS 1) or failed, until the deadline or the last attempt."""
        failures = 0
        while True:
            try:
                return await self._inference.infer(job.request)
            except RequestError as refused:
                failures += 1
                if refused.fault is Fault.OVERLOADED and _late(job):
                    raise RequestError(Fault.EXPIRED, "the device was overloaded until the message expired") from None
                if not self._tries_again(job, refused, failures):
                    raise
                self._counters["retries"] += 1
                wait_s = delay_s(failures - 1, self._settings.retry_min_s, self._settings.retry_max_s)
                await asyncio.sleep(wait_s + min(refused.retry_after_s or 0.0, self._settings.retry_max_s))

    def _tries_again(self, job: Job, refused: RequestError, failures: int) -> bool:
        if refused.fault is Fault.OVERLOADED:
            return bool(job.qos)
        return refused.fault is Fault.INTERNAL and failures < self._settings.max_attempts and not _late(job)

    def _answer(self, job: Job, payload: bytes) -> None:
        taken = partial(self._answer_taken, job, payload)
        if job.reply is not None:
            self._send(job.reply.publication(payload, job.qos, taken), job.key)
        else:
            self._send(Publication(job.topic, payload, job.qos, content_type=JSON, taken=taken), job.key)

    def _answer_taken(self, job: Job, payload: bytes, code: int) -> None:
        if code < REFUSED:
            self._counters["answered"] += 1
            if job.owed:
                self._finish(job.message, job.key, payload)
            return
        job.refusals += 1
        if code in TRY_AGAIN_CODES and job.refusals < self._settings.max_attempts:
            wait_s = delay_s(job.refusals - 1, self._settings.retry_min_s, self._settings.retry_max_s)
            asyncio.get_running_loop().call_later(wait_s, self._answer, job, payload)
            return
        problem = (
            f"the broker refuses the answer on '{job.topic}' with reason code 0x{code:02x}; mend its ACL or limits"
        )
        job.reply = None
        self._refuse_job(job, RequestError(Fault.DENIED, problem))

    def _finish(self, message: Message, key: Hashable | None, answer: bytes) -> None:
        """All that was to be done for `message` is done: acknowledge it, and its repetitions, which get the answer."""
        self._outlet.acknowledge(message)
        for repetition in self._dedup.answered(key, answer):
            self._outlet.acknowledge(repetition)

    def _refuse_job(self, job: Job, refused: RequestError) -> None:
        if refused.fault is Fault.OVERLOADED and job.reply is None:
            self._counters["dropped_overloaded"] += 1
            self._dedup.forget(job.key)
        elif job.owed:
            self._refuse(job.message, refused, job.key, job.reply, job.request.id)
        else:
            self._counters["refused"] += 1
            self._complain(job.message, refused, job.request.id, qos=job.qos)

    def _refuse_sample(self, feed: Feed, message: Message, refused: RequestError, key: Hashable | None) -> None:
        """A sample whose model is away says nothing about that sample: such errors are told now and then."""
        if refused.fault not in {Fault.NOT_FOUND, Fault.UNAVAILABLE} or not feed.windowed:
            self._refuse(message, refused, key, None)
            return
        self._counters["refused"] += 1
        self._counters["dropped_model_away"] += 1
        last_ns = self._complained_ns.get(feed.route.name)
        if last_ns is None or message.arrived_ns - last_ns >= self._settings.error_repeat_s * 1e9:
            self._complained_ns[feed.route.name] = message.arrived_ns
            self._complain(message, refused, message.user_property("id"), qos=message.qos)
        self._finish(message, key, b"")

    def _refuse(
        self, message: Message, refused: RequestError, key: Hashable | None, reply: Reply | None, identity: str = ""
    ) -> None:
        """Tell the error topic, and the asker where there is one; acknowledge when the broker has taken it."""
        self._counters["refused"] += 1
        identity = identity or message.user_property("id")
        payload = answers.error(identity, message.topic, refused)
        finish = partial(self._refusal_taken, message, key, payload)
        if reply is None:
            self._complain(message, refused, identity, qos=message.qos, key=key, taken=finish)
        else:
            self._complain(message, refused, identity, qos=message.qos)
            self._send(reply.publication(payload, message.qos, finish), key)

    def _refusal_taken(self, message: Message, key: Hashable | None, payload: bytes, _code: int) -> None:
        # Acknowledged even where the broker refuses the error as well: poison must not block its queue.
        self._finish(message, key, payload)

    def _complain(
        self,
        message: Message,
        refused: RequestError,
        identity: str,
        *,
        qos: int,
        key: Hashable | None = None,
        taken: Callable[[int], None] | None = None,
    ) -> None:
        payload = answers.error(identity, message.topic, refused)
        self._send(Publication(f"{self._home}/errors", payload, qos, content_type=JSON, taken=taken), key)

    def _discard(self, message: Message, reason: str) -> None:
        self._counters[reason] += 1
        self._outlet.acknowledge(message)

    def _send(self, publication: Publication, key: Hashable | None) -> None:
        """Publish; where there is no room, nothing came of the message: it is not acknowledged and may come again."""
        if not self._outlet.publish(publication):
            self._dedup.forget(key)


def _late(job: Job) -> bool:
    return job.request.deadline_ns is not None and time.monotonic_ns() >= job.request.deadline_ns


def _defect(message: Message) -> RequestError:
    _LOG.exception("a message on %r found a defect of the gateway", message.topic)
    return RequestError(Fault.INTERNAL, "the gateway failed at this message; its log says how, please report it")
