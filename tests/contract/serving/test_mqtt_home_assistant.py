"""Discovery by Home Assistant over a real broker: announcements, its start, restarts of the gateway, readiness."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from gateway.serving.frontends.mqtt.home_assistant import documents
from gateway.serving.frontends.mqtt.settings.broker import HomeAssistantSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.broker import Mosquitto
from tests.simulators.constants import settings_with
from tests.simulators.mqtt_gateway import frontend, simulated, until
from tests.simulators.mqtt_peer import Peer, peer

pytestmark = pytest.mark.asyncio
ROUTE = MqttRoute("c", ("classes/+",), "moves", sensor="topic[1]")
OTHER = MqttRoute("other", ("other/+",), "moves", sensor="topic[1]")
SETTINGS = settings_with(HomeAssistantSettings(enabled=True), birth_delay_s=0.0)
CONFIG = "homeassistant/device/edge_gw/{}/config"
GATEWAY = CONFIG.format("gateway")
READY = "edge/gw/models/moves/status"


def config_of(sensor: str, route: str = "c") -> str:
    return CONFIG.format(documents.object_id(route, sensor))


@pytest_asyncio.fixture
async def assistant(broker: Mosquitto) -> AsyncIterator[Peer]:
    """Yield a client that hears what Home Assistant would."""
    async with peer(broker.port) as one:
        await one.subscribe("homeassistant/device/#", "edge/gw/models/#")
        yield one


async def test_gateway_sensors_and_models_are_announced(broker: Mosquitto, assistant: Peer) -> None:
    inference = simulated()
    inference.unready.add("moves")
    async with frontend(inference, broker.url, ROUTE, home_assistant=SETTINGS) as gateway:
        device = (await assistant.next_json(GATEWAY))["device"]
        assert (await assistant.next(READY)).payload == b"offline"
        inference.unready.clear()
        gateway.readiness_changed()
        gateway.readiness_changed()
        assert (await assistant.next(READY)).payload == b"online"
        for _ in range(2):
            await assistant.publish("classes/a", "[1, 2]")
        document = await assistant.next_json(config_of("a"))
        assert document["device"]["via_device"] in device["identifiers"]
        await until(lambda: gateway.counters().get("answered") == 2)
        assert gateway.counters().get("dropped_unrouted", 0) == 0
    assert not [each for each in assistant.received if each.topic in {config_of("a"), READY}]


async def test_a_model_that_is_degraded_is_a_problem_of_the_gateway(broker: Mosquitto, assistant: Peer) -> None:
    inference = simulated()
    async with frontend(inference, broker.url, ROUTE, home_assistant=SETTINGS) as gateway:
        sensor = (await assistant.next_json(GATEWAY))["components"]["binary_sensor_moves_degraded"]
        assert (sensor["name"], sensor["device_class"]) == ("moves degraded", "problem")
        serving = {"variant": "reference", "accelerator": "cpu"}
        topic = sensor["state_topic"]
        assert await assistant.next_json(topic) == {"degraded": False, **serving, "reason": ""}
        inference.degraded = "chip is out"
        gateway.readiness_changed()
        assert await assistant.next_json(topic) == {"degraded": True, **serving, "reason": "chip is out"}
    other = replace(ROUTE, model="identity_fp32")
    async with frontend(simulated(), broker.url, other, home_assistant=SETTINGS) as gateway:
        await until_removed(assistant, "moves")
        topic = topic.replace("moves", "identity_fp32")
        assert (await assistant.next_json(topic))["reason"] == ""
        assert gateway._announcer is not None
        gateway._announcer.follow((), ())
        assert (await assistant.next(topic)).payload == b""
        await until_removed(assistant, "identity_fp32")


async def until_removed(assistant: Peer, model: str) -> None:
    """Wait for a document that removes a model's entity."""
    components: dict[str, Any] = {}
    while components.get(f"binary_sensor_{model}_degraded") != {"platform": "binary_sensor"}:
        components = (await assistant.next_json(GATEWAY))["components"]


async def test_everything_is_announced_again_when_home_assistant_starts(broker: Mosquitto, assistant: Peer) -> None:
    async with frontend(simulated(), broker.url, ROUTE, home_assistant=SETTINGS):
        await assistant.publish("classes/a", "[1, 2]")
        first = await assistant.next(config_of("a"))
        await assistant.next(GATEWAY)
        await assistant.publish("homeassistant/status", "offline")
        await assistant.publish("homeassistant/status", "online")
        assert (await assistant.next(config_of("a"))).payload == first.payload
        await assistant.next(GATEWAY)


async def test_a_restarted_gateway_keeps_its_sensors_and_removes_those_of_other_routes(
    broker: Mosquitto, assistant: Peer
) -> None:
    async with frontend(simulated(), broker.url, ROUTE, OTHER, home_assistant=SETTINGS):
        for topic in ("classes/a", "other/b"):
            await assistant.publish(topic, "[1, 2]")
        await assistant.next(config_of("a"))
        await assistant.next(config_of("b", "other"))
    async with frontend(simulated(), broker.url, ROUTE, home_assistant=SETTINGS) as gateway:
        assert (await assistant.next(config_of("b", "other"))).payload == b""
        await assistant.publish("classes/a", "[1, 2]")
        await until(lambda: gateway.counters().get("answered") == 1)
    assert await retained(broker) == {GATEWAY, config_of("a")}


async def test_a_deleted_device_comes_back_while_its_sensor_lives(broker: Mosquitto, assistant: Peer) -> None:
    async with frontend(simulated(), broker.url, ROUTE, home_assistant=SETTINGS) as gateway:
        await assistant.publish("classes/a", "[1, 2]")
        first = await assistant.next(config_of("a"))
        received = gateway.counters()["received"]
        await assistant.publish(config_of("a"), b"", retain=True)
        await assistant.next(config_of("a"))
        await assistant.publish("classes/a", "[1, 2]")
        assert (await assistant.next(config_of("a"))).payload == first.payload
        assert gateway.counters()["received"] == received + 1


async def test_without_the_setting_nothing_is_announced(broker: Mosquitto, assistant: Peer) -> None:
    async with frontend(simulated(), broker.url, ROUTE) as gateway:
        await assistant.publish("classes/a", "[1, 2]")
        await until(lambda: gateway.counters().get("answered") == 1)
        await assistant.subscribe("edge/gw/status")
        await assistant.next("edge/gw/status")
        assert assistant.received == []


async def retained(broker: Mosquitto) -> set[str]:
    """Return the topics of the documents that the broker keeps."""
    async with peer(broker.port) as late:
        await late.subscribe("homeassistant/#")
        await late.publish("homeassistant/end", "")
        await late.subscribe("homeassistant/end")
        await late.publish("homeassistant/end", "now")
        await late.next(lambda message: message.payload == b"now")
        kept: Any = [json.loads(each.payload) and each.topic for each in late.received if each.retain]
        return set(kept)
