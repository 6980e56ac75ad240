"""Drain of a backlog that a broker kept: the gateway's frontend beside paho-mqtt alone.

    python -m tests.performance.mqtt_backlog [--messages 20000] [--passes 3] [--max-inflight N]

Each message is received at QoS 1, its result is published at QoS 1, and the message is acknowledged after the result's
PUBACK. The frontend decodes JSON, and its model is simulated; paho publishes the payload. mosquitto runs on
one core and the client on another one. The rate counts from the start of the client's process, without its imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.performance.servers import LOAD_CORE, SERVER_CORE, said
from tests.simulators.broker import Mosquitto, mosquitto
from tests.simulators.engine_rig import quick_rig
from tests.simulators.mqtt_gateway import frontend

LIMIT_S = 600.0
BROKER = """
persistence false
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages {inflight}
"""
ROUTE = MqttRoute("single", ("single/+",), "m", sensor="topic[1]")
SENSORS = 40
FILL_AT_ONCE = 10_000
"""Publications of one client: it has 65,535 packet ids."""


async def drain_by_gateway(url: str, count: int, **settings: Any) -> dict[str, float]:
    """Drain `count` messages by the frontend. Return its time and its counters."""
    rig = await quick_rig()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    async with frontend(rig.engine, url, ROUTE, **settings) as gateway:
        while gateway.counters().get("acknowledged", 0) < count:
            await asyncio.sleep(0.005)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        dropped = sum(value for name, value in gateway.counters().items() if name.startswith("dropped_"))
        published = gateway.counters()["answered"]
    await rig.repository.close()
    return {"seconds": took_s, "cpu_s": cpu_s, "published": published, "dropped": dropped}


def drain_by_paho(port: int, count: int) -> dict[str, float]:
    """Drain `count` messages by paho (0: subscribe only): one client receives, another one publishes.

    With one client for both, the PUBACKs of results wait behind the backlog. From 65,535 messages on, paho then has no
    packet id for another result.
    """
    import paho.mqtt.client as paho

    began_s, cpu_s, waiting, done = time.perf_counter(), time.process_time(), dict[int, int](), 0
    results = paho.Client(paho.CallbackAPIVersion.VERSION2, "gw-results", protocol=paho.MQTTv5)
    results.max_inflight_messages_set(1000)
    client = _subscriber(port, lambda: None if count else client.disconnect())

    def received(_client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        sensor = message.topic.rpartition("/")[2]
        sent = results.publish(f"edge/gw/results/single/{sensor}", message.payload, 1)
        waiting[sent.mid] = message.mid

    def taken(_client: paho.Client, _userdata: object, mid: int, _code: Any, _properties: Any) -> None:
        nonlocal done
        done += 1
        client.ack(waiting.pop(mid), 1)

    client.on_message, results.on_publish = received, taken
    results.connect("127.0.0.1", port)
    while client.socket() is not None and (done < count or not count):
        _loop(client, results)
    client.disconnect()
    return {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s, "published": done}


def _subscriber(port: int, subscribed: Callable[[], object]) -> Any:
    """Return a client of paho that connects and subscribes, with a session that the broker keeps."""
    import paho.mqtt.client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    client: Any = paho.Client(paho.CallbackAPIVersion.VERSION2, "gw", protocol=paho.MQTTv5, manual_ack=True)
    client.on_subscribe = lambda *_: subscribed()
    client.on_connect = lambda *_: client.subscribe("single/+", 1)
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 86_400
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    return client


def _loop(*clients: Any) -> None:
    """Read and write one packet of each client that can."""
    readable, _, _ = select.select([client.socket() for client in clients], (), (), 1.0)
    for client in clients:
        if client.socket() in readable:
            client.loop_read()
        if client.want_write():
            client.loop_write()


def fill(port: int, count: int) -> None:
    """Publish `count` messages at QoS 1."""
    import paho.mqtt.client as paho

    for first in range(0, count, FILL_AT_ONCE):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.max_inflight_messages_set(200)
        client.connect("127.0.0.1", port)
        client.loop_start()
        indices = range(first, min(count, first + FILL_AT_ONCE))
        sent = [client.publish(f"single/{index % SENSORS}", f"[{index}]", 1) for index in indices]
        for publication in sent:
            publication.wait_for_publish(LIMIT_S)
        client.disconnect()
        client.loop_stop()


async def one_pass(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Let a broker keep a backlog for the client id `gw`, and drain it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with mosquitto(Path(folder), BROKER.format(inflight=options.broker_inflight)) as broker:
            _pin(broker)
            await asyncio.to_thread(drain_by_paho, broker.port, 0)
            await asyncio.to_thread(fill, broker.port, options.messages)
            words = [kind, str(broker.port), str(options.messages), str(options.max_inflight)]
            command = [sys.executable, "-m", "tests.performance.mqtt_backlog", "--child", *words]
            return dict(json.loads(await asyncio.to_thread(said, command, SERVER_CORE, LIMIT_S)))


def _pin(broker: Mosquitto) -> None:
    if broker.pid is not None:
        os.sched_setaffinity(broker.pid, {LOAD_CORE})


def _child(kind: str, port: str, count: str, max_inflight: str) -> None:
    if kind == "paho":
        figures = drain_by_paho(int(port), int(count))
    else:
        url = f"mqtt://127.0.0.1:{port}"
        figures = asyncio.run(drain_by_gateway(url, int(count), max_inflight=int(max_inflight)))
    sys.stdout.write(json.dumps(figures))


def main(words: list[str]) -> int:
    """Run the passes and print the rates."""
    if words[:1] == ["--child"]:
        _child(*words[1:])
        return 0
    parser = argparse.ArgumentParser(description="drain of a backlog over MQTT")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--max-inflight", type=int, default=100)
    parser.add_argument("--broker-inflight", type=int, default=20, help="max_inflight_messages of mosquitto")
    options = parser.parse_args(words)
    passes: dict[str, list[dict[str, float]]] = {"paho": [], "gateway": []}
    for _ in range(options.passes):
        for kind, found in passes.items():
            found.append(asyncio.run(one_pass(kind, options)))
            line = {name: round(value, 2) for name, value in found[-1].items()}
            sys.stdout.write(f"{kind}: {options.messages / found[-1]['seconds']:,.0f} messages/s {line}\n")
            sys.stdout.flush()
    for figure in ("seconds", "cpu_s"):
        paho, gateway = (statistics.median(each[figure] for each in passes[kind]) for kind in passes)
        costs = f"{paho / options.messages * 1e6:.0f} and {gateway / options.messages * 1e6:.0f} µs a message"
        sys.stdout.write(f"{figure}: paho and gateway {costs}; rate of the gateway: {paho / gateway:.2f} of paho's\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
