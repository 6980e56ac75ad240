"""Large messages are decoded outside the event loop: others go on, and a route's order holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import Any

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import finish
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.frontends.mqtt.inbound.reading import INLINE_BYTES
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.pipeline.work import MESSAGES_LIMIT, MessageWork, RouteQueues
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.broker import Mosquitto
from tests.simulators.inference import SimulatedInference
from tests.simulators.mqtt_gateway import frontend, motion, simulated, until
from tests.simulators.mqtt_peer import Peer

SINGLE = MqttRoute("single", ("single/+",), "identity_fp32", sensor="topic[1]")
WRISTS = MqttRoute("wrists", ("sensors/+/imu",), "motion", sensor="topic[1]")
ASK, REPLY, ERRORS = "edge/gw/infer/identity_fp32", "replies/one", "edge/gw/errors"
PADDING = " " * INLINE_BYTES


class HeldPool:
    """Decoding that waits for `gate`. `callers` lists who came, in order."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.callers: list[str] = []
        self.refusals = 0
        """Calls that get no thread."""

    async def run(self, caller: str, steps: Generator[None, None, Any], *, apart: bool = False) -> Any:
        assert apart
        if self.refusals:
            self.refusals -= 1
            raise RequestError(Fault.OVERLOADED, "no thread", retry_after_s=0.01)
        self.callers.append(caller)
        await self.gate.wait()
        return finish(steps)


def holding() -> tuple[SimulatedInference, HeldPool]:
    inference, pool = simulated(), HeldPool()
    inference.decoding = pool  # type: ignore[assignment]
    return inference, pool


def question(value: float, padding: str = "") -> str:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return json.dumps({"inputs": [tensor]}) + padding


@pytest.mark.asyncio
async def test_samples_behind_a_large_one_keep_their_order_and_other_routes_go_on(
    broker: Mosquitto, client: Peer
) -> None:
    inference, pool = holding()
    async with frontend(inference, broker.url, SINGLE, WRISTS) as gateway:
        await client.publish("sensors/left/imu", f"[[1, 1, 1], [2, 2, 2]{PADDING}]", 1)
        await until(lambda: pool.callers == ["mqtt:wrists"])
        for value in (3, 4):
            await client.publish("sensors/left/imu", json.dumps([value] * 3), 1)
        await client.publish("single/a", "[5]", 1)
        await client.publish(ASK, question(6), 1, ResponseTopic=REPLY)
        await client.next("edge/gw/results/single/a")
        await client.next(REPLY)
        assert gateway.counters().get("samples", 0) == 0
        pool.gate.set()
        await client.next("edge/gw/results/wrists/left")
    window = next(request.inputs["motion"].array for request in inference.requests if request.model == "motion")
    assert window[0, :, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.asyncio
async def test_a_large_request_is_answered_once_and_waited_for(broker: Mosquitto, client: Peer) -> None:
    inference, pool = holding()
    async with frontend(inference, broker.url) as gateway:
        for _ in range(2):  # the second one is a repetition
            await client.publish(
                ASK, question(7, PADDING), 1, ResponseTopic=REPLY, CorrelationData=b"7", UserProperty=("id", "7")
            )
        await until(lambda: gateway.counters().get("received") == 2)
        stopping = asyncio.create_task(gateway.stop(10))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stopping.done()
        pool.gate.set()
        await stopping
        assert json.loads((await client.next(REPLY)).payload)["outputs"][0]["data"] == [7.0]
    assert len(inference.requests) == len(pool.callers) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("topic", [ASK, "single/a", "sensors/left/imu"])
async def test_a_large_message_that_is_nonsense_is_refused_and_others_go_on(
    broker: Mosquitto, client: Peer, topic: str
) -> None:
    async with frontend(simulated(), broker.url, SINGLE, WRISTS):
        await client.publish(topic, "[1, 2" + PADDING, 1, ResponseTopic=REPLY)
        assert json.loads((await client.next(REPLY if topic == ASK else ERRORS)).payload)["fault"] == "INVALID"
        await client.publish("single/b", "[1]" + PADDING, 1)
        await client.next("edge/gw/results/single/b")


SAMPLES = 400
EACH = MqttRoute("each", ("sensors/+/imu",), "motion", sensor="topic[1]", hop_rows=1)


@pytest.mark.asyncio
async def test_windows_of_one_message_wait_for_room_and_those_behind_for_them(broker: Mosquitto, client: Peer) -> None:
    inference, most = simulated(), 0
    async with frontend(inference, broker.url, EACH, SINGLE, max_queued=8, max_running=2) as gateway:
        inference.gate.clear()
        await client.publish("sensors/left/imu", json.dumps([[value] * 3 for value in range(SAMPLES)]))
        await client.publish("sensors/left/imu", json.dumps([SAMPLES] * 3))
        await until(lambda: gateway.counters().get("windows", 0) >= 8)
        inference.gate.set()
        while len(inference.requests) < SAMPLES - 2:
            most = max(most, gateway.counters()["queued"])
            await asyncio.sleep(0)
        await until(lambda: gateway.counters().get("acknowledged") == 2)
    assert most <= 8
    windows = [request.inputs["motion"].array[0, :, 0].tolist() for request in inference.requests]
    assert windows == [[first, first + 1, first + 2, first + 3] for first in range(SAMPLES - 2)]


@pytest.mark.asyncio
async def test_a_large_request_that_gets_no_thread(broker: Mosquitto, client: Peer) -> None:
    inference, pool = holding()
    pool.gate.set()
    pool.refusals = 1
    async with frontend(inference, broker.url) as gateway:
        for qos, fault in ((0, "OVERLOADED"), (0, ""), (1, "")):  # the second one is a repetition of the first
            await client.publish(ASK, question(7, PADDING), qos, ResponseTopic=REPLY, UserProperty=("id", f"a{qos}"))
            assert json.loads((await client.next(REPLY)).payload).get("fault", "") == fault
        pool.refusals = 2
        await client.publish(ASK, question(8, PADDING), 1, ResponseTopic=REPLY)
        assert "outputs" in json.loads((await client.next(REPLY)).payload)
        pool.refusals = 10**6
        await client.publish(ASK, question(9, PADDING), 1, ResponseTopic=REPLY, MessageExpiryInterval=1)
        assert json.loads((await client.next(REPLY)).payload)["fault"] == "EXPIRED"
        await until(lambda: gateway.counters().get("acknowledged") == 3)


@pytest.mark.asyncio
async def test_a_large_sample_that_gets_no_thread_is_dropped_as_all_are_under_load(
    broker: Mosquitto, client: Peer
) -> None:
    inference, pool = holding()
    pool.gate.set()
    pool.refusals = 1
    async with frontend(inference, broker.url, SINGLE, WRISTS) as gateway:
        await client.publish("single/a", "[1]" + PADDING, 0)
        await until(lambda: gateway.counters().get("dropped_overloaded") == 1)
        await client.publish("single/a", "[2]" + PADDING, 0)
        await client.next("edge/gw/results/single/a")
        assert not gateway.counters().get("refused", 0)


@pytest.mark.asyncio
async def test_the_socket_is_left_unread_while_as_many_wait_as_may(broker: Mosquitto, client: Peer) -> None:
    inference, pool = holding()
    async with frontend(inference, broker.url, WRISTS) as gateway:
        await client.publish("sensors/left/imu", f"[[1, 1, 1]{PADDING}]", 1)
        for value in range(3 * MESSAGES_LIMIT):
            await client.publish("sensors/left/imu", json.dumps([value] * 3), 1)
        await until(lambda: gateway.counters()["queued"] >= MESSAGES_LIMIT - 1)
        assert gateway._link is not None
        assert gateway._link._main._paused
        pool.gate.set()
        await until(lambda: gateway.counters().get("samples") == 1 + 3 * MESSAGES_LIMIT)


@pytest.mark.asyncio
async def test_a_sample_whose_model_changed_meanwhile_is_read_again(broker: Mosquitto, client: Peer) -> None:
    inference, pool = holding()
    async with frontend(inference, broker.url, WRISTS, SINGLE) as gateway:
        await client.publish("sensors/left/imu", f"[[1, 1, 1], [2, 2, 2]{PADDING}]", 1)
        await until(lambda: pool.callers == ["mqtt:wrists"])
        inference.manifests["motion"] = motion(size_rows=2)
        await client.publish("sensors/left/imu", "[3, 3, 3]", 1)
        pool.gate.set()
        await client.next("edge/gw/results/wrists/left")
        await until(lambda: gateway.counters().get("acknowledged") == 2)
    assert inference.requests[0].inputs["motion"].array[0, :, 0].tolist() == [1, 2]
    assert not gateway.counters().get("refused", 0)


def test_so_many_large_messages_and_no_more() -> None:
    large, small = RouteQueues(), [Message("t", b"%d" % index) for index in range(MESSAGES_LIMIT)]
    assert not large.wait("r", small[0])
    large.begin("r")
    large.begin("")
    assert all(large.wait("r", each) for each in small[2:])
    assert (large.full, large.held_bytes) == (True, 0)
    assert large.hold("r") == small[2:]
    assert (large.full, large.held_bytes >= len(small[2:])) == (False, True)
    large.begin("r")
    assert large.take("r") is None
    large.end("r")
    assert [large.take("r") for _ in range(MESSAGES_LIMIT - 1)] == [*small[2:], None]
    assert (large.waiting, large.held_bytes) == (0, 0)
    large.end("r")
    assert not large.wait("r", small[0])


@pytest.mark.asyncio
async def test_samples_behind_others_begin_although_jobs_always_wait() -> None:
    """Steady load of another route keeps the queue from becoming empty."""
    begun, done = list[bytes](), asyncio.Event()

    def begin(message: Message) -> None:
        begun.append(message.payload)
        if len(begun) == 3:
            done.set()

    def changed() -> None:
        work.calm.clear()

    work = MessageWork(lambda: DecodePool(EngineSettings()), lambda *_: 0.0, changed)
    work.follow(asyncio.sleep(0), "r", begin)
    assert all(work.wait("r", Message("t", b"%d" % number)) for number in range(3))
    await done.wait()
    assert begun == [b"0", b"1", b"2"]
