"""Request/response over a real broker: answers, refusals, deadlines, repetitions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from tests.simulators.broker import Mosquitto
from tests.simulators.inference import VARIANT, SimulatedInference
from tests.simulators.mqtt_gateway import frontend, simulated, until
from tests.simulators.mqtt_peer import Peer, peer
from tests.simulators.writer import inputs, words
from tests.simulators.writing import sessions, writing

pytestmark = pytest.mark.asyncio
ASK = "edge/gw/infer/identity_fp32"
ERRORS = "edge/gw/errors"
REPLY = "replies/one"


def question(values: list[float] | None = None, **more: Any) -> str:
    values = [1.0, 2.0] if values is None else values
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return json.dumps({"inputs": [tensor], **more})


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_request_is_answered_on_its_response_topic(broker: Mosquitto, client: Peer, qos: int) -> None:
    async with frontend(simulated(), broker.url):
        await client.publish(ASK, question(id="7"), qos, ResponseTopic=REPLY, CorrelationData=b"\x00\xff")
        answer = await client.next(REPLY)
    assert answer.properties.CorrelationData == b"\x00\xff"
    assert answer.properties.ContentType == "application/json"
    body = json.loads(answer.payload)
    assert body["outputs"][0]["data"] == [1.0, 2.0]
    assert body["id"] == "7"


async def test_the_version_may_stand_in_the_topic(broker: Mosquitto, client: Peer) -> None:
    async with frontend(simulated(), broker.url):
        await client.publish(ASK + "/1", question(), ResponseTopic=REPLY)
        assert (await client.next_json(REPLY))["model_version"] == "1"
        await client.publish(ASK + "/2", question(), ResponseTopic=REPLY)
        assert (await client.next_json(REPLY))["fault"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("topic", "body", "fault"),
    [
        (ASK, '{"inputs": [', "INVALID"),
        (ASK, "[]", "INVALID"),
        ("edge/gw/infer/nobody", question(), "NOT_FOUND"),
        ("edge/gw/infer/a/b/c", question(), "INVALID"),
        (ASK, " " * 5000, "TOO_LARGE"),
    ],
)
async def test_a_refusal_goes_to_the_asker_and_to_the_error_topic(
    broker: Mosquitto, client: Peer, topic: str, body: str, fault: str
) -> None:
    async with frontend(simulated(), broker.url, max_payload_bytes=4000) as gateway:
        await client.publish(topic, body, ResponseTopic=REPLY, CorrelationData=b"c")
        refusal = await client.next(REPLY)
        complaint = await client.next_json(ERRORS)
        await until(lambda: gateway.counters().get("acknowledged") == 1)
    assert refusal.properties.CorrelationData == b"c"
    assert json.loads(refusal.payload)["fault"] == complaint["fault"] == fault
    assert complaint.keys() >= {"id", "topic", "fault", "message"}
    assert complaint["topic"] == topic


async def test_a_payload_larger_than_its_model_takes_is_not_read(broker: Mosquitto, client: Peer) -> None:
    """The input has 4 elements in all, as JSON 256 bytes."""
    x, y = (TensorSpec(name, Datatype.FP32, (1, 4)) for name in "xy")
    inference = SimulatedInference([ModelManifest("small", "1", (x,), (y,), (VARIANT,))])
    async with frontend(inference, broker.url):
        await client.publish("edge/gw/infer/small", " " * 65_793, ResponseTopic=REPLY)
        refusal = await client.next_json(REPLY)
    assert refusal["fault"] == "TOO_LARGE"
    assert "the shapes and rows of model 'small' take at most 65792" in refusal["message"]


@pytest.mark.parametrize(
    ("response_topic", "fault"),
    [
        (None, "INVALID"),
        ("elsewhere/one", "DENIED"),
        ("edge/gw/infer/identity_fp32", "DENIED"),
        ("edge/gw/status", "DENIED"),
    ],
)
async def test_an_answer_goes_nowhere_else(
    broker: Mosquitto, client: Peer, response_topic: str | None, fault: str
) -> None:
    properties = {} if response_topic is None else {"ResponseTopic": response_topic}
    async with frontend(simulated(), broker.url, response_prefixes=("replies/", "edge/gw/")) as gateway:
        await client.publish(ASK, question(), **properties)
        assert (await client.next_json(ERRORS))["fault"] == fault
        await until(lambda: gateway.counters().get("acknowledged") == 1)
        assert gateway.counters()["refused"] == 1


async def test_wildcards_in_a_response_topic_are_never_published_to(broker: Mosquitto, client: Peer) -> None:
    async with frontend(simulated(), broker.url) as gateway, peer(broker.port) as sly:
        await sly.publish(ASK, question(), ResponseTopic="replies/#")
        assert (await client.next_json(ERRORS))["fault"] == "INVALID"
        await until(lambda: gateway.counters().get("acknowledged") == 1)


async def test_a_request_that_expires_is_told_so(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.fault = RequestError(Fault.OVERLOADED, "full")
    async with frontend(inference, broker.url):
        await client.publish(ASK, question(), ResponseTopic=REPLY, MessageExpiryInterval=1)
        assert (await client.next_json(REPLY))["fault"] == "EXPIRED"
    assert inference.requests[0].deadline_ns is not None


async def test_overload_is_not_acknowledged_but_tried_again(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.fault = RequestError(Fault.OVERLOADED, "full")
    async with frontend(inference, broker.url) as gateway:
        await client.publish(ASK, question(), ResponseTopic=REPLY)
        await until(lambda: gateway.counters().get("retries", 0) >= 3)
        assert "acknowledged" not in gateway.counters()
        inference.fault = None
        assert "outputs" in await client.next_json(REPLY)
        await until(lambda: gateway.counters().get("acknowledged") == 1)


async def test_overload_at_qos_0_is_told_at_once(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.fault = RequestError(Fault.OVERLOADED, "full")
    async with frontend(inference, broker.url):
        await client.publish(ASK, question(), 0, ResponseTopic=REPLY)
        assert (await client.next_json(REPLY))["fault"] == "OVERLOADED"


async def test_a_failing_run_is_tried_three_times_and_then_is_poison(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.fault = RequestError(Fault.INTERNAL, "the run raised")
    async with frontend(inference, broker.url):
        await client.publish(ASK, question(), ResponseTopic=REPLY)
        assert (await client.next_json(REPLY))["fault"] == "INTERNAL"
    assert len(inference.requests) == 3


async def test_a_repeated_question_gets_its_answer_again_without_a_run(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    async with frontend(inference, broker.url) as gateway:
        for _ in range(2):
            await client.publish(ASK, question(), ResponseTopic=REPLY, CorrelationData=b"same")
            assert (await client.next_json(REPLY))["outputs"][0]["data"] == [1.0, 2.0]
            await until(lambda: gateway.counters()["queued"] == gateway.counters()["outbox"] == 0)
        await client.publish(ASK, question([3.0]), ResponseTopic=REPLY, CorrelationData=b"same")
        assert (await client.next_json(REPLY))["outputs"][0]["data"] == [3.0]
        assert gateway.counters()["duplicates"] == 1
    assert len(inference.requests) == 2


async def test_a_question_repeated_while_it_runs_is_answered_once(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.gate.clear()
    async with frontend(inference, broker.url) as gateway:
        for _ in range(2):
            await client.publish(ASK, question(), ResponseTopic=REPLY, CorrelationData=b"same")
        await until(lambda: gateway.counters().get("duplicates") == 1)
        inference.gate.set()
        await client.next(REPLY)
        await until(lambda: gateway.counters().get("acknowledged") == 2)
    assert len(inference.requests) == 1


async def test_answers_come_side_by_side(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.gate.clear()
    async with frontend(inference, broker.url):
        for index in range(10):
            await client.publish(ASK, question([float(index)]), ResponseTopic=REPLY, CorrelationData=b"%d" % index)
        await until(lambda: len(inference.requests) == 10)
        inference.gate.set()
        found = {(await client.next(REPLY)).properties.CorrelationData for _ in range(10)}
    assert found == {b"%d" % index for index in range(10)}


async def test_more_than_may_wait_is_left_with_the_broker(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.gate.clear()
    async with frontend(inference, broker.url, max_queued=4, max_running=2) as gateway:
        for index in range(30):
            await client.publish(ASK, question([float(index)]), ResponseTopic=REPLY)
        await until(lambda: gateway.counters()["queued"] >= 2)
        assert len(inference.requests) == 2
        inference.gate.set()
        values = [(await client.next_json(REPLY))["outputs"][0]["data"][0] for _ in range(30)]
    assert sorted(values) == [float(index) for index in range(30)]


async def test_stop_finishes_what_is_under_way(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.gate.clear()
    async with peer(broker.port) as watcher, frontend(inference, broker.url) as gateway:
        await watcher.subscribe("edge/gw/status")
        assert (await watcher.next("edge/gw/status")).payload == b"online"
        await client.publish(ASK, question(), ResponseTopic=REPLY)
        await until(lambda: bool(inference.requests))
        stopping = asyncio.create_task(gateway.stop(10.0))
        await asyncio.sleep(0)
        inference.gate.set()
        await stopping
        assert "outputs" in await client.next_json(REPLY)
        assert (await watcher.next("edge/gw/status")).payload == b"offline"
        assert gateway.counters()["acknowledged"] == 1


async def test_what_is_not_done_in_time_stays_with_the_broker(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.gate.clear()
    async with frontend(inference, broker.url) as gateway:
        await client.publish(ASK, question(), ResponseTopic=REPLY)
        await until(lambda: bool(inference.requests))
        await gateway.stop(0.05)
        assert gateway.counters()["abandoned"] == 1
        assert inference.cancelled == 1
    inference.gate.set()
    async with frontend(inference, broker.url):
        assert "outputs" in await client.next_json(REPLY)


def asking_in_parts(sampling: str, *, stream: bool = True) -> str:
    given = {"text_input": ("BYTES", "w"), "sampling_parameters": ("BYTES", sampling), "stream": ("BOOL", stream)}
    tensors = [{"name": name, "datatype": kind, "shape": [1], "data": [value]} for name, (kind, value) in given.items()]
    return json.dumps({"inputs": tensors, "id": "7"})


async def test_parts_of_a_text_precede_its_answer_which_is_whole(broker: Mosquitto, client: Peer) -> None:
    rig = await writing()
    sessions(rig)[0].gate.set()
    try:
        async with frontend(rig.engine, broker.url):
            for streamed in (True, False):
                body = asking_in_parts('{"max_tokens": 3}', stream=streamed)
                await client.publish("edge/gw/infer/writer", body, 1, ResponseTopic=REPLY, CorrelationData=b"c")
                found = [await client.next(REPLY) for _ in range(4 if streamed else 1)]
                assert {each.properties.CorrelationData for each in found} == {b"c"}
                assert {each.qos for each in found[:-1]} <= {0}
                bodies = [json.loads(each.payload) for each in found]
                texts = [{out["name"]: out["data"] for out in each["outputs"]}["text_output"] for each in bodies]
                assert texts == [*([["w0 "], ["w1 "], ["w2 "]] if streamed else []), [words(3)]]
                assert {each["id"] for each in bodies} == {"7"}
                final = {"triton_final_response": True} if streamed else {}
                parts = [{"triton_final_response": False, "part": number} for number in range(3 * streamed)]
                assert [each.get("parameters", {}) for each in bodies] == [*parts, final]
    finally:
        await rig.repository.close()


async def test_a_text_that_is_written_again_begins_with_part_0(broker: Mosquitto, client: Peer) -> None:
    rig = await writing(witness=inputs(fail_after=0))
    sessions(rig)[0].gate.set()
    try:
        async with frontend(rig.engine, broker.url, max_attempts=2):
            body = asking_in_parts('{"max_tokens": 3, "fail_after": 2}')
            await client.publish("edge/gw/infer/writer", body, 1, ResponseTopic=REPLY)
            bodies = [await client.next_json(REPLY) for _ in range(5)]
    finally:
        await rig.repository.close()
    assert [each["parameters"]["part"] for each in bodies[:4]] == [0, 1, 0, 1]
    assert bodies[4]["fault"] == "INTERNAL"
