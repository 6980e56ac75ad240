"""The link with brokers that are silent, refuse, take the client id away, or announce packets without end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.serving.frontends.mqtt.frontend import MqttFrontend
from gateway.serving.frontends.mqtt.session.subscriptions import SubscriptionRecord
from gateway.serving.frontends.mqtt.settings.broker import MqttRoute
from tests.simulators.mqtt_gateway import frontend, simulated, until
from tests.simulators.mqtt_server import (
    CONNECT,
    PINGREQ,
    PUBACK,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    FakeBroker,
    fake_broker,
    publish,
)

pytestmark = pytest.mark.asyncio
SINGLE = MqttRoute("single", ("single/+",), "identity_fp32", sensor="topic[1]")
AT_MOST_ONCE = MqttRoute("single", ("single/+",), "identity_fp32", sensor="topic[1]", at_most_once=True)
STATUS = "edge/gw/status"
RESULTS = "gw-results"
LIMITED = b"\x20\x12\x00\x00\x0f\x13\x00\x07\x21\x00\x02\x24\x00\x25\x00\x27\x00\x10\x00\x00"
"""CONNACK: keepalive 7 s, Receive Maximum 2, Maximum QoS 0, no retained messages, packets of up to 1 MiB."""
RESUMED = b"\x20\x03\x01\x00\x00"
"""CONNACK: accepted, the session is present."""
HUGE = b"\x30\xff\xff\xff\x7f\x00\x01t\x00"
"""Beginning of a PUBLISH of 268,435,455 bytes."""


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def reasons(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(event)]


async def test_a_suback_that_never_comes_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_broker() as broker:
        broker.answered.discard(SUBSCRIBE)
        async with frontend(simulated(), broker.url, SINGLE, online=False, subscribe_timeout_s=0.05) as gateway:
            await until(lambda: gateway.counters().get("subscribe_timeouts", 0) >= 2)
            assert gateway.counters()["connected"] == 0
            assert not gateway.online.is_set()
            broker.answered.add(SUBSCRIBE)
            await asyncio.wait_for(gateway.online.wait(), 15)
    assert "did not answer the subscriptions within 0.05 s" in reasons(caplog, "broker connection lost: main")[0]


async def test_a_broker_that_waits_for_more_of_a_connect_of_mqtt_5_is_served_with_3_1_1() -> None:
    """amqtt 0.12 reads the properties of a CONNECT as its Will, and waits for bytes that do not come."""
    async with fake_broker(connack=b"\x20\x02\x00\x00", old=True) as broker:
        async with frontend(simulated(), broker.url, SINGLE, connect_timeout_s=0.2, keepalive_s=600) as gateway:
            assert {welcome.version for welcome in gateway._link.welcomes.values()} == {"3.1.1"}
        assert broker.count(CONNECT) == 2  # a guess, and the one that serves


async def test_a_broker_that_is_slow_to_answer_connect_has_more_time_with_each_failure() -> None:
    async with fake_broker() as broker:
        broker.answered.discard(CONNECT)
        async with frontend(simulated(), broker.url, SINGLE, online=False, connect_timeout_s=0.05) as gateway:
            await until(lambda: "did not answer CONNECT within 0.2 s (mqtt.connect_timeout_s)" in gateway.problem)
            broker.answered.add(CONNECT)
            await asyncio.wait_for(gateway.online.wait(), 15)
            assert {welcome.version for welcome in gateway._link.welcomes.values()} == {"5"}


async def test_a_puback_that_never_comes_ends_the_connection_and_the_result_is_sent_again() -> None:
    async with fake_broker() as broker, frontend(simulated(), broker.url, SINGLE, publish_timeout_s=0.1) as gateway:
        broker.mute.add(RESULTS)
        broker.send(publish("single/a", b"[42]", 1))
        await until(lambda: broker.count(PUBLISH, RESULTS) >= 3)
        assert gateway.counters()["publish_timeouts"] >= 2
        assert broker.count(PUBACK) == 0
        assert not gateway.online.is_set()  # though both connections are made again
        assert "did not acknowledge a publication within 0.1 s" in gateway.problem
        broker.mute.clear()
        await until(lambda: broker.count(PUBACK) == 1)
        await asyncio.wait_for(gateway.online.wait(), 15)
        assert gateway.counters()["answered"] == 1


async def test_a_refused_subscription_is_a_problem_until_it_is_granted(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_broker() as broker:
        broker.suback = 0x87
        settings = {"connect_timeout_s": 0.1}
        async with frontend(simulated(), broker.url, SINGLE, online=False, **settings) as gateway:
            await until(lambda: (STATUS, b"offline") in broker.topics("gw"))
            assert gateway.counters()["connected"] == 0
            assert gateway.counters()["subscriptions_refused"] >= 2
            assert "single/+" in gateway.problem
            broker.send(publish("single/a", b"[42]", 1))  # what is granted is served
            await until(lambda: broker.count(PUBACK) == 1)
            broker.suback = 0x01
            await until(lambda: (STATUS, b"online") in broker.topics("gw"))
            assert gateway.problem == ""
    assert len(reasons(caplog, "subscription refused: single/+, reason code 0x87")) == 1
    assert {record.levelname for record in caplog.records if "refused" in record.getMessage()} == {"ERROR"}


async def test_a_subscription_at_a_lower_quality_of_service_is_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_broker() as broker:
        broker.suback = 0x00
        async with frontend(simulated(), broker.url, SINGLE, online=False) as gateway:
            await until(lambda: gateway.counters().get("subscriptions_reduced") == 2)
            assert "grants 'single/+' with QoS 0 instead of 1" in gateway.problem
            assert gateway.counters()["connected"] == 0
    assert len(reasons(caplog, "subscription reduced: single/+, with QoS 0 instead of 1")) == 1


async def test_a_client_id_that_is_taken_over_is_named_and_not_fought_for(caplog: pytest.LogCaptureFixture) -> None:
    bounds = {"reconnect_max_s": 600.0}
    async with fake_broker() as broker, frontend(simulated(), broker.url, SINGLE, **bounds) as gateway:
        broker.send(b"\xe0\x02\x8e\x00")
        await until(lambda: bool(reasons(caplog, "broker connection lost: main")))
        assert gateway.counters()["client_id_taken_over"] == 1
        wait_s = float(reasons(caplog, "broker connection lost: main")[0].split("next try in ")[1].split()[0])
        assert 300.0 <= wait_s <= 600.0
        named = "client id taken over: another client connected as 'gw': identity used twice"
        assert "[gateway] id" in reasons(caplog, named)[0]


async def test_short_connections_with_mqtt_3_1_1_are_reported_with_a_hint(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_broker(connack=b"\x20\x02\x00\x00") as broker:
        broker.answered.discard(SUBSCRIBE)

        async def cut() -> None:
            seen = 0
            while not reasons(caplog, "client id contested"):
                if broker.count(SUBSCRIBE) > seen:
                    seen = broker.count(SUBSCRIBE)
                    broker.writers["gw"].close()
                await asyncio.sleep(0)

        settings = {"protocol": "3.1.1", "reconnect_max_s": 1.0, "reconnect_min_s": 0.01}
        async with frontend(simulated(), broker.url, SINGLE, online=False, **settings):
            await asyncio.wait_for(cut(), 15)


async def test_a_packet_without_end_is_not_read() -> None:
    async with fake_broker() as broker, frontend(simulated(), broker.url, SINGLE) as gateway:
        before_bytes = rss_bytes()
        writer = broker.writers["gw"]
        writer.write(HUGE + b"x" * 1024)
        await until(lambda: broker.count(CONNECT) == 2)
        while not writer.is_closing() and writer.transport.get_write_buffer_size() < 2**20:
            writer.write(b"x" * 65_536)
            await asyncio.sleep(0)
        assert rss_bytes() - before_bytes < 8 * 2**20
        await asyncio.wait_for(gateway.online.wait(), 15)
        assert gateway.counters().get("received", 0) == 0


async def test_a_content_type_that_is_not_utf_8_is_refused_and_the_connection_stays() -> None:
    body = b"\x00\x08single/a\x00\x07\x06\x03\x00\x03a/\xff[42]"
    async with fake_broker() as broker, frontend(simulated(), broker.url, SINGLE) as gateway:
        broker.send(bytes((0x32, len(body))) + body)
        await until(lambda: broker.count(PUBACK) == 1)
        broker.send(publish("single/a", b"[42]", 1))
        await until(lambda: broker.count(PUBACK) == 2)
        counters = gateway.counters()
        assert (counters["refused"], counters["answered"], counters["connections"]) == (1, 1, 2)


async def test_the_limits_of_the_broker_are_logged_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with fake_broker(connack=LIMITED) as broker, frontend(simulated(), broker.url, SINGLE) as gateway:
        found = limits(gateway)
    assert found == {
        "receive_maximum": 2,
        "maximum_packet_bytes": 2**20,
        "maximum_qos": 0,
        "keepalive_s": 7,
        "retain": 0,
    }
    (line,) = reasons(caplog, "broker connection made: main")
    assert "as 'gw' with MQTT 5" in line
    assert "2 publications in flight, packets of at most 1048576 bytes, QoS 0, retained messages: no" in line
    assert "keepalive 7 s" in line


def limits(gateway: MqttFrontend) -> dict[str, float]:
    """Return the limits of the main connection's broker among the metrics."""
    return {
        str(sample.labels["limit"]): sample.value
        for sample in gateway.samples()
        if sample.name == "edge_gateway_mqtt_broker_limit" and sample.labels["connection"] == "main"
    }


async def test_a_route_of_at_most_once_acknowledges_before_the_inference() -> None:
    inference = simulated()
    inference.gate.clear()
    async with fake_broker() as broker, frontend(inference, broker.url, AT_MOST_ONCE):
        broker.send(publish("single/a", b"[42]", 1))
        await until(lambda: broker.count(PUBACK) == 1)
        assert broker.count(PUBLISH, RESULTS) == 0
        inference.gate.set()
        await until(lambda: broker.count(PUBLISH, RESULTS) == 1)
        (result,) = (packet for packet in broker.packets if packet.kind == PUBLISH and packet.client == RESULTS)
        assert result.flags & 0x06 == 0


async def test_samples_wait_at_the_broker_while_its_results_have_no_puback() -> None:
    """The main connection is pinged meanwhile, and no answer is expected on a socket that is not read."""
    bounds = {"max_outbox": 2, "max_running": 1, "max_queued": 2, "keepalive_s": 1}
    async with fake_broker() as broker, frontend(simulated(), broker.url, SINGLE, **bounds) as gateway:
        broker.mute.add(RESULTS)
        for mid in range(1, 41):
            broker.send(publish("single/a", b"[%d]" % mid, mid))
        await until(lambda: gateway.counters().get("outbox_filled") == 1)
        await until(lambda: broker.count(PINGREQ) >= 2)
        assert broker.count(CONNECT) == 1
        assert broker.count(PUBLISH, RESULTS) <= 4
        acknowledge_all(broker)
        await until(lambda: broker.count(PUBACK) == 40)
        assert gateway.counters()["answered"] == 40
        assert broker.count(CONNECT) == broker.count(CONNECT, RESULTS) == 1


def acknowledge_all(broker: FakeBroker) -> None:
    """Acknowledge what the gateway has published, and what follows."""
    broker.mute.clear()
    for packet in broker.packets:
        if packet.kind == PUBLISH and packet.client == RESULTS:
            size = int.from_bytes(packet.body[:2], "big")
            broker.send(b"\x40\x02" + packet.body[2 + size : 4 + size], RESULTS)


@pytest.mark.parametrize("passes", [0, 5, 10, 15, 20, 40])
async def test_a_frontend_that_stopped_leaves_no_timer(passes: int) -> None:
    async with fake_broker() as broker:
        async with frontend(simulated(), broker.url, SINGLE, online=False):
            for _ in range(passes):
                await asyncio.sleep(0)
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        left = [str(timer) for timer in timers if not timer.cancelled()]
        assert not [timer for timer in left if "Mqtt" in timer or "Outbox" in timer]


async def test_filters_that_the_broker_keeps_are_ended_by_the_next_connection(tmp_path: Path) -> None:
    async with fake_broker(connack=RESUMED) as server:
        record = SubscriptionRecord(tmp_path, server.url, "gw")
        record.write(("edge/gw/infer/#", "s/+", "old/+"))
        for code, kinds in ((b"\x87", 1), (b"\x00", 2), (b"\x00", 2)):
            server.unsuback = code
            async with frontend(
                simulated(), server.url, MqttRoute("s", ("s/+",), "identity_fp32", sensor="topic"), folder=tmp_path
            ):
                await until(lambda: server.count(UNSUBSCRIBE) == kinds)  # noqa: B023
        main = [packet.kind for packet in server.packets if packet.client == "gw"]
        assert main.index(UNSUBSCRIBE) == main.index(CONNECT) + 1 == main.index(SUBSCRIBE) - 1
    assert SubscriptionRecord(tmp_path, server.url, "gw").filters == {"edge/gw/infer/#", "s/+"}
