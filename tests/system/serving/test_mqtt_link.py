"""What the real daemon says of a broker that does not grant everything, and a backlog that loses nothing."""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.performance import mqtt_backlog
from tests.simulators.broker import mosquitto, relay
from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon, copy_model, running, starting
from tests.simulators.models import write_onnx_endless
from tests.simulators.mqtt_peer import peer
from tests.simulators.mqtt_server import fake_broker, publish

pytestmark = pytest.mark.asyncio
CONFIG = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "gw"
[mqtt]
reconnect_min_s = 0.05
reconnect_max_s = 0.2
publish_timeout_s = 0.5
[[mqtt.route]]
name = "samples"
topics = ["samples/+"]
sensor = "topic[1]"
model = "activity"
size_rows = 1
"""
ACL = "topic readwrite edge/#\ntopic readwrite samples/#\ntopic deny edge/gw/errors\n"
BACKLOG = argparse.Namespace(messages=2000, max_inflight=100, broker_inflight=20)
CONNECTED = 'edge_gateway_mqtt_now{broker="default",what="connected"}'


async def logged(daemon: Daemon, event: str) -> str:
    line = await asyncio.to_thread(daemon.wait_logged, event)
    return str(line["event"])


def metrics(daemon: Daemon, path: str = "/metrics") -> str:
    command = ["curl", "-sS", f"http://{daemon.http}{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def until_measured(daemon: Daemon, holds: Callable[[str], bool], path: str = "/metrics") -> str:
    """Return the metrics, or another page, once they hold."""
    async with asyncio.timeout(90):
        while not holds(page := await asyncio.to_thread(metrics, daemon, path)):
            await asyncio.sleep(0.05)
    return page


async def test_publications_that_the_acl_denies(tmp_path: Path, state: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "acl").write_text(ACL)
    async with mosquitto(tmp_path / "broker", f"acl_file {tmp_path / 'acl'}") as broker:
        with running(tmp_path / "gateway", state=state, config=CONFIG, mqtt=broker.url) as daemon:
            await logged(daemon, "link completed")
            async with peer(broker.port) as sensor:
                await sensor.publish("samples/a", "not JSON")
            line = await asyncio.to_thread(daemon.wait_logged, "publication refused: edge/gw/errors, reason code 0x87")
            assert line["level"] == "error"
            page = await until_measured(daemon, lambda page: f"{CONNECTED} 0.0" in page)
            assert 'edge_gateway_mqtt_events_total{broker="default",event="publications_refused"} 1.0' in page
            assert 'edge_gateway_mqtt_now{broker="default",what="problems"} 1.0' in page


async def test_a_proxy_that_accepts_and_closes(tmp_path: Path, state: Path) -> None:
    (tmp_path / "broker").mkdir()
    async with mosquitto(tmp_path / "broker") as broker, relay(broker) as way:
        way.closing = 6
        with running(tmp_path / "gateway", state=state, config=CONFIG, mqtt=way.url) as daemon:
            await logged(daemon, "link completed")
            made = [line["event"] for line in daemon.lines() if "connection made" in line["event"]]
            assert len(made) == 2
            assert all("with MQTT 5;" in event for event in made)


async def test_a_broker_that_never_acknowledges(tmp_path: Path, state: Path) -> None:
    async with fake_broker() as broker:
        broker.mute.add("gw-results")
        with running(tmp_path / "gateway", state=state, config=CONFIG, mqtt=broker.url) as daemon:
            await logged(daemon, "link completed")
            broker.send(publish("samples/a", b"not JSON", 1))
            assert "did not acknowledge a publication within 0.5 s" in await logged(daemon, "link degraded")
            page = await until_measured(daemon, lambda page: f"{CONNECTED} 0.0" in page)
            assert 'event="publish_timeouts"' in page


@pytest.mark.parametrize("kind", ["gateway", "paho"])
async def test_a_backlog_is_drained_without_loss(kind: str) -> None:
    figures = await mqtt_backlog.one_pass(kind, BACKLOG)
    assert figures["published"] == BACKLOG.messages
    assert figures.get("dropped", 0) == 0


WRISTS = """
[gateway]
id = "gw"
[[mqtt.route]]
name = "wrists"
topics = ["wrists/+"]
sensor = "topic[1]"
model = "activity"
"""
LOADING = f"{QUIET}[trial]\nmeasure_s = 5.0\nmeasure_runs = 10_000_000\nnice = 0\n{WRISTS}"


@pytest.mark.timeout(240)
async def test_samples_for_a_model_that_loads_survive_a_kill(tmp_path: Path) -> None:
    """The model comes while the link is up; 150 samples come during its trial, and then SIGKILL.

    The state is this test's own: with verdicts of other tests there would be no trial.
    """
    (tmp_path / "broker").mkdir()
    models = tmp_path / "models"
    copy_model("meter-reader", models)
    options = {"state": tmp_path / "state", "config": LOADING, "models": models}
    async with mosquitto(tmp_path / "broker") as broker, peer(broker.port) as sensor:
        await sensor.subscribe("edge/gw/results/#", "edge/gw/errors")
        with starting(tmp_path / "first", mqtt=broker.url, **options) as daemon:
            await logged(daemon, "link completed")
            copy_model("activity", models)
            daemon.signal(signal.SIGHUP)
            await until_measured(daemon, lambda page: "is loading" in page, "/v2/models/activity/config")
            for number in range(150):
                await sensor.publish("wrists/a", str([number] * 6))
            page = await until_measured(daemon, lambda page: 'event="acknowledged"} 150.0' in page)
            assert 'event="held_model_away"} 1.0' in page
            await asyncio.to_thread(daemon.kill)
        with starting(tmp_path / "second", mqtt=broker.url, **options) as daemon:
            await logged(daemon, "link completed")
            await until_measured(daemon, lambda page: 'event="answered"} 2.0' in page)
        assert [message.topic for message in sensor.received] == ["edge/gw/results/wrists/a"] * 2


async def test_a_model_that_loads_for_long_at_the_start_stops_no_route(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    models = tmp_path / "models"
    copy_model("activity", models)
    (models / "endless").mkdir()
    write_onnx_endless(models / "endless" / "model.onnx")
    slow = '[[mqtt.route]]\nname = "slow"\ntopics = ["slow/+"]\nmodel = "endless"\n'
    config = f"{QUIET}{SHORT_TRIALS}deadline_s = 200.0\n[limits]\nnotify_within_s = 0.1\n{WRISTS}{slow}"
    options = {"state": tmp_path / "state", "config": config, "models": models}
    async with mosquitto(tmp_path / "broker") as broker, peer(broker.port) as sensor:
        await sensor.subscribe("edge/gw/results/#", "edge/gw/errors")
        with starting(tmp_path / "gateway", mqtt=broker.url, **options) as daemon:
            await logged(daemon, "link completed")
            await sensor.publish("slow/a", "[0]")
            await until_measured(daemon, lambda page: 'event="held_model_away"} 1.0' in page)
            for number in range(100):
                await sensor.publish("wrists/a", str([number] * 6))
            await until_measured(daemon, lambda page: 'event="answered"} 1.0' in page)
            await until_measured(daemon, lambda page: "is loading" in page, "/v2/models/endless/config")
            await asyncio.to_thread(daemon.kill)
        assert {message.topic for message in sensor.received} == {"edge/gw/results/wrists/a"}
