"""Traces of answers and refusals in memory, and on the wire."""

from __future__ import annotations

import asyncio
import json
import sys
import tracemalloc
from collections import Counter

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import write_error
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.dedup import key_of
from gateway.serving.frontends.mqtt.outbound.delivery import Delivery
from gateway.serving.frontends.mqtt.session.health import LinkHealth
from gateway.serving.frontends.mqtt.session.sender import OutboxSender
from gateway.serving.frontends.mqtt.session.session import MqttSession
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.inference import SimulatedInference

SETTINGS = MqttSettings(url="mqtt://127.0.0.1")


class Outlet:
    """Outlet that takes everything and keeps nothing."""

    full = False
    receives_since_ns = 0

    def publish(self, publication: OutgoingPublish) -> bool:
        return True

    def acknowledge(self, message: Message) -> None: ...
    def pause(self, *, on: bool) -> None: ...


CONTEXT = RouteContext(SimulatedInference(), SETTINGS, "gw", Outlet(), Counter())


def test_repetitions_that_need_no_acknowledgement_are_not_kept() -> None:
    delivery = Delivery(CONTEXT)
    first, again = (Message("t", b"p", qos=0, name=b"c") for _ in range(2))
    key = key_of(first)
    assert delivery.begin(key, first)
    held = sys.getrefcount(again)
    assert not delivery.begin(key, again)
    assert sys.getrefcount(again) == held


def test_repetitions_that_wait_do_not_keep_their_payload() -> None:
    delivery = Delivery(CONTEXT)
    first, again = (Message("t", b"p", qos=1, name=b"c") for _ in range(2))
    key = key_of(first)
    assert delivery.begin(key, first)
    assert not delivery.begin(key, again)
    assert again.payload == b""


def test_hostile_topics_fill_no_memory() -> None:
    router = Router((MqttRoute("all", ("sensors/#",), "m"),), "gw")
    tracemalloc.start()
    try:
        for number in range(200):
            assert router.routes(f"sensors/{number}/" + "x" * 60_000)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1_000_000


class Narrow(MqttSession):
    """A session whose broker takes no publication: all are beyond its largest packet."""

    def __init__(self) -> None:
        self.congested = False

    def publish(self, publication: OutgoingPublish, mid: int) -> bool:
        return False


class Wide(MqttSession):
    """A session that keeps what is published."""

    def __init__(self) -> None:
        self.congested, self.published = False, list[bytes]()

    def publish(self, publication: OutgoingPublish, mid: int) -> bool:
        self.published.append(publication.payload)
        return True


def test_what_is_optional_is_sent_at_once_or_not_at_all() -> None:
    async def parts() -> None:
        counters, session = Counter[str](), Wide()
        health = LinkHealth(10.0, lambda: None)
        sender = OutboxSender(SETTINGS, "results", home="edge/gw/", counters=counters, health=health, changed=print)
        part = OutgoingPublish("reply", b"part", 0, optional=True)
        assert not sender.publish(part), "there is no connection"
        sender._session = session
        assert sender.publish(OutgoingPublish("reply", b"in flight"))
        assert sender.publish(part)
        session.congested = True
        assert not sender.publish(part)
        assert sender.publish(OutgoingPublish("reply", b"waits"))
        session.congested = False
        assert not sender.publish(part), "another one waits"
        assert (session.published, counters) == ([b"in flight", b"part"], {"published": 1})
        sender.end()

    asyncio.run(parts())


def test_an_outbox_of_answers_that_are_too_large_is_refused_to_its_end() -> None:
    counters: Counter[str] = Counter()

    async def refuse_all() -> None:
        health = LinkHealth(10.0, lambda: None)
        sender = OutboxSender(SETTINGS, "results", home="edge/gw/", counters=counters, health=health, changed=print)

        def complain(_: int) -> None:
            sender.publish(OutgoingPublish("error", b""))

        for _ in range(1000):
            sender.publish(OutgoingPublish("answer", b"", taken=complain))
        sender._session = Narrow()
        sender.pump()
        assert len(sender) == 0

    asyncio.run(refuse_all())
    assert counters["publications_refused"] == 2000


def test_an_error_that_names_a_strange_file_can_be_said() -> None:
    refused = RequestError(Fault.UNAVAILABLE, "model in '/m/\udcff' is refused")
    assert json.loads(write_error("i", "t", refused))["message"] == "model in '/m/?' is refused"
