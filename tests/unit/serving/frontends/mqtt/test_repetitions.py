"""Messages that come again while their first copy is under way, waits, or is no longer remembered."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import REFUSED, Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.pipeline.pipeline import MessagePipeline
from gateway.serving.frontends.mqtt.session.sender import PACKET_TOO_LARGE
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.constants import settings_with
from tests.simulators.inference import SimulatedInference, identity
from tests.simulators.mqtt_gateway import FAST, motion

pytestmark = pytest.mark.asyncio
QUESTION = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}'
NOT_AUTHORIZED, QUOTA_EXCEEDED = 0x87, 0x97
SURE = 7
"""Packet id of the copy at QoS 1."""


class Outlet:
    """Broker that takes at once what is published, or when it is told to `take` while `held`.

    While it is `away`, it takes nothing at QoS 0, like one whose SUBACK is
    awaited. It refuses what goes to the asker with each of `codes` once.
    """

    full = False
    receives_since_ns = 0

    def __init__(self) -> None:
        self.sent: list[OutgoingPublish] = []
        self.acknowledged: list[int] = []
        self.codes: list[int] = []
        self.away, self.held = False, False
        self._waiting: list[OutgoingPublish] = []

    def publish(self, publication: OutgoingPublish) -> bool:
        if self.away and not publication.qos:
            return False
        self._waiting.append(publication)
        if not self.held:
            self.take()
        return True

    def take(self) -> None:
        """Take what waits, in order."""
        taken, self._waiting = self._waiting, []
        for publication in taken:
            code = self.codes.pop(0) if self.codes and publication.topic == "r" else 0
            if code < REFUSED:
                self.sent.append(publication)
            if publication.taken:
                publication.taken(code)

    def acknowledge(self, message: Message) -> None:
        if message.qos:
            self.acknowledged.append(message.mid)

    def answers(self, name: bytes) -> list[tuple[int, bool]]:
        """Return the QoS of each answer to the request so named, and whether it is one and no refusal."""
        return [(one.qos, b"outputs" in one.payload) for one in self.sent if one.correlation == name]

    def pause(self, *, on: bool) -> None: ...


class Bench:
    """A pipeline between simulated inference and such a broker; one inference runs, one QoS 0 job waits."""

    def __init__(self, *routes: MqttRoute, **more: Any) -> None:
        self.inference = SimulatedInference([identity(Datatype.FP32), motion()])
        self.inference.gate.clear()
        self.outlet, self.counters = Outlet(), Counter[str]()
        settings = settings_with(
            MqttSettings(url="mqtt://x", route=routes), **(FAST | {"max_running": 1, "max_queued": 1} | more)
        )
        context = RouteContext(self.inference, settings, "gw", self.outlet, self.counters)
        self.pipeline = MessagePipeline(context, Router(routes, "gw"))

    def ask(self, name: bytes, qos: int = 0, *, at_s: float = 0.0, mid: int = SURE, body: bytes = QUESTION) -> None:
        topic, at_ns = "edge/gw/infer/identity_fp32", int(at_s * 1e9)
        self.pipeline.receive(
            Message(topic, body, qos=qos, mid=mid, correlation=name, response_topic="r", arrived_ns=at_ns)
        )

    async def finish_running(self) -> None:
        self.inference.gate.set()
        while self.pipeline.gauges["running"]:
            await asyncio.sleep(0)

    async def until_acknowledged(self) -> None:
        async with asyncio.timeout(15.0):
            while not self.outlet.acknowledged:
                await asyncio.sleep(0)

    async def finish(self) -> None:
        self.inference.gate.set()
        assert await self.pipeline.drain(15.0)


async def test_who_asks_again_at_qos_1_is_answered_though_the_qos_0_copy_is_displaced() -> None:
    bench = Bench()
    bench.ask(b"runs")
    await bench.inference.until(lambda: len(bench.inference.requests) == 1)
    bench.ask(b"mine")
    bench.ask(b"mine", qos=1)
    bench.ask(b"other")
    assert bench.outlet.acknowledged == []
    await bench.finish()
    assert bench.outlet.answers(b"mine") == [(1, True)]
    assert bench.outlet.acknowledged == [SURE]
    assert (len(bench.inference.requests), bench.counters["dropped_queue_full"]) == (3, 0)


async def test_a_qos_0_copy_that_nobody_asked_for_again_is_displaced() -> None:
    bench = Bench()
    for name in (b"runs", b"mine", b"other"):
        bench.ask(name)
    await bench.inference.until(lambda: len(bench.inference.requests) == 1)
    for name in (b"mine", b"other"):
        bench.ask(name)
    await bench.finish()
    assert (bench.outlet.answers(b"mine"), bench.counters["dropped_queue_full"]) == ([], 3)
    assert bench.outlet.answers(b"other") == [(0, True)]


async def test_who_asks_again_at_qos_1_is_not_refused_for_an_overload_that_passes() -> None:
    bench = Bench()
    bench.ask(b"mine")
    await bench.inference.until(lambda: len(bench.inference.requests) == 1)
    bench.ask(b"mine", qos=1)
    bench.inference.fault = RequestError(Fault.OVERLOADED, "full")
    bench.inference.gate.set()
    await bench.inference.until(lambda: len(bench.inference.requests) == 3)
    bench.inference.fault = None
    await bench.finish()
    assert bench.outlet.answers(b"mine") == [(1, True)]
    assert bench.outlet.acknowledged == [SURE]


@pytest.mark.parametrize("held", [False, True])
async def test_who_asks_again_at_qos_1_is_answered_though_qos_0_was_refused_for_an_overload(held: bool) -> None:
    bench = Bench()
    bench.outlet.held, bench.inference.fault = held, RequestError(Fault.OVERLOADED, "full")
    bench.ask(b"mine")
    await bench.finish_running()
    bench.inference.fault = None
    bench.ask(b"mine", qos=1)
    bench.outlet.held = False
    bench.outlet.take()
    await bench.finish()
    assert bench.outlet.answers(b"mine") == [(0, False), (1, True)]
    assert bench.outlet.acknowledged == [SURE]


@pytest.mark.parametrize("fault", [None, RequestError(Fault.NOT_FOUND, "no such model")])
async def test_who_asks_again_at_qos_1_is_answered_where_qos_0_is_dropped(fault: RequestError | None) -> None:
    bench = Bench()
    bench.ask(b"mine")
    await bench.inference.until(lambda: len(bench.inference.requests) == 1)
    bench.ask(b"mine", qos=1)
    bench.outlet.away, bench.inference.fault = True, fault
    await bench.finish()
    assert bench.outlet.answers(b"mine") == [(1, fault is None)]
    assert bench.outlet.acknowledged == [SURE]


@pytest.mark.parametrize("fault", [None, RequestError(Fault.NOT_FOUND, "no such model")])
async def test_who_asks_again_at_qos_1_is_answered_though_an_answer_at_qos_0_is_on_its_way(
    fault: RequestError | None,
) -> None:
    bench = Bench()
    bench.outlet.held, bench.inference.fault = True, fault
    bench.ask(b"mine")
    await bench.finish_running()
    for mid in (1, 2):
        bench.ask(b"mine", qos=1, mid=mid)
    bench.outlet.take()
    assert bench.outlet.acknowledged == []
    bench.outlet.take()
    assert bench.outlet.answers(b"mine") == [(0, fault is None), (1, fault is None)]
    assert sorted(bench.outlet.acknowledged) == [1, 2]
    assert len(bench.inference.requests) == 1


async def test_who_asks_again_at_qos_1_is_refused_at_qos_1_though_a_refusal_at_qos_0_is_on_its_way() -> None:
    bench = Bench()
    bench.outlet.held = True
    for qos in (0, 1):
        bench.ask(b"mine", qos=qos, body=b"not JSON")
    bench.outlet.take()
    assert bench.outlet.acknowledged == []
    bench.outlet.take()
    assert bench.outlet.answers(b"mine") == [(0, False), (1, False)]
    assert bench.outlet.acknowledged == [SURE]


@pytest.mark.parametrize("body", [QUESTION, b"not JSON"], ids=["an answer", "a refusal"])
async def test_a_repetition_is_answered_again_though_the_broker_would_not_take_it_at_first(body: bytes) -> None:
    bench = Bench()
    bench.ask(b"mine", body=body)
    await bench.finish_running()
    bench.outlet.codes = [QUOTA_EXCEEDED]
    bench.ask(b"mine", qos=1, body=body)
    assert bench.outlet.acknowledged == []
    await bench.until_acknowledged()
    assert bench.outlet.answers(b"mine") == [(0, body == QUESTION), (1, body == QUESTION)]


async def test_a_refusal_is_told_though_the_broker_would_not_take_it_at_first() -> None:
    bench = Bench()
    bench.outlet.codes = [QUOTA_EXCEEDED]
    bench.ask(b"mine", qos=1, body=b"not JSON")
    assert bench.outlet.acknowledged == []
    await bench.until_acknowledged()
    assert bench.outlet.answers(b"mine") == [(1, False)]


@pytest.mark.parametrize("again", [False, True])
async def test_who_asks_at_qos_1_for_more_than_the_broker_carries_is_told_so(again: bool) -> None:
    bench = Bench()
    bench.ask(b"mine", qos=1 - again)
    await bench.inference.until(lambda: len(bench.inference.requests) == 1)
    bench.outlet.codes = [PACKET_TOO_LARGE]
    if again:
        bench.outlet.codes, bench.outlet.held = [PACKET_TOO_LARGE] * 2, True
        await bench.finish_running()
        bench.ask(b"mine", qos=1)
        bench.outlet.take()
        bench.outlet.held = False
        bench.outlet.take()
    await bench.finish()
    assert bench.outlet.answers(b"mine") == [(1, False)]
    assert bench.outlet.acknowledged == [SURE]


async def test_what_the_broker_never_takes_is_told_on_the_error_topic_and_blocks_nothing() -> None:
    bench = Bench(max_attempts=2)
    bench.outlet.codes = [NOT_AUTHORIZED] * 2
    bench.ask(b"mine", qos=1)
    await bench.finish()
    assert [(one.topic, one.qos) for one in bench.outlet.sent] == [("edge/gw/errors", 1)]
    assert bench.outlet.acknowledged == [SURE]


async def test_a_message_that_is_no_longer_remembered_acknowledges_all_that_waited_for_it() -> None:
    bench = Bench(dedup_ttl_s=120.0)
    bench.ask(b"mine", 1, mid=1)
    bench.ask(b"mine", 1, mid=2)
    bench.ask(b"mine", 1, at_s=121.0, mid=3)
    bench.ask(b"mine", 1, at_s=122.0, mid=4)
    await bench.finish()
    assert bench.outlet.answers(b"mine") == [(1, True), (1, True)]
    assert sorted(bench.outlet.acknowledged) == [1, 2, 3, 4]


async def test_answers_to_messages_that_were_no_longer_remembered_displace_no_others() -> None:
    bench = Bench(dedup_ttl_s=120.0, dedup_bytes=1000)
    for turn in range(10):
        bench.inference.gate.clear()
        bench.ask(b"mine", 1, at_s=turn * 1000.0)
        bench.ask(b"mine", 1, at_s=turn * 1000.0 + 121)
        bench.inference.gate.set()
        count = 2 * (turn + 1)
        while len(bench.outlet.answers(b"mine")) < count:
            await asyncio.sleep(0)
    bench.ask(b"mine", 1, at_s=9122.0)
    await bench.finish()
    assert len(bench.inference.requests) == 20
    assert bench.counters["duplicates"] == 1
