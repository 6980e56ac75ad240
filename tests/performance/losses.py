"""Count what is lost between sensors and results while the gateway, the broker and the network fail.

    python -m tests.performance.losses --gateway 20 --broker 10 --network 20

Sensors publish numbered samples at QoS 1: some as single messages, some for windows of four. A paho client that does
nothing else subscribes to the same samples through the same faults: the neighbour. A broker that is killed between two
sends of one sample loses it, and results that it accepted from the gateway: both are counted apart. Every number is
checked: whether its result came, how often, under which id, in which order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.simulators.broker import Mosquitto, Relay, mosquitto, relay
from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon

WINDOW_ROWS = 4
SENSORS = 4
LATENESS_S, PENDING_ROWS = 30.0, 2_000
"""Time for which numbered samples wait for a missing one, and rows that wait: longer than any outage of a run.

mosquitto sends what was in flight again seconds after its own restart; 2 s were too short for that.
"""
QUIET_S, ENDS_S = LATENESS_S + 15.0, 600.0
"""Time without another result after which all have come; longest time for that."""
CONFIG = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "bench"
[mqtt]
reconnect_min_s = 0.1
reconnect_max_s = 0.5
[[mqtt.route]]
name = "single"
topics = ["single/+"]
sensor = "topic[1]"
model = "one"
[[mqtt.route]]
name = "window"
topics = ["window/+"]
sensor = "topic[1]"
model = "four"
size_rows = {WINDOW_ROWS}
[[mqtt.route]]
name = "numbered"
topics = ["numbered/+"]
sensor = "topic[1]"
model = "four"
size_rows = {WINDOW_ROWS}
[mqtt.route.time]
sequence = "[0]"
lateness_s = {LATENESS_S}
max_pending_rows = {PENDING_ROWS}
[[mqtt.route.channel]]
path = "[0]"
"""
SENT = re.compile(rb"((?:single|window|numbered)/[0-9])[^[]{1,60}?\[([0-9]+)\]")
"""Topic and number of a sample in what the broker sent."""
GIVEN = re.compile(rb'results/((?:single|window|numbered)/[0-9]).{1,800}?"data":\[([0-9.,]+)\]', re.DOTALL)
"""Topic and numbers of a result in what the gateway sent."""
KINDS = ("single", "window", "numbered")
"""Single messages, windows in the order of arrival, and windows in the order of a number in the payload."""


@dataclass(slots=True)
class Kept:
    """Samples of one sensor: their numbers that the broker acknowledged, and those that the neighbour got."""

    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    neighbour: list[int] = field(default_factory=list)
    results: list[tuple[str, list[int]]] = field(default_factory=list)
    """Id and numbers of each result."""


@dataclass(slots=True)
class Losses:
    """Result of one kind of route."""

    acknowledged: int = 0
    missing: int = 0
    lost_by_the_broker: int = 0
    """Samples that the broker acknowledged and never sent to the gateway."""
    lost_results: int = 0
    """Samples with a result that the gateway sent and the broker lost."""
    repeated_with_the_same_id: int = 0
    repeated_with_another_id: int = 0
    repeated_at_the_neighbour: int = 0
    spliced: int = 0
    """Windows whose samples do not follow each other."""
    out_of_order: int = 0

    def add(self, kept: Kept, delivered: set[int], published: set[int]) -> None:
        """Count what became of one sensor's samples: those that the gateway got, and those in results that it sent."""
        came, ids = Counter[int](), defaultdict[int, set[str]](set)
        for identity, numbers in kept.results:
            came.update(numbers)
            for number in numbers:
                ids[number].add(identity)
            self.spliced += any(later - earlier != 1 for earlier, later in pairwise(numbers))
        lost = {number for number in kept.acknowledged - _unfinished(kept) if not came[number]}
        self.lost_results += len(lost & published)
        self.acknowledged += len(kept.acknowledged)
        self.missing += len(lost & delivered - published)
        self.lost_by_the_broker += len(lost - delivered - published)
        self.repeated_with_the_same_id += sum(came[one] - len(ids[one]) for one in came)
        self.repeated_with_another_id += sum(len(ids[one]) - 1 for one in came)
        self.repeated_at_the_neighbour += len(kept.neighbour) - len(set(kept.neighbour))
        firsts = list(dict.fromkeys(numbers[0] for _, numbers in kept.results))
        self.out_of_order += sum(later < earlier for earlier, later in pairwise(firsts))


def _unfinished(kept: Kept) -> set[int]:
    """Return the last samples, which may belong to a window that is not complete."""
    size = len(kept.results[0][1]) if kept.results else 1
    newest = max((numbers[-1] for _, numbers in kept.results), default=-1)
    return set(range(newest + 1, newest + size)) if size > 1 else set()


class Bench:
    """Sensors, neighbour and collector at one broker."""

    def __init__(self, broker: Mosquitto, way: Relay, aside: Relay) -> None:
        self.kept: dict[str, Kept] = {f"{kind}/{index}": Kept() for kind in KINDS for index in range(SENSORS)}
        self.came = 0
        self.ways = (way, aside)
        self._early: set[int] = set()
        self._inflight: dict[int, tuple[str, int]] = {}
        self.sensors = self._client(broker.port, "play-sensors", {})
        self.neighbour = self._client(aside.port, "play-neighbour", {f"{kind}/#": self._seen for kind in KINDS})
        self.collector = self._client(broker.port, "play-results", {"edge/bench/results/#": self._result})
        self.sensors.on_publish = lambda _c, _u, mid, *_: self._acknowledged(mid)

    def publish(self, topic: str) -> None:
        """Publish the next sample of a sensor."""
        kept = self.kept[topic]
        number, kept.sent = kept.sent, kept.sent + 1
        mid = self.sensors.publish(topic, json.dumps([number]), 1).mid
        self._inflight[mid] = topic, number
        if mid in self._early:  # the PUBACK came before `publish` returned
            self._acknowledged(mid)

    def close(self) -> None:
        """Disconnect all clients."""
        for client in (self.sensors, self.neighbour, self.collector):
            client.disconnect()
            client.loop_stop()

    def _client(self, port: int, name: str, filters: dict[str, Callable[[MQTTMessage], None]]) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        client.reconnect_delay_set(1, 1)
        client.max_inflight_messages_set(20)
        for filter_, receive in filters.items():
            client.message_callback_add(filter_, lambda _c, _u, message, receive=receive: receive(message))
        client.on_connect = lambda made, *_: [made.subscribe(filter_, 1) for filter_ in filters]
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3_600
        client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        client.loop_start()
        return client

    def _acknowledged(self, mid: int) -> None:
        self._early.add(mid)
        if (found := self._inflight.pop(mid, None)) is not None:
            self._early.discard(mid)
            self.kept[found[0]].acknowledged.add(found[1])

    def _seen(self, message: MQTTMessage) -> None:
        self.kept[message.topic].neighbour.append(json.loads(message.payload)[0])

    def _result(self, message: MQTTMessage) -> None:
        topic, identity, numbers = _read(message)
        self.kept[topic].results.append((identity, numbers))
        self.came += 1


def _read(message: MQTTMessage) -> tuple[str, str, list[int]]:
    """Return the topic of the samples of a result, its id, and their numbers."""
    said = json.loads(message.payload)
    kind, sensor = message.topic.split("/")[3:5]
    return f"{kind}/{sensor}", said["id"], [round(one) for one in said["outputs"][0]["data"]]


def write_models(folder: Path) -> None:
    """Write two bare models that return their input: one number, and a window."""
    import onnx
    from onnx import TensorProto, helper

    for name, shape in (("one", ["rows", 1]), ("four", ["rows", WINDOW_ROWS, 1])):
        values = [helper.make_tensor_value_info(side, TensorProto.FLOAT, shape) for side in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, values[:1], values[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        (folder / name).mkdir(parents=True)
        onnx.save(model, folder / name / "model.onnx")


async def measure(faults: Sequence[str], rate_hz: float, seed: int, folder: Path) -> dict[str, Losses]:
    """Return the losses, by kind of route, of a run with these faults, one about every second."""
    chance = random.Random(seed)
    models = folder / "models"
    write_models(models)
    async with _set_up(folder, models) as (broker, daemon, bench):
        sending = asyncio.create_task(_send(bench, rate_hz, chance))
        for fault in faults:
            await asyncio.sleep(chance.uniform(0.3, 1.7))
            await _fail(fault, broker, bench.ways, daemon, chance)
        await asyncio.sleep(1.0)
        sending.cancel()
        await _settle(bench)
        losses = {kind: Losses() for kind in KINDS}
        delivered, published = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
        for topic, number in SENT.findall(bench.ways[0].delivered):
            delivered[topic.decode()].add(int(number))
        for topic, numbers in GIVEN.findall(bench.ways[0].taken):
            published[topic.decode()].update(int(float(number)) for number in numbers.split(b","))
        for topic, kept in bench.kept.items():
            losses[topic.split("/")[0]].add(kept, delivered[topic], published[topic])
        return losses


@asynccontextmanager
async def _set_up(folder: Path, models: Path) -> AsyncIterator[tuple[Mosquitto, Daemon, Bench]]:
    (folder / "broker").mkdir()
    async with (
        mosquitto(folder / "broker", "max_queued_messages 0") as broker,
        relay(broker) as way,
        relay(broker) as aside,
    ):
        bench = Bench(broker, way, aside)
        daemon = Daemon(folder / "gateway", models=models, config=CONFIG, mqtt=way.url)
        await asyncio.to_thread(daemon.start)
        try:
            await asyncio.to_thread(daemon.wait_logged, "link completed")
            yield broker, daemon, bench
        finally:
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(bench.close)


async def _send(bench: Bench, rate_hz: float, chance: random.Random) -> None:
    while True:
        for topic in bench.kept:
            bench.publish(topic)
        await asyncio.sleep(chance.expovariate(rate_hz))


async def _fail(fault: str, broker: Mosquitto, ways: Sequence[Relay], daemon: Daemon, chance: random.Random) -> None:
    if fault == "gateway":
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
    elif fault == "broker":
        await broker.kill()
        await broker.start()
    elif fault == "stall":
        for way in ways:
            way.hold()
        await asyncio.sleep(chance.uniform(0.1, 1.0))
        for way in ways:
            way.release()
    else:
        await asyncio.gather(*(way.cut() for way in ways))


async def _settle(bench: Bench) -> None:
    """Wait until no more results come."""
    ends_s = asyncio.get_running_loop().time() + ENDS_S
    before = -1
    while bench.came != before and asyncio.get_running_loop().time() < ends_s:
        before = bench.came
        await asyncio.sleep(QUIET_S)


def schedule(gateway: int, broker: int, network: int, seed: int) -> list[str]:
    """Return so many faults of each kind, in random order."""
    faults = ["gateway"] * gateway + ["broker"] * broker
    faults += ["cut" if index % 2 else "stall" for index in range(network)]
    random.Random(seed).shuffle(faults)
    return faults


def main() -> None:
    """Print the table of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("gateway", 20), ("broker", 10), ("network", 20), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=20.0, metavar="HZ", help="samples per second and sensor")
    asked = parser.parse_args()
    faults = schedule(asked.gateway, asked.broker, asked.network, asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(faults, asked.rate, asked.seed, Path(folder)))
    for kind, losses in found.items():
        print(f"{kind}: {facts(losses)}")


def facts(losses: Losses) -> dict[str, Any]:
    """Return the counts by name."""
    return {name: getattr(losses, name) for name in losses.__slots__}


if __name__ == "__main__":
    main()
