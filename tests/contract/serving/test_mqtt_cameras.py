"""Cameras over a real broker: results and rules, states that stay true, pictures, and what is removed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.cameras import CameraAnswer, KnownCamera
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.mqtt.frontend import MqttFrontend
from gateway.serving.frontends.mqtt.home_assistant import documents
from gateway.serving.frontends.mqtt.pipeline.cameras import CameraResults
from gateway.serving.frontends.mqtt.settings.broker import HomeAssistantSettings
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from tests.simulators import mqtt_gateway
from tests.simulators.broker import Mosquitto, relay
from tests.simulators.constants import settings_with
from tests.simulators.mqtt_gateway import CAMERA, frontend, moves, simulated, until
from tests.simulators.mqtt_peer import Peer, peer

pytestmark = pytest.mark.asyncio
RULE = RuleSettings("moving", labels=("walk",), retain=True)
BOTH = MqttRoute("camera", cameras=("door", "yard"), rule=(RULE,), result=ResultSettings(retain=True))
ROUTE = replace(BOTH, cameras=("door",))
CAMERAS = (KnownCamera("door", "moves", has_pictures=True), KnownCamera("yard", "moves"))
MOVES = moves()
ASSISTANT = settings_with(HomeAssistantSettings(enabled=True), birth_delay_s=0.0)
STATUS = "edge/gw/cameras/{}/status"
SNAPSHOT = "edge/gw/cameras/{}/snapshot"


@pytest_asyncio.fixture
async def home(broker: Mosquitto) -> AsyncIterator[Peer]:
    """Yield a client that hears everything of the gateway."""
    async with peer(broker.port) as one:
        await one.subscribe("edge/#", "homeassistant/device/#")
        yield one


def cameras(gateway: MqttFrontend) -> CameraResults:
    assert gateway.cameras is not None
    return gateway.cameras


def answer(
    gateway: MqttFrontend,
    camera: str = "door",
    scores: tuple[float, float] = (1, 2),
    manifest: ModelManifest = MOVES,
) -> None:
    """Answer a frame of a camera."""
    tensor = Tensor(Datatype.FP32, np.array([scores], np.float32))
    response = InferResponse("moves", "1", "", {"scores": tensor}, "v")
    cameras(gateway).answered(CameraAnswer(camera, 1_500_000_000, manifest, tensor, response, (640, 480)))


async def said(client: Peer, topic: str, payload: bytes) -> None:
    await client.next(lambda message: (message.topic, message.payload) == (topic, payload))


async def kept(broker: Mosquitto) -> dict[str, bytes]:
    """Return what the broker retains."""
    async with peer(broker.port) as late:
        await late.subscribe("edge/#", "homeassistant/#")
        await late.publish("edge/end", "now")
        await late.next("edge/end")
        return {each.topic: bytes(each.payload) for each in late.received if each.retain}


async def test_results_and_rules_of_a_camera(broker: Mosquitto, home: Peer) -> None:
    rule = RuleSettings("moving", labels=("walk",), retain=True)
    route = MqttRoute("yard", cameras=("door",), rule=(rule,))
    async with frontend(simulated(), broker.url, route) as gateway:
        answer(gateway)
        answer(gateway, "gate")
        result = await home.next_json("edge/gw/results/yard/door")
        assert (result["label"], result["score"], result["sensor"]) == ("walk", 2.0, "door")
        assert (await home.next("edge/gw/rules/yard/moving/door")).payload == b"on"
        await until(lambda: gateway.counters().get("answered") == 1)
    assert not [each for each in home.received if "gate" in each.topic]


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_states_are_true_after_a_kill_a_restart_and_a_stop(broker: Mosquitto, home: Peer, protocol: str) -> None:
    command = (sys.executable, "-m", mqtt_gateway.__name__, broker.url, CAMERA)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout
        assert await process.stdout.readline() == b"online\n"
        await said(home, STATUS.format("door"), b"online")
        await home.next(SNAPSHOT.format("door"))
    finally:
        process.kill()
        await process.wait()
    # Home Assistant takes both: availability_mode is "all".
    await said(home, "edge/gw/status", b"offline")
    async with frontend(simulated(), broker.url, BOTH, protocol=protocol) as gateway:
        await said(home, STATUS.format("door"), b"offline")
        cameras(gateway).changed("yard", streaming=True)
        await said(home, STATUS.format("yard"), b"online")
        held = await kept(broker)
        assert [held[STATUS.format(name)] for name in ("door", "yard")] == [b"offline", b"online"]
        assert held[SNAPSHOT.format("door")] == b"jpeg"
    assert (await kept(broker))[STATUS.format("yard")] == b"offline"


async def test_a_camera_that_is_gone_leaves_nothing(broker: Mosquitto, home: Peer, tmp_path: Path) -> None:
    both: Any = {"folder": tmp_path, "cameras": CAMERAS, "home_assistant": ASSISTANT}
    async with frontend(simulated(), broker.url, BOTH, **both) as gateway:
        for name in ("door", "yard"):
            cameras(gateway).changed(name, streaming=True)
            cameras(gateway).pictured(name, 0, b"jpeg")
            answer(gateway, name)
            await home.next(f"homeassistant/device/edge_gw/{documents.object_id('camera', name)}/config")
        await until(lambda: gateway.counters().get("answered") == 2)
    held = await kept(broker)
    own = {"edge/gw/results/camera/yard", "edge/gw/rules/camera/moving/yard", STATUS.format("yard")}
    assert {*own, SNAPSHOT.format("yard")} < held.keys()
    async with frontend(simulated(), broker.url, ROUTE, **both):
        for topic in (SNAPSHOT.format("yard"), STATUS.format("yard")):
            await said(home, topic, b"")
        await home.next(f"homeassistant/device/edge_gw/{documents.object_id('camera', 'yard')}/config")
    held = await kept(broker)
    assert SNAPSHOT.format("door") in held
    assert not [topic for topic in held if "yard" in topic]
    async with frontend(simulated(), broker.url, folder=tmp_path, home_assistant=ASSISTANT):  # no camera is left
        await said(home, STATUS.format("door"), b"")
    owned = ("edge/gw/cameras/", "homeassistant/device/edge_gw/camera_")
    assert not [topic for topic in await kept(broker) if topic.startswith(owned)]


async def test_cameras_come_and_go_while_others_keep_their_states(broker: Mosquitto, home: Peer) -> None:
    async with frontend(simulated(), broker.url, BOTH, cameras=CAMERAS, home_assistant=ASSISTANT) as gateway:
        for name in ("door", "yard"):
            cameras(gateway).changed(name, streaming=True)
            cameras(gateway).pictured(name, 0, b"jpeg")
            answer(gateway, name)
            assert (await home.next(f"edge/gw/rules/camera/moving/{name}")).payload == b"on"
            await home.next(f"homeassistant/device/edge_gw/{documents.object_id('camera', name)}/config")
        route = replace(BOTH, cameras=("door", "gate"))
        gateway.follow([route], [CAMERAS[0], KnownCamera("gate", "moves")])
        await said(home, STATUS.format("gate"), b"offline")
        answer(gateway, "yard")  # on its way as the camera left
        cameras(gateway).changed("yard", streaming=True)
        cameras(gateway).pictured("yard", 0, b"jpeg")
        for name in ("door", "gate"):
            answer(gateway, name)
        assert (await home.next("edge/gw/rules/camera/moving/gate")).payload == b"on"
        await home.next(f"homeassistant/device/edge_gw/{documents.object_id('camera', 'gate')}/config")
        await until(lambda: gateway.counters().get("answered") == 4)
        held = await kept(broker)
        assert [topic for topic in held if "yard" in topic] == []
        assert [held[STATUS.format(name)] for name in ("door", "gate")] == [b"online", b"offline"]
        moved = [each for each in home.received if each.topic == "edge/gw/rules/camera/moving/door"]
        assert [each.payload for each in moved] == []  # its state went on
        gateway.follow([], [])
        await until(lambda: gateway.counters().get("announcements_removed") == 3)
    left = ("edge/gw/cameras/", "edge/gw/results/", "edge/gw/rules/", "edge/gw/models/")
    held = await kept(broker)
    assert [topic for topic in held if topic.startswith(left) or "camera_" in topic] == []


async def test_home_assistant_gets_the_camera_with_its_picture(broker: Mosquitto, home: Peer) -> None:
    config = f"homeassistant/device/edge_gw/{documents.object_id('camera', 'door')}/config"
    async with frontend(simulated(), broker.url, ROUTE, cameras=CAMERAS, home_assistant=ASSISTANT) as gateway:
        assert (await home.next("edge/gw/models/moves/status")).payload == b"online"
        answer(gateway)
        document = await home.next_json(config)
        cameras(gateway).pictured("door", 0, b"\xff\xd8jpeg")
        topics = [each["topic"] for each in document["availability"]]
        assert topics == ["edge/gw/status", "edge/gw/models/moves/status", STATUS.format("door")]
        image = document["components"]["image_snapshot"]
        assert (await home.next(image["image_topic"])).payload == b"\xff\xd8jpeg"
        answer(gateway)
        await until(lambda: gateway.counters().get("answered") == 2)
        answer(gateway, manifest=replace(MOVES, version="2"))  # of another version, while two share the requests
        await until(lambda: gateway.counters().get("answered") == 3)
        assert not [each for each in home.received if each.topic == config]


async def test_frames_do_not_wait_for_a_broker_that_is_away(broker: Mosquitto, home: Peer) -> None:
    route = MqttRoute("camera", cameras=("door",), rule=(RuleSettings("moving", labels=("walk",)),))
    async with relay(broker) as between, frontend(simulated(), between.url, route) as gateway:
        answer(gateway, scores=(2, 1))
        await home.next_json("edge/gw/results/camera/door")
        assert (await home.next("edge/gw/rules/camera/moving/door")).payload == b"off"
        await until(lambda: gateway.counters().get("answered") == 1)
        between.hold()
        await between.cut()
        await until(lambda: not gateway.online.is_set())
        for _ in range(5):
            answer(gateway)
        cameras(gateway).changed("door", streaming=True)
        for picture in (b"1", b"2"):
            cameras(gateway).pictured("door", 0, picture)
        assert gateway.counters()["dropped_broker_away"] == 5
        between.release()
        assert (await home.next("edge/gw/rules/camera/moving/door")).payload == b"on"
        assert (await home.next(SNAPSHOT.format("door"))).payload == b"2"
        await said(home, STATUS.format("door"), b"online")
    assert not [json.loads(each.payload) for each in home.received if "results" in each.topic]


async def test_a_picture_waits_for_room_in_the_outbox(broker: Mosquitto, home: Peer) -> None:
    async with (
        relay(broker) as between,
        frontend(simulated(), between.url, replace(ROUTE, rule=()), max_outbox=4) as gateway,
    ):
        between.hold()
        for _ in range(4):
            answer(gateway)
        await until(lambda: gateway.counters().get("outbox_filled") == 1)
        answer(gateway)
        cameras(gateway).pictured("door", 0, b"jpeg")
        assert gateway.counters()["dropped_outbox_full"] == 1
        between.release()
        await said(home, SNAPSHOT.format("door"), b"jpeg")
