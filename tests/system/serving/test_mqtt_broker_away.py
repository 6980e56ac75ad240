"""The broker is away at the start, goes with kill -9, comes back; the gateway says online and offline, retained."""

import asyncio
import json
import subprocess

import pytest

from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import golden, running, starting
from tests.system.serving.test_mqtt import CONFIG, LABELS, publish, samples, subscribed, tool


@pytest.fixture
def broker(tmp_path):
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = Mosquitto(folder)
    yield broker
    asyncio.run(broker.kill())


def start(broker):
    asyncio.run(broker.start())


def heard_status(broker, word):
    """Return whether the status becomes `word`, or is retained as it."""
    command = tool("mosquitto_sub", broker, "-W", "15", "-t", "edge/bench/status")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
        for line in iter(listening.stdout.readline, ""):
            if line.strip() == word:
                listening.terminate()
                return True
    return False


def classify(broker):
    """Check that a window goes in, and its label comes out."""
    wanted = golden("activity", 1)
    with subscribed(broker, "edge/bench/results/wrists/any", 1) as heard:
        publish(broker, "sensors/any/imu", samples(wanted.rows[0]), "-l")
    assert heard[0]["payload"]["label"] == LABELS[wanted.scores[0].argmax()]


def test_away_at_the_start_then_there(broker, tmp_path, state):
    with running(tmp_path / "gateway", state=state, config=CONFIG, mqtt=broker.url) as daemon:
        daemon.wait_logged("no MQTT broker")
        start(broker)
        assert heard_status(broker, "online")
        classify(broker)


def test_killed_and_back(broker, tmp_path, state):
    start(broker)
    with running(tmp_path / "gateway", state=state, config=CONFIG, mqtt=broker.url) as daemon:
        assert heard_status(broker, "online")
        classify(broker)
        asyncio.run(broker.kill())
        daemon.wait_logged("no MQTT broker")
        start(broker)
        assert heard_status(broker, "online")
        classify(broker)
    assert heard_status(broker, "offline")


def test_a_killed_gateway_is_offline(broker, tmp_path, state):
    """The Will, after its delay (none here)."""
    start(broker)
    config = CONFIG.replace("[mqtt]\n", "[mqtt]\nwill_delay_s = 0\n")
    with running(tmp_path / "gateway", state=state, config=config, mqtt=broker.url) as daemon:
        assert heard_status(broker, "online")
        daemon.kill()
        assert heard_status(broker, "offline")


def test_http_and_grpc_serve_while_the_broker_is_away(broker, tmp_path, state):
    with running(tmp_path / "gateway", state=state, config=CONFIG, mqtt=broker.url) as daemon:
        command = ["curl", "-sS", f"http://{daemon.http}/v2/models/activity/ready"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(said)["ready"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "mqtt://", "mqtt://user:secret@127.0.0.1:1", "mqtt://h:99999"])
def test_a_url_that_is_no_broker_s_is_a_usage_error(tmp_path, url):
    with starting(tmp_path, mqtt=url) as daemon:
        assert daemon.ended() == 2
        said = daemon.log.strip().splitlines()[-1]
    assert said.startswith("edge-gateway: mqtt.url: ") or "mqtt" in said
    assert "secret" not in said
