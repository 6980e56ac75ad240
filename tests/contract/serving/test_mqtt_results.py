"""Results and rules of routes over a real broker: topics, payloads, properties, repetition, requests of MQTT 3.1.1."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import pytest_asyncio
from paho.mqtt.client import MQTTMessage

from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from tests.simulators.broker import Mosquitto
from tests.simulators.mqtt_gateway import frontend, simulated, until
from tests.simulators.mqtt_peer import Peer, peer

pytestmark = pytest.mark.asyncio
TRACE = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
STILL, WALK = "[2, 1]", "[1, 2]"


def classes(*rules: RuleSettings, **result: Any) -> MqttRoute:
    return MqttRoute("c", ("classes/+",), "moves", sensor="topic[1]", result=ResultSettings(**result), rule=rules)


@pytest_asyncio.fixture
async def home(client: Peer) -> Peer:
    await client.subscribe("home/#", "edge/gw/rules/#")
    return client


async def test_topic_text_and_properties_are_as_the_route_says(broker: Mosquitto, home: Peer) -> None:
    route = classes(
        topic="home/{sensor}/{label}", payload="text", template="{label} {score} v{version}", retain=True, expiry_s=60
    )
    async with frontend(simulated(), broker.url, route):
        await home.publish("classes/a", WALK, UserProperty=[TRACE, ("battery", "3.1")])
        result = await home.next("home/a/walk")
    assert (result.payload, result.qos) == (b"walk 2.0 v1", 1)
    assert result.properties.ContentType == "text/plain"
    assert result.properties.MessageExpiryInterval <= 60
    assert result.properties.UserProperty == [TRACE]
    async with peer(broker.port) as late:
        await late.subscribe("home/#")
        assert (await late.next("home/a/walk")).retain


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ({"payload": "value"}, b"walk"),
        ({"template": '{"class": {label}, "p": {score}, "at": {ended_at}}', "topic": "home/{sensor}"}, None),
    ],
)
async def test_payloads(broker: Mosquitto, home: Peer, result: dict[str, Any], wanted: bytes | None) -> None:
    async with frontend(simulated(), broker.url, classes(**{"topic": "home/{sensor}"} | result)):
        await home.publish("classes/a", WALK)
        payload = (await home.next("home/a")).payload
    if wanted is None:
        parsed = json.loads(payload)
        assert (parsed["class"], parsed["p"]) == ("walk", 2.0)
    else:
        assert payload == wanted


async def test_several_rows_are_lines_or_an_array(broker: Mosquitto, home: Peer) -> None:
    text = classes(payload="value", topic="home/text")
    array = MqttRoute("d", ("d",), "moves", result=ResultSettings(template="{label}", topic="home/array"))
    async with frontend(simulated(), broker.url, text, array):
        await home.publish("classes/a", f"[{WALK}, {STILL}]")
        assert (await home.next("home/text")).payload == b"walk\nstill"
        await home.publish("d", f"[{WALK}, {STILL}]")
        assert await home.next_json("home/array") == ["walk", "still"]


async def test_results_of_a_route_are_joined_with_samples_of_a_sensor(broker: Mosquitto, home: Peer) -> None:
    """The broker brings results back; here they complete the rows of another route."""
    first = classes(topic="joined/{sensor}/class", template='{"class": {score}}', retain=False)
    channels = (MqttChannel("open", missing="last"), MqttChannel("class", missing="last"))
    topics = ("joined/+/class", "joined/+/door")
    result = ResultSettings(topic="home/{sensor}", payload="value")
    both = MqttRoute("both", topics, "moves", sensor="topic[1]", channel=channels, result=result)
    async with frontend(simulated(), broker.url, first, both) as gateway:
        await home.publish("joined/a/door", '{"open": 1}')
        await home.publish("classes/a", WALK)
        assert (await home.next("home/a")).payload == b"walk"  # [1, 2]
        await home.publish("joined/a/door", '{"open": 3}')
        assert (await home.next("home/a")).payload == b"still"  # [3, 2]
        await until(lambda: gateway.counters().get("acknowledged") == 4)


async def test_results_at_qos_0_acknowledge_the_message_too(broker: Mosquitto, home: Peer) -> None:
    async with frontend(simulated(), broker.url, classes(topic="home/{sensor}", max_qos=0)) as gateway:
        await home.publish("classes/a", WALK)
        assert (await home.next("home/a")).qos == 0
        await until(lambda: gateway.counters().get("acknowledged") == 1)


async def test_only_changes_are_published_and_all_messages_acknowledged(broker: Mosquitto, home: Peer) -> None:
    route = classes(publish="change", payload="value", topic="home/{sensor}")
    async with frontend(simulated(), broker.url, route) as gateway:
        for payload in (WALK, WALK, STILL, STILL, WALK):
            await home.publish("classes/a", payload)
        await home.publish("classes/b", WALK)
        await until(lambda: gateway.counters().get("acknowledged") == 6)
        assert gateway.counters()["suppressed"] == 2
        await until(lambda: sum(each.topic.startswith("home/") for each in home.received) == 4)
    assert [(each.topic, each.payload) for each in home.received if each.topic.startswith("home/")] == [
        *(("home/a", b"walk"), ("home/a", b"still"), ("home/a", b"walk"), ("home/b", b"walk")),
    ]


async def test_a_suppressed_message_that_comes_again_is_only_acknowledged(broker: Mosquitto, home: Peer) -> None:
    inference, route = simulated(), dataclasses.replace(classes(publish="never"), message_id="property.id")
    async with frontend(inference, broker.url, route) as gateway:
        for _ in range(2):
            await home.publish("classes/a", WALK, UserProperty=("id", "m-1"))
        await until(lambda: gateway.counters().get("acknowledged") == 2)
        assert (gateway.counters()["duplicates"], len(inference.requests)) == (1, 1)


async def test_a_rule_publishes_its_states_and_repeats_them(broker: Mosquitto, home: Peer) -> None:
    rules = (
        RuleSettings("moving", labels=("walk",), heartbeat_s=0.1, retain=True),
        RuleSettings(
            "alarm",
            value="score.walk",
            above=(5.0, 3.0),
            publish="enter",
            topic="home/alarm",
            payload="json",
            template='{"who": {sensor}, "state": {state}, "score": {score}}',
        ),
    )
    async with frontend(simulated(), broker.url, classes(*rules, publish="never")) as gateway:
        await home.publish("classes/a", STILL)
        for _ in range(3):
            assert (await home.next("edge/gw/rules/c/moving/a")).payload == b"off"
        await home.publish("classes/a", "[1, 6]")
        await home.next(lambda message: _is(message, "edge/gw/rules/c/moving/a", b"on"))
        assert await home.next_json("home/alarm") == {"who": "a", "state": "on", "score": 6.0}
        assert gateway.counters()["rule_messages"] >= 5
    assert not [each for each in home.received if each.topic.startswith("edge/gw/results/")]


def _is(message: MQTTMessage, topic: str, payload: bytes) -> bool:
    return message.topic == topic and message.payload == payload


async def test_rules_decide_on_windows_too(broker: Mosquitto, home: Peer) -> None:
    rule = RuleSettings("every", value="label", publish="result", payload="text", template="{sensor} {model}")
    route = MqttRoute("w", ("sensors/+",), "motion", sensor="topic[1]", rule=(rule,), result=ResultSettings("never"))
    async with frontend(simulated(), broker.url, route) as gateway:
        await home.publish("sensors/a", json.dumps([[1, 2, 3]] * 8))
        await until(lambda: gateway.counters().get("suppressed") == 3)
        # this model gives outputs without labels: the rule has nothing to decide on, which is counted
        assert gateway.counters()["rule_values_missing"] == 3


async def test_a_client_of_mqtt_3_asks_and_is_answered(broker: Mosquitto) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [7]}
    parameters = {"reply_topic": "replies/old", "correlation": "q-1"}
    async with frontend(simulated(), broker.url), peer(broker.port, version_5=False) as old:
        await old.subscribe("replies/#", "edge/gw/errors")
        await old.publish("edge/gw/infer/identity_fp32", json.dumps({"inputs": [tensor], "parameters": parameters}))
        answer = await old.next_json("replies/old")
        assert (answer["parameters"], answer["outputs"][0]["data"]) == ({"correlation": "q-1"}, [7.0])
        await old.publish("edge/gw/infer/nobody", json.dumps({"inputs": [tensor], "parameters": parameters}))
        refusal = await old.next_json("replies/old")
        assert (refusal["fault"], refusal["correlation"]) == ("NOT_FOUND", "q-1")
        parameters["reply_topic"] = "edge/gw/status"
        await old.publish("edge/gw/infer/identity_fp32", json.dumps({"inputs": [tensor], "parameters": parameters}))
        await old.next_json("edge/gw/errors")
        assert (await old.next_json("edge/gw/errors"))["fault"] == "DENIED"
