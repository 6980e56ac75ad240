"""Sensor routes over a real broker: decoders, windows, results, poison, with Debian's own clients as sensors."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import replace
from datetime import datetime

import cbor2
import msgspec
import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import SequenceBatching, StateTensors
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.infer import OPENS, InferRequest, InferResponse
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.broker import Mosquitto
from tests.simulators.inference import identity
from tests.simulators.mqtt_gateway import echoed, frontend, motion, simulated, until
from tests.simulators.mqtt_peer import Peer

pytestmark = pytest.mark.asyncio
SINGLE = MqttRoute("single", ("single/+",), "identity_fp32", sensor="topic[1]")
CLASSES = MqttRoute("classes", ("classes/+",), "moves", sensor="topic[1]")
WRISTS = MqttRoute("wrists", ("sensors/+/imu",), "motion", sensor="topic[1]")
CAMERAS = MqttRoute("cameras", ("cameras/#",), "digits", content_type="image/jpeg")
ERRORS = "edge/gw/errors"


async def command(*words: str) -> str:
    """Run one of Debian's clients to its end; what it printed."""
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0
    return output.decode()


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
async def test_debians_clients_get_results(broker: Mosquitto, version: str) -> None:
    where = ("-h", "127.0.0.1", "-p", str(broker.port), "-V", version)
    async with frontend(simulated(), broker.url, SINGLE) as gateway:
        listening = asyncio.create_task(
            command("mosquitto_sub", *where, "-t", "edge/gw/results/#", "-C", "1", "-W", "10", "-v", "-q", "1")
        )
        while not listening.done():
            # Debian's client does not say when it is subscribed: speak until it has heard.
            await command("mosquitto_pub", *where, "-t", "single/boiler", "-m", "[0.25, 0.75]", "-q", "1")
        topic, _, payload = (await listening).strip().partition(" ")
        assert gateway.counters()["answered"] >= 1
    assert topic == "edge/gw/results/single/boiler"
    result = json.loads(payload)
    assert (result["outputs"][0]["data"], result["sensor"]) == ([0.25, 0.75], "boiler")
    assert (result["model"], result["version"], result["variant"]) == ("identity_fp32", "1", "reference")


async def test_a_result_has_the_contracts_fields(broker: Mosquitto, client: Peer) -> None:
    async with frontend(simulated(), broker.url, CLASSES):
        await client.publish("classes/a", "[1, 2]", UserProperty=("id", "m-17"))
        result = await client.next_json("edge/gw/results/classes/a")
    assert list(result) == [
        *("id", "label", "score", "model", "version", "variant", "sensor", "started_at", "ended_at"),
    ]
    assert (result["label"], result["score"]) == ("walk", 2.0)
    assert result["id"] == "m-17"
    assert datetime.fromisoformat(result["started_at"]).utcoffset() is not None
    assert result["started_at"] <= result["ended_at"]


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [
        ("application/json", b'{"z": 9, "x": 7, "y": 8, "battery": 3.1}'),
        ("application/json", b"[7, 8, 9.0]"),
        ("application/json; charset=utf-8", b"[[7, 8, 9]]"),
        ("application/cbor", cbor2.dumps([7, 8.0, 9])),
        ("application/cbor", cbor2.dumps({"x": 7, "y": 8, "z": 9})),
        ("application/x-msgpack", msgspec.msgpack.encode([7, 8, 9])),
        ("application/octet-stream", struct.pack("<3f", 7, 8, 9)),
        ("application/octet-stream; dtype=INT16", struct.pack("<3h", 7, 8, 9)),
        ("application/octet-stream; dtype=float64", struct.pack("<3d", 7, 8, 9)),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
async def test_samples_of_every_kind_fill_the_window(
    broker: Mosquitto, client: Peer, content_type: str, payload: bytes, qos: int
) -> None:
    inference = simulated()
    async with frontend(inference, broker.url, WRISTS) as gateway:
        for _ in range(4):
            await client.publish("sensors/left/imu", payload, qos, ContentType=content_type)
        result = await client.next_json("edge/gw/results/wrists/left")
        if qos:
            await until(lambda: gateway.counters().get("acknowledged") == 4)
    assert result["outputs"][0]["data"] == [7, 8, 9] * 4
    (window,) = [request.inputs["motion"].array for request in inference.requests]
    assert window.shape == (1, 4, 3)
    assert window.dtype == np.float32
    assert (window == [7, 8, 9]).all()


async def test_windows_slide_and_sensors_do_not_mix(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    async with frontend(inference, broker.url, WRISTS):
        for index in range(6):
            for name in ("left", "right"):
                value = index if name == "left" else -index
                await client.publish(f"sensors/{name}/imu", json.dumps([value] * 3))
        for name in ("left", "left", "right", "right"):
            await client.next(f"edge/gw/results/wrists/{name}")
    starts = sorted(int(request.inputs["motion"].array[0, 0, 0]) for request in inference.requests)
    assert starts == [-2, 0, 0, 2]


async def test_a_batch_of_samples_may_complete_several_windows(broker: Mosquitto, client: Peer) -> None:
    async with frontend(simulated(), broker.url, WRISTS):
        await client.publish("sensors/left/imu", json.dumps([[i, i, i] for i in range(8)]))
        for _ in range(3):
            await client.next("edge/gw/results/wrists/left")


async def test_the_least_recently_seen_sensor_is_forgotten(broker: Mosquitto, client: Peer) -> None:
    route = MqttRoute("wrists", ("sensors/+/imu",), "motion", sensor="topic[1]", max_sensors=2)
    async with frontend(simulated(), broker.url, route) as gateway:
        for name in ("a", "b", "c"):
            await client.publish(f"sensors/{name}/imu", "[1, 2, 3]")
        await until(lambda: gateway.counters().get("sensors_evicted") == 1)
        assert gateway.counters()["sensors"] == 2


async def test_sensors_may_be_named_in_payload_or_property(broker: Mosquitto, client: Peer) -> None:
    inside = MqttRoute("inside", ("inside",), "motion", sensor="payload.device.id", size_rows=1, hop_rows=1)
    beside = MqttRoute("beside", ("beside",), "identity_fp32", sensor="property.who")
    async with frontend(simulated(motion(size_rows=1), identity(Datatype.FP32)), broker.url, inside, beside):
        await client.publish("inside", '{"device": {"id": "a/b+#"}, "x": 1, "y": 2, "z": 3}')
        assert (await client.next_json("edge/gw/results/inside/a%2Fb%2B%23"))["sensor"] == "a/b+#"
        await client.publish("beside", "[1]", UserProperty=("who", "c"))
        assert (await client.next_json("edge/gw/results/beside/c"))["sensor"] == "c"
        await client.publish("beside", "[1]")
        assert (await client.next_json(ERRORS))["fault"] == "INVALID"


@pytest.mark.parametrize("content_type", ["image/jpeg", "image/png"])
async def test_images_travel_encoded_to_the_engine(broker: Mosquitto, client: Peer, content_type: str) -> None:
    inference = simulated()
    async with frontend(inference, broker.url, CAMERAS):
        await client.publish("cameras/door/main", b"\xff\xd8 not looked at here", ContentType=content_type)
        await until(lambda: bool(inference.requests))
    tensor = inference.requests[0].inputs["image"]
    assert tensor.datatype is Datatype.BYTES
    assert tensor.array.tolist() == [b"\xff\xd8 not looked at here"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (("single/a", "application/json", b"[1, 2"), "INVALID"),
        (("single/a", "application/json", b"[1, NaN]"), "INVALID"),
        (("single/a", "application/json", b'["1"]'), "INVALID"),
        (("single/a", "application/json", b""), "INVALID"),
        (("single/a", "application/cbor", b"\xa1"), "INVALID"),
        (("single/a", "application/cbor", cbor2.dumps([float("nan")])), "INVALID"),
        (("single/a", "application/x-msgpack", b"\xdd\xff\xff\xff\xff"), "INVALID"),
        (("single/a", "application/octet-stream; shape=1,2", b"1234567"), "INVALID"),
        (("single/a", "application/octet-stream; shape=x", b"12345678"), "INVALID"),
        (("single/a", "application/octet-stream; shape=1,1", struct.pack("<f", float("inf"))), "INVALID"),
        (("single/a", "image/jpeg", b"\xff\xd8"), "INVALID"),
        (("single/a", "text/plain", b"1 2"), "INVALID"),
        (("single/a", "application/json", b"[%s]" % (b"1," * 3000 + b"1")), "TOO_LARGE"),
        (("cameras/a", "image/gif", b"GIF89a"), "INVALID"),
        (("sensors/a/imu", "application/json", b"[1, 2]"), "INVALID"),
        (("sensors/a/imu", "application/json", b'{"x": 1, "y": 2}'), "INVALID"),
        (("sensors/a/imu", "application/json", b"[1, 2, 1e39]"), "INVALID"),
        (("sensors/a/imu", "application/json", b"[1, 2, true]"), "INVALID"),
        (("sensors/a/imu", "application/octet-stream", b"12345"), "INVALID"),
        (("sensors/a/imu", "image/png", b"\x89PNG"), "INVALID"),
    ],
)
async def test_poison_is_told_on_the_error_topic_and_acknowledged(
    broker: Mosquitto, client: Peer, given: tuple[str, str, bytes], fault: str
) -> None:
    topic, content_type, payload = given
    inference = simulated()
    async with frontend(inference, broker.url, SINGLE, WRISTS, CAMERAS, max_payload_bytes=5000) as gateway:
        await client.publish(topic, payload, ContentType=content_type, UserProperty=("id", "p"))
        complaint = await client.next_json(ERRORS)
        await until(lambda: gateway.counters().get("acknowledged") == 1)
        await client.publish("single/b", "[1]")
        await client.next("edge/gw/results/single/b")
    assert (complaint["id"], complaint["topic"], complaint["fault"]) == ("p", topic, fault)
    assert complaint["message"]


async def test_a_model_that_comes_later_is_served_then(broker: Mosquitto, client: Peer) -> None:
    inference = simulated(motion("another"))
    async with frontend(inference, broker.url, SINGLE, WRISTS) as gateway:
        await client.publish("single/a", "[1]")
        assert (await client.next_json(ERRORS))["fault"] == "NOT_FOUND"
        await until(lambda: gateway.counters().get("acknowledged") == 1)
        inference.manifests |= simulated().manifests
        await client.publish("single/a", "[1]")
        await client.next("edge/gw/results/single/a")


async def test_several_rows_give_several_results_in_one_message(broker: Mosquitto, client: Peer) -> None:
    async with frontend(simulated(), broker.url, CLASSES) as gateway:
        await client.publish("classes/a", "[[1, 2], [4, 3], [0, 0]]")
        result = await client.next_json("edge/gw/results/classes/a")
        await until(lambda: gateway.counters().get("acknowledged") == 1)
    assert result["results"] == [
        {"label": "walk", "score": 2.0},
        {"label": "still", "score": 4.0},
        {"label": "still", "score": 0.0},
    ]
    assert not client.received


async def test_a_route_may_name_outputs(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    named = MqttRoute("named", ("named/+",), "moves", sensor="topic[1]", outputs=("scores",))
    wrong = MqttRoute("wrong", ("wrong/+",), "moves", sensor="topic[1]", outputs=("boxes",))
    async with frontend(inference, broker.url, named, wrong):
        await client.publish("named/a", "[1, 2]")
        result = await client.next_json("edge/gw/results/named/a")
        await client.publish("wrong/a", "[1, 2]", UserProperty=("id", "w"))
        complaint = await client.next_json(ERRORS)
    scores = {"name": "scores", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
    assert (result["label"], result["outputs"]) == ("walk", [scores])
    assert [[output.name for output in request.outputs] for request in inference.requests] == [["scores"]]
    assert (complaint["id"], complaint["fault"]) == ("w", "UNAVAILABLE")
    words = "has no output 'boxes'; its outputs are scores: correct the route's outputs (EG-605)"
    assert complaint["message"].endswith(words)


async def test_a_result_beyond_the_bound_is_told_on_the_error_topic_and_acknowledged(
    broker: Mosquitto, client: Peer
) -> None:
    async with frontend(simulated(), broker.url, SINGLE, max_result_bytes=1024) as gateway:
        await client.publish("single/a", json.dumps([0] * 600), UserProperty=("id", "large"))
        complaint = await client.next_json(ERRORS)
        await until(lambda: gateway.counters().get("acknowledged") == 1)
        await client.publish("single/b", "[1]")
        await client.next("edge/gw/results/single/b")
    assert (complaint["id"], complaint["fault"]) == ("large", "TOO_LARGE")
    assert "mqtt.max_result_bytes" in complaint["message"]


async def test_a_missing_model_of_windows_is_told_once_not_per_sample(broker: Mosquitto, client: Peer) -> None:
    route = MqttRoute("wrists", ("sensors/+/imu",), "motion", sensor="topic[1]", hop_rows=2)
    async with frontend(simulated(motion("another")), broker.url, route) as gateway:
        for _ in range(5):
            await client.publish("sensors/a/imu", "[1, 2, 3]")
        await until(lambda: gateway.counters().get("acknowledged") == 5)
        assert gateway.counters()["dropped_model_away"] == 5
        assert (await client.next_json(ERRORS))["fault"] == "NOT_FOUND"
        assert not client.received


async def test_another_version_of_the_model_brings_its_own_window(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    async with frontend(inference, broker.url, WRISTS) as gateway:
        await client.publish("sensors/a/imu", "[1, 2, 3]")
        await until(lambda: gateway.counters().get("samples") == 1)
        inference.manifests["motion"] = motion(size_rows=2, hop_rows=1)
        for _ in range(2):
            await client.publish("sensors/a/imu", "[1, 2, 3]")
        await client.next("edge/gw/results/wrists/a")
    assert inference.requests[0].inputs["motion"].array.shape == (1, 2, 3)
    assert gateway.counters()["windows_discarded"] == 1


async def test_samples_go_on_filling_while_the_model_is_away(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    async with frontend(inference, broker.url, WRISTS) as gateway:
        await client.publish("sensors/a/imu", "[1, 2, 3]")
        await until(lambda: gateway.counters().get("samples") == 1)
        inference.unready.add("motion")
        for _ in range(2):
            await client.publish("sensors/a/imu", "[1, 2, 3]")
        await until(lambda: gateway.counters().get("samples") == 3)
        inference.unready.clear()
        await client.publish("sensors/a/imu", "[1, 2, 3]")
        await client.next("edge/gw/results/wrists/a")


async def test_qos_0_gives_up_the_oldest_when_inference_is_slow(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.gate.clear()
    async with frontend(inference, broker.url, SINGLE, max_queued=3, max_running=1) as gateway:
        for index in range(10):
            await client.publish("single/a", f"[{index}]", 0)
        await until(lambda: gateway.counters().get("dropped_queue_full") == 6)
        inference.gate.set()
        values = [echoed(await client.next_json("edge/gw/results/single/a")) for _ in range(4)]
    assert values == [0.0, 7.0, 8.0, 9.0]


@pytest.mark.parametrize("fault", [Fault.OVERLOADED, Fault.INTERNAL])
@pytest.mark.parametrize("has_state", [True, False])
async def test_what_is_tried_again_stays_before_later_messages_of_a_sensor_where_there_is_state(
    broker: Mosquitto, client: Peer, has_state: bool, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = SequenceBatching((StateTensors("state", "next"),)) if has_state else None
    inference = simulated(replace(identity(Datatype.FP32), sequence=sequence))
    infer, ran, last = inference.infer, list[float](), 9 if has_state else 3

    async def fails_until_another_ran(request: InferRequest) -> InferResponse:
        value = float(request.inputs[next(iter(request.inputs))].array.flat[0])
        if value == 1 and last not in ran:
            raise RequestError(fault, "at first")
        ran.append(value)
        return await infer(request)

    monkeypatch.setattr(inference, "infer", fails_until_another_ran)
    async with frontend(inference, broker.url, SINGLE, max_attempts=100) as gateway:
        for sensor, value in (("a", 1), ("a", 2), ("a", 3), ("b", 9)):
            await client.publish(f"single/{sensor}", f"[{value}]")
        found = [await client.next_json(lambda message: "/results/" in message.topic) for _ in range(4)]
        await until(lambda: gateway.counters().get("acknowledged") == 4)
        assert gateway.counters()["retries"] > 0
    assert [echoed(each) for each in found if each["sensor"] == "a"] == ([1, 2, 3] if has_state else [2, 3, 1])


async def test_qos_0_overload_is_counted_not_told(broker: Mosquitto, client: Peer) -> None:
    inference = simulated()
    inference.fault = RequestError(Fault.OVERLOADED, "full")
    async with frontend(inference, broker.url, SINGLE) as gateway:
        await client.publish("single/a", "[1]", 0)
        await until(lambda: gateway.counters().get("dropped_overloaded") == 1)
    assert not client.received


async def test_retained_messages_are_no_news(broker: Mosquitto, client: Peer) -> None:
    await client.publish("single/a", "[1]", retain=True)
    inference = simulated()
    async with frontend(inference, broker.url, SINGLE):
        await client.publish("single/b", "[2]")
        await client.next("edge/gw/results/single/b")
    (request,) = inference.requests
    assert (request.caller, request.stream, request.place) == ("mqtt:single", "b", OPENS)


async def test_shared_subscriptions_split_the_work(broker: Mosquitto, client: Peer) -> None:
    route = MqttRoute("single", ("$share/edge/single/+",), "identity_fp32", sensor="topic[1]")
    async with frontend(simulated(), broker.url, route):
        await client.publish("single/a", "[1]")
        assert (await client.next_json("edge/gw/results/single/a"))["sensor"] == "a"
