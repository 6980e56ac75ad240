"""Drain of a backlog that a broker kept: the gateway's frontend beside a bare loop of paho-mqtt.

    python -m tests.performance.mqtt_backlog [--messages 20000] [--passes 3] [--max-inflight N]

Each message is received at QoS 1, its result is published at QoS 1, and the message is acknowledged after the result's
PUBACK. The frontend decodes JSON, and its engine answers at once; paho's loop publishes the payload. mosquitto runs on
one core and the client on another one. The rate counts from the start of the client's process, without its imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.ports import Pending, Sink
from gateway.domain.sizes import RequestSizes
from gateway.domain.tensor import Datatype, Tensor
from gateway.frontends.mqtt.route_settings import MqttRoute
from tests.performance.servers import LOAD_CORE, SERVER_CORE, said
from tests.simulators.broker import Mosquitto, mosquitto
from tests.simulators.inference import SimulatedInference, identity
from tests.simulators.mqtt_gateway import frontend

LIMIT_S = 600.0
BROKER = """
persistence false
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages {inflight}
"""
ROUTE = MqttRoute("single", ("single/+",), "identity_fp32", sensor="topic[1]")
SENSORS = 40
FILL_AT_ONCE = 10_000
"""Publications of one client: it has 65,535 packet ids."""


class AnsweringEngine(SimulatedInference):
    """Engine that answers each request in the next pass of the event loop."""

    def __init__(self) -> None:
        super().__init__([identity(Datatype.FP32)])
        self._sizes = super().sizes("identity_fp32")

    def sizes(self, model: str) -> RequestSizes:
        """Return the sizes, computed once as in the engine."""
        return self._sizes

    def submit(self, request: InferRequest, sink: Sink, token: Any) -> Pending:
        """Answer with the input."""
        response = InferResponse(
            "identity_fp32", "1", request.id, {"y": Tensor(Datatype.FP32, _input(request))}, "none"
        )
        return asyncio.get_running_loop().call_soon(self._answer, response, sink, token)

    @staticmethod
    def _answer(response: InferResponse, sink: Sink, token: Any) -> None:
        sink.answer(token, response)
        sink.flush()


def _input(request: InferRequest) -> Any:
    return request.inputs["x"].array


async def drain_by_gateway(url: str, count: int, **settings: Any) -> dict[str, float]:
    """Drain `count` messages by the frontend. Return its time and its counters."""
    engine, began_s, cpu_s = AnsweringEngine(), time.perf_counter(), time.process_time()
    async with frontend(engine, url, ROUTE, **settings) as gateway:
        while gateway.counters().get("acknowledged", 0) < count:
            await asyncio.sleep(0.005)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        dropped = sum(value for name, value in gateway.counters().items() if name.startswith("dropped_"))
        published = gateway.counters()["answered"]
    return {"seconds": took_s, "cpu_s": cpu_s, "published": published, "dropped": dropped}


def drain_by_paho(port: int, count: int) -> dict[str, float]:
    """Drain `count` messages by paho's own loop (0: subscribe only)."""
    import paho.mqtt.client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    began_s, cpu_s, waiting, done = time.perf_counter(), time.process_time(), dict[int, int](), 0
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "gw", protocol=paho.MQTTv5, manual_ack=True)
    client.max_inflight_messages_set(1000)

    def received(_client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        sensor = message.topic.rpartition("/")[2]
        sent = client.publish(f"edge/gw/results/single/{sensor}", message.payload, 1)
        waiting[sent.mid] = message.mid

    def taken(_client: paho.Client, _userdata: object, mid: int, _code: Any, _properties: Any) -> None:
        nonlocal done
        done += 1
        client.ack(waiting.pop(mid), 1)
        if done == count:
            client.disconnect()

    subscribed = lambda *_: None if count else client.disconnect()  # noqa: E731
    client.on_message, client.on_publish, client.on_subscribe = received, taken, subscribed
    client.on_connect = lambda *_: client.subscribe("single/+", 1)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 86_400
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    client.loop_forever()
    return {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s, "published": done}


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
