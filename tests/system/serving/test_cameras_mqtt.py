"""Cameras in the real daemon with mosquitto: counts for Home Assistant, rules, a kill, and a camera that leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.serving.frontends.mqtt.home_assistant.documents import object_id
from tests.simulators.broker import Mosquitto
from tests.simulators.camera_tools import FOLDER
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.simulators.mqtt_peer import Peer, peer
from tests.system.serving.test_streams import write_models

pytestmark = pytest.mark.asyncio
CONFIG = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "bench"
[mqtt.home_assistant]
enabled = true
[[mqtt.route]]
name = "gates"
cameras = ["gate"]
[[mqtt.route.rule]]
name = "waiting"
value = "value.waiting"
above = [0.5]
retain = true
[[mqtt.route.rule]]
name = "entered"
value = "value.entered"
"""
CAMERA = '[[camera]]\nname = "{name}"\nurl = "{url}"\nmodel = "{model}"\nper_s = 10.0\n'
FRONT = CAMERA + "[camera.snapshot]\nevery_s = 0.5\n"


def write_walk(path: Path) -> Path:
    """Write a video of someone, a bright row, who walks down through the picture, and up again."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv444p"
        stream.options = {"preset": "ultrafast", "crf": "5"}
        for row in [*range(10, 60, 2), *range(58, 10, -2)]:
            pixels = np.zeros((64, 64, 3), np.uint8)
            pixels[row] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def config_of(route: str, camera: str) -> str:
    return f"homeassistant/device/edge_bench/{object_id(route, camera)}/config"


async def said(client: Peer, topic: str, payload: bytes) -> None:
    await client.next(lambda message: (message.topic, message.payload) == (topic, payload))


async def test_home_assistant_gets_counts_states_and_pictures(broker: Mosquitto, state: Any, tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    video = write_walk(tmp_path / "walk.mp4")
    gate, front = (
        form.format(name=name, url=video, model=model)
        for form, name, model in ((CAMERA, "gate", "gate"), (FRONT, "front", "person-detector"))
    )
    options: Any = {
        "models": tmp_path / "models",
        "state": state,
        "mqtt": broker.url,
        "environ": {"PYTHONPATH": str(FOLDER)},
    }
    async with peer(broker.port) as home:
        await home.subscribe("edge/bench/#", "homeassistant/#")
        with running(tmp_path / "one", config=CONFIG + gate + front, **options) as daemon:
            document = await home.next_json(config_of("gates", "gate"))
            components = {key: each.get("state_class") for key, each in document["components"].items()}
            assert components["sensor_output_entered"] == "total_increasing"
            assert components["sensor_output_waiting"] == "measurement"
            assert components["sensor_rule_entered"] is None
            assert "binary_sensor_rule_waiting" in components
            topics = [each["topic"] for each in document["availability"]]
            assert topics[2] == "edge/bench/cameras/gate/status"
            result = await home.next_json("edge/bench/results/gates/gate")
            assert result["people"][0].keys() == {"track", "box"}
            for word in (b"off", b"on", b"off"):
                await said(home, "edge/bench/rules/gates/waiting/gate", word)
            await said(home, "edge/bench/rules/gates/entered/gate", b"1")
            await said(home, "edge/bench/rules/gates/entered/gate", b"2")
            for topic in topics:
                await said(home, topic, b"online")
            found = (await home.next_json(config_of("camera", "front")))["components"]
            assert found["sensor_detections"]["state_topic"] == "edge/bench/results/camera/front"
            assert (await home.next(found["image_snapshot"]["image_topic"])).payload.startswith(b"\xff\xd8")
            home.received.clear()
            daemon.kill()
            await said(home, "edge/bench/status", b"offline")
        home.received.clear()
        with running(tmp_path / "two", config=CONFIG + gate, **options):
            for topic in ("status", "snapshot"):
                await said(home, f"edge/bench/cameras/front/{topic}", b"")
            await said(home, config_of("camera", "front"), b"")
            await said(home, "edge/bench/cameras/gate/status", b"offline")
            await said(home, "edge/bench/cameras/gate/status", b"online")
            await home.next("edge/bench/results/gates/gate")
        await said(home, "edge/bench/cameras/gate/status", b"offline")
    async with peer(broker.port) as late:
        await late.subscribe("edge/bench/cameras/#")
        await asyncio.sleep(0)
        assert (await late.next(lambda message: message.retain)).payload == b"offline"
        assert [each for each in late.received if "front" in each.topic] == []
    assert json.loads(json.dumps(result))["sensor"] == "gate"


async def test_a_camera_comes_changes_and_leaves_without_a_restart(
    broker: Mosquitto, state: Any, tmp_path: Path
) -> None:
    write_models(tmp_path / "models")
    video = write_walk(tmp_path / "walk.mp4")
    gate = CAMERA.format(name="gate", url=video, model="gate")
    front, plain = (form.format(name="front", url=video, model="person-detector") for form in (FRONT, CAMERA))
    options: Any = {"models": tmp_path / "models", "state": state, "mqtt": broker.url}
    options["environ"] = {"PYTHONPATH": str(FOLDER)}
    door = '[[mqtt.route]]\nname = "door"\ncameras = ["front"]\n[mqtt.route.result]\nretain = true\n'
    async with peer(broker.port) as home:
        await home.subscribe("edge/bench/#", "homeassistant/#")
        with running(tmp_path / "one", config=CONFIG + gate, **options) as daemon:
            await home.next("edge/bench/results/gates/gate")
            before = daemon.config_file.read_text()
            daemon.config_file.write_text(before + front)
            daemon.reload()
            for word in (b"offline", b"online"):
                await said(home, "edge/bench/cameras/front/status", word)
            assert "image_snapshot" in (await home.next_json(config_of("camera", "front")))["components"]
            await home.next("edge/bench/cameras/front/snapshot")
            await home.next("edge/bench/models/person-detector/status")
            daemon.config_file.write_text(before + plain + door)  # another route, without pictures
            daemon.reload()
            await said(home, config_of("camera", "front"), b"")
            assert "image_snapshot" not in (await home.next_json(config_of("door", "front")))["components"]
            await home.next("edge/bench/results/door/front")
            daemon.config_file.write_text(before)
            daemon.reload()
            for topic in ("edge/bench/results/door/front", config_of("door", "front")):
                await said(home, topic, b"")
            for topic in ("cameras/front/status", "cameras/front/snapshot", "models/person-detector/status"):
                await said(home, f"edge/bench/{topic}", b"")
            assert not [each for each in daemon.lines() if "wait for a restart" in each["event"]]
            home.received.clear()
            await home.next("edge/bench/results/gates/gate")  # it went on
    async with peer(broker.port) as late:
        await late.subscribe("edge/bench/#", "homeassistant/#")
        await late.next("edge/bench/cameras/gate/status")
        kept = [each.topic for each in late.received if each.retain]
        assert [topic for topic in kept if "front" in topic or "door" in topic] == []
