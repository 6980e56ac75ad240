"""A broker that cannot be trusted: whatever it says, the gateway reconnects and nothing is left in pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.serving.frontends.mqtt.frontend import MqttFrontend, samples
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.session.listener import Welcome
from tests.simulators.broker import scripted
from tests.simulators.mqtt_gateway import frontend, simulated, until

WELCOME = b"\x20\x03\x00\x00\x00"
NONSENSE = (
    b"",
    b"\x00",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x20\x00",
    b"\x20\x03\x00\x87\x00",
    WELCOME + b"\x90\x00",
    WELCOME + b"\x90\x03\x00\x01\x00",
    WELCOME + b"\xb0\x01\x00",
    WELCOME + b"\x40\x01\x00",
    WELCOME + b"\x30\x02\x00\x09",
    WELCOME + b"\x30\x05\x00\x01\xff\x00a",
    WELCOME + b"\x32\x06\x00\x01a\x00\x01\x7f",
    WELCOME + b"\xe0\x02\x8e\x00",
    WELCOME + b"\x62\x02\x00\x09",
)


@pytest.mark.asyncio
@pytest.mark.parametrize("words", NONSENSE, ids=[words.hex() or "nothing" for words in NONSENSE])
async def test_nonsense_costs_the_connection_and_no_more(words: bytes) -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
    met = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal met
        met += 1
        await reader.read(100)
        writer.write(words)

    async with scripted(serve) as port, frontend(simulated(), f"mqtt://127.0.0.1:{port}", online=False):
        await until(lambda: met >= 3)
    assert not unhandled


@pytest.mark.asyncio
async def test_a_defect_of_ours_costs_the_connection_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: MqttFrontend, _message: Message) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(MqttFrontend, "_receive", fail)
    met = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal met
        met += 1
        await reader.read(100)
        writer.write(WELCOME + b"\x30\x05\x00\x01a\x00x")
        await reader.read()

    async with scripted(serve) as port, frontend(simulated(), f"mqtt://127.0.0.1:{port}", online=False):
        await until(lambda: met >= 3)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "versions"),
    [
        (b"\x20\x03\x00\x87\x00", [5, 5, 5, 5, 5]),
        (b"\x20\x02\x00\x01", [5, 4, 5, 4, 5]),
        (b"", [5, 5, 4, 5, 5]),
    ],
    ids=["not authorized", "protocol refused", "hung up"],
)
async def test_only_a_broker_that_lacks_mqtt_5_is_asked_for_less(answer: bytes, versions: list[int]) -> None:
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.read(100)).partition(b"MQTT")[2][0])
        writer.write(answer)

    async with scripted(serve) as port, frontend(simulated(), f"mqtt://127.0.0.1:{port}", online=False):
        await until(lambda: len(asked) >= 5)
    assert asked[:5] == versions


def test_counters_are_metrics() -> None:
    welcome = Welcome(resumed=False, receive_maximum=20, client_id="gw")
    made = samples("default", {"connected": 1, "dropped_x": 2, "received": 3}, {"main": welcome})
    found = {(each.name, *each.labels.values()): each for each in made}
    assert found["edge_gateway_mqtt_now", "default", "connected"].value == 1
    assert not found["edge_gateway_mqtt_now", "default", "connected"].counter
    assert found["edge_gateway_mqtt_drops_total", "default", "x"].value == 2
    assert found["edge_gateway_mqtt_events_total", "default", "received"].value == 3
    assert found["edge_gateway_mqtt_broker_limit", "default", "main", "receive_maximum"].value == 20
    assert found["edge_gateway_mqtt_connection_info", "default", "main", "5", "gw"].value == 1
