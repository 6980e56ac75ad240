"""The connection itself, against real brokers that are away, old, strict, or killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators import mqtt_gateway
from tests.simulators.authority import Authority
from tests.simulators.broker import Mosquitto, mosquitto, relay
from tests.simulators.mqtt_gateway import echoed, frontend, motion, simulated, until
from tests.simulators.mqtt_peer import peer

pytestmark = pytest.mark.asyncio
SINGLE = MqttRoute("single", ("single/+",), "identity_fp32", sensor="topic[1]")
RESULT = "edge/gw/results/single/a"
STATUS = "edge/gw/status"


async def test_a_broker_that_is_away_at_start_is_waited_for(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    async with frontend(simulated(), broker.url, SINGLE, online=False) as gateway:
        await until(lambda: gateway.counters().get("connect_failures", 0) >= 2)
        await broker.start()
        try:
            await asyncio.wait_for(gateway.online.wait(), 15)
            assert gateway.counters()["connected"] == 1
        finally:
            await broker.kill()


async def test_a_frontend_that_never_met_its_broker_stops(tmp_path: Path) -> None:
    async with frontend(simulated(), Mosquitto(tmp_path).url, online=False) as gateway:
        await until(lambda: gateway.counters().get("connect_failures", 0) >= 1)


async def test_status_is_retained_and_the_will_speaks_for_the_killed(broker: Mosquitto) -> None:
    async with peer(broker.port) as watcher:
        async with child(broker.url):
            await watcher.subscribe(STATUS)
            online = await watcher.next(STATUS)
            assert (online.payload, online.retain) == (b"online", True)
        assert (await watcher.next(STATUS)).payload == b"offline"
    async with peer(broker.port) as late:
        await late.subscribe(STATUS)
        offline = await late.next(STATUS)
        assert (offline.payload, offline.retain) == (b"offline", True)


async def test_what_a_killed_gateway_took_comes_again(broker: Mosquitto) -> None:
    async with peer(broker.port) as client:
        await client.subscribe("edge/gw/results/#")
        async with child(broker.url) as killed:
            await client.publish("single/a", "[42]")
            await said(killed, b"received\n")
        async with frontend(simulated(), broker.url, SINGLE) as gateway:
            assert echoed(await client.next_json(RESULT)) == 42.0
            await until(lambda: gateway.counters().get("acknowledged") == 1)


async def test_the_broker_keeps_messages_while_the_gateway_is_away(broker: Mosquitto) -> None:
    async with frontend(simulated(), broker.url, SINGLE):
        pass
    async with peer(broker.port) as client:
        await client.subscribe("edge/gw/results/#")
        for value in range(5):
            await client.publish("single/a", f"[{value}]")
        async with frontend(simulated(), broker.url, SINGLE):
            scores = [echoed(await client.next_json(RESULT)) for _ in range(5)]
    assert scores == [0.0, 1.0, 2.0, 3.0, 4.0]


async def test_a_killed_broker_is_found_again_and_the_answer_still_goes_out(broker: Mosquitto) -> None:
    inference = simulated()
    inference.gate.clear()
    async with frontend(inference, broker.url, SINGLE) as gateway:
        async with peer(broker.port) as client:
            await client.publish("single/a", "[42]")
            await until(lambda: bool(inference.requests))
            await broker.kill()
        await until(lambda: gateway.counters()["connected"] == 0)
        inference.gate.set()
        await until(lambda: gateway.counters()["outbox"] == 1)
        await broker.start()
        async with peer(broker.port) as watcher:
            # The answer may have gone out before anybody listens: the outbox says that the broker took it.
            await watcher.subscribe("edge/gw/results/#")
            await asyncio.wait_for(gateway.online.wait(), 15)
            await until(lambda: gateway.counters()["outbox"] == 0)
            await watcher.publish("single/b", "[43]")
            await watcher.next("edge/gw/results/single/b")
            await until(lambda: gateway.counters().get("answered") == 2)
            assert gateway.counters().get("publications_refused", 0) == 0


async def test_a_redelivered_message_is_not_judged_twice(broker: Mosquitto) -> None:
    inference = simulated()
    inference.gate.clear()
    async with relay(broker) as way, frontend(inference, way.url, SINGLE) as gateway, peer(broker.port) as client:
        await client.subscribe("edge/gw/results/#")
        await client.publish("single/a", "[42]")
        await until(lambda: bool(inference.requests))
        await way.cut()
        await until(lambda: gateway.counters().get("duplicates") == 1)
        inference.gate.set()
        await client.next(RESULT)
        await until(lambda: gateway.counters().get("acknowledged") == 1)
        assert gateway.counters()["acknowledgements_stale"] == 1
    assert len(inference.requests) == 1


async def test_a_sample_in_its_window_is_not_counted_twice(broker: Mosquitto) -> None:
    route = MqttRoute("wrists", ("sensors/+/imu",), "motion", sensor="topic[1]")
    async with relay(broker) as way, frontend(simulated(), way.url, route) as gateway, peer(broker.port) as client:
        way.hold()
        await client.publish("sensors/a/imu", "[1, 2, 3]")
        await until(lambda: gateway.counters().get("samples") == 1)
        await way.cut()
        await until(lambda: gateway.counters().get("duplicates") == 1)
        await until(lambda: gateway.counters().get("acknowledged") == 2)
        assert gateway.counters()["samples"] == 1


async def test_a_full_outbox_leaves_samples_at_the_broker_and_drops_nothing(broker: Mosquitto) -> None:
    bounds = {"max_outbox": 2, "max_inflight": 1, "max_running": 1, "max_queued": 4}
    async with (
        relay(broker) as way,
        frontend(simulated(), way.url, SINGLE, **bounds) as gateway,
        peer(broker.port) as client,
    ):
        await client.subscribe("edge/gw/results/#")
        way.hold()
        for value in range(40):
            await client.publish("single/a", f"[{value}]")
        await until(lambda: gateway.counters().get("outbox_filled") == 1)
        assert gateway.counters()["received"] < 40
        assert gateway.counters()["outbox"] <= 3
        way.release()
        scores = {echoed(await client.next_json(RESULT)) for _ in range(40)}
        await until(lambda: gateway.counters().get("acknowledged") == 40)
        assert not [name for name in gateway.counters() if name.startswith("dropped_")]
        assert gateway.counters()["connections"] == 2
    assert scores == {float(value) for value in range(40)}


@pytest.mark.parametrize("rude", [False, True])
async def test_a_broker_of_version_3_1_1_is_spoken_to_in_its_tongue(broker: Mosquitto, rude: bool) -> None:
    async with (
        relay(broker, old=True, rude=rude) as way,
        frontend(simulated(), way.url, SINGLE),
        peer(broker.port, version_5=False) as client,
    ):
        await client.subscribe("edge/gw/results/#", STATUS)
        assert (await client.next(STATUS)).payload == b"online"
        await client.publish("single/a", "[42]")
        assert echoed(await client.next_json(RESULT)) == 42.0


@pytest.mark.parametrize("closed", [1, 2, 3, 4, 5, 6, 7])
async def test_a_proxy_that_accepts_and_closes_changes_no_version(broker: Mosquitto, closed: int) -> None:
    async with relay(broker) as way, peer(broker.port) as client:
        way.closing = closed
        await client.subscribe("replies/#")
        async with frontend(simulated(), way.url, SINGLE) as gateway:
            assert {name: welcome.version for name, welcome in gateway._link.welcomes.items()} == {
                "main": "5",
                "results": "5",
            }
            way.closing, tried = closed, len(way.versions)
            await way.cut()
            await until(lambda: way.closing == 0)
            await asyncio.wait_for(gateway.online.wait(), 15)
            assert set(way.versions[tried:]) == {5}
            body = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [42]}]}'
            await client.publish("edge/gw/infer/identity_fp32", body, ResponseTopic="replies/one")
            assert echoed(await client.next_json("replies/one")) == 42.0


async def test_two_gateways_with_one_client_id_are_named_and_do_not_fight(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them waits for half a minute at least; mosquitto 2.0.11 sends no reason when a client id is taken over."""
    patient: dict[str, Any] = {"reconnect_min_s": 0.01, "reconnect_max_s": 60.0, "online": False}
    async with (
        frontend(simulated(), broker.url, SINGLE, **patient) as one,
        frontend(simulated(), broker.url, SINGLE, **patient) as other,
    ):
        await until(
            lambda: bool(one.counters().get("client_id_contested", other.counters().get("client_id_contested")))
        )
        await until(lambda: one.counters()["connected"] + other.counters()["connected"] == 1)
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any(
        "if the identity is used twice, give each gateway its own [gateway] id" in message for message in messages
    )


async def test_a_network_that_is_cut_again_and_again_is_no_second_client(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"reconnect_min_s": 0.01, "reconnect_max_s": 60.0}
    async with relay(broker) as way, frontend(simulated(), way.url, SINGLE, **settings) as gateway:
        for cuts in range(1, 8):
            await way.cut()
            await until(lambda made=cuts + 1: gateway.counters().get("connections") >= 2 * made)
            await asyncio.wait_for(gateway.online.wait(), 15)
        assert "client_id_contested" not in gateway.counters()
    assert "contested" not in caplog.text


async def test_a_flood_of_windows_loses_no_result(broker: Mosquitto) -> None:
    route = MqttRoute("wrists", ("sensors/+/imu",), "motion", sensor="topic[1]", size_rows=4, hop_rows=1)
    bounds = {"max_outbox": 8, "max_inflight": 2, "max_queued": 4, "max_running": 2}
    async with frontend(simulated(motion(hop_rows=1)), broker.url, route):
        pass  # the broker keeps what follows
    async with peer(broker.port) as client, peer(broker.port) as sensor:
        await client.subscribe("edge/gw/results/#")
        for value in range(600):
            await sensor.publish("sensors/a/imu", f"[{value}, 0, 0]")
        async with frontend(simulated(motion(hop_rows=1)), broker.url, route, **bounds) as gateway:
            await until(lambda: gateway.counters().get("answered") == 597)
            assert gateway.counters()["outbox_filled"] >= 1
            assert not [name for name in gateway.counters() if name.startswith("dropped_")]
            await until(lambda: len(client.received) == 597)


async def test_results_that_the_acl_denies_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    passwords = tmp_path / "passwords"
    subprocess.run(["/usr/bin/mosquitto_passwd", "-b", "-c", str(passwords), "edge", "secret"], check=True)
    passwords.chmod(0o644)
    acl = tmp_path / "acl"
    acl.write_text("user edge\ntopic readwrite edge/#\ntopic readwrite single/#\ntopic deny edge/gw/results/#\n")
    (tmp_path / "password").write_text("secret\n")
    login: dict[str, Any] = {"username": "edge", "password_file": str(tmp_path / "password"), "connect_timeout_s": 0.1}
    lines = f"password_file {passwords}\nacl_file {acl}"
    async with (
        mosquitto(tmp_path, lines, anonymous=False) as broker,
        frontend(simulated(), broker.url, SINGLE, **login) as gateway,
        peer(broker.port, username="edge", password="secret") as client,
    ):
        await client.subscribe("edge/gw/errors", STATUS)
        assert (await client.next(STATUS)).payload == b"online"
        for value in range(3):
            await client.publish("single/a", f"[{value}]")
        complaint = await client.next_json("edge/gw/errors")
        assert complaint["fault"] == "DENIED"
        assert "0x87" in complaint["message"]
        await until(lambda: gateway.counters().get("acknowledged") == 3)
        assert gateway.counters()["publications_refused"] == 3
        assert gateway.counters()["connected"] == 0
        assert "edge/gw/results/single/a" in gateway.problem
        assert (await client.next(STATUS)).payload == b"offline"
    refused = [record for record in caplog.records if record.getMessage().startswith("publication refused")]
    assert [(record.levelname, record.args) for record in refused] == [("ERROR", ("edge/gw/results/single/a", 0x87))]


async def test_a_wrong_password_is_counted_and_tried_again(tmp_path: Path) -> None:
    async with (
        mosquitto(tmp_path, anonymous=False) as broker,
        frontend(simulated(), broker.url, SINGLE, online=False) as gateway,
    ):
        await until(lambda: gateway.counters().get("connect_failures", 0) >= 3)
        assert gateway.counters()["connected"] == 0


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    Authority().write(tmp_path)
    lines = f"cafile {tmp_path}/ca.pem\ncertfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem\n"
    lines += "require_certificate true\n"
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    async with mosquitto(tmp_path, lines) as broker:
        url = f"mqtts://localhost:{broker.port}"
        async with frontend(simulated(), url, SINGLE, **files) as gateway:
            await ask_over_tls(broker.port, files)
            await until(lambda: gateway.counters().get("answered") == 20)


async def ask_over_tls(port: int, files: dict[str, str]) -> None:
    """Send twenty messages at once, by Debian's client: several in one TLS record must all be read."""
    words = ["mosquitto_pub", "-h", "localhost", "-p", str(port), "-t", "single/a", "-q", "1", "-l"]
    words += ["--cafile", files["ca"], "--cert", files["cert"], "--key", files["key"]]
    sender = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE)
    await asyncio.wait_for(sender.communicate(b"[1]\n" * 20), 15)
    assert sender.returncode == 0


async def test_a_broker_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    Authority().write(tmp_path)
    lines = f"certfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem\n"
    async with (
        mosquitto(tmp_path, lines) as broker,
        frontend(simulated(), f"mqtts://localhost:{broker.port}", SINGLE, online=False) as gateway,
    ):
        await until(lambda: gateway.counters().get("connect_failures", 0) >= 2)
        assert "connections" not in gateway.counters()


async def test_silence_is_filled_with_pings(tmp_path: Path) -> None:
    async with (
        mosquitto(tmp_path, "log_type all") as broker,
        frontend(simulated(), broker.url, keepalive_s=1) as gateway,
    ):
        # A second and a half of silence and mosquitto would hang up.
        log = tmp_path / "mosquitto.log"
        await until(lambda: log.read_text().count("Received PINGREQ from gw") >= 3)
        assert gateway.counters()["connections"] == 2
        assert gateway.counters()["connected"] == 1


@asynccontextmanager
async def child(url: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Yield a gateway in a process of its own, online, that takes messages and never answers; kill it at the end."""
    words = [sys.executable, "-m", mqtt_gateway.__name__, url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        try:
            await said(process, b"online\n")
            yield process
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


async def said(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Wait for the next line of the child's output, which must be `line`."""
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == line
