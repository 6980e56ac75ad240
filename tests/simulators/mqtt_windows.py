"""A process with the windows of MQTT routes, a journal and a simulated broker; a kill leaves its file as it is."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.timeouts import timeout
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.journal.journal import FILE, Recovered, SampleJournal
from gateway.serving.frontends.mqtt.journal.records import Record, read_frames
from gateway.serving.frontends.mqtt.journal.writer import CommitRhythm
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.pipeline.pipeline import MessagePipeline
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime
from tests.simulators.constants import settings_with
from tests.simulators.inference import VARIANT, SimulatedInference
from tests.simulators.mqtt_gateway import FAST

CHANNEL = (MqttChannel("v"),)
PLAIN = MqttRoute("r", ("s/+",), "m", sensor="topic[1]", size_rows=2, channel=CHANNEL)
NUMBERED = MqttRoute(
    *("r", ("s/+",), "m"),
    sensor="topic[1]",
    size_rows=2,
    channel=CHANNEL,
    time=MqttTime(sequence="n", lateness_s=0.1),
)


def model(channels: int = 1) -> ModelManifest:
    x, y = (TensorSpec(name, Datatype.FP32, (-1, -1, channels)) for name in "xy")
    return ModelManifest("m", "1", (x,), (y,), (VARIANT,))


class Outlet:
    """Broker that takes everything at once, unless it is `away`."""

    full = False
    receives_since_ns = 0

    def __init__(self) -> None:
        self.sent: list[OutgoingPublish] = []
        self.acknowledged: list[int] = []
        self.away = False
        self.paused = False

    def publish(self, publication: OutgoingPublish) -> bool:
        if self.away:
            return bool(publication.qos)
        self.sent.append(publication)
        if publication.taken:
            publication.taken(0)
        return True

    def acknowledge(self, message: Message) -> None:
        if message.qos:
            self.acknowledged.append(message.mid)

    def pause(self, *, on: bool) -> None:
        self.paused = on

    @property
    def results(self) -> list[tuple[str, list[float]]]:
        """Return id and values of each result."""
        found = (json.loads(one.payload) for one in self.sent)
        return [(one["id"], one["outputs"][0]["data"]) for one in found if "outputs" in one]

    @property
    def values(self) -> list[list[float]]:
        return [values for _, values in self.results]


def replayed(found: Recovered) -> list[Record]:
    """Return the samples, windows and expiries of a journal."""
    return [record for frames in found.frames.values() for record, _ in read_frames(frames)]


OPENED: list[JournaledPipeline] = []
"""Processes of the test; killed ones keep their thread and file open until `close_all`."""


def close_all() -> None:
    """Close the journals of all processes that a test left."""
    for one in OPENED:
        if one.journal._writer._thread.is_alive():
            one.journal.close()
    OPENED.clear()


class JournaledPipeline:
    """A process: pipeline and journal in `folder`. A kill leaves the file as it is."""

    def __init__(
        self,
        folder: Path,
        *routes: MqttRoute,
        manifest: ModelManifest | None = None,
        is_loaded: bool = True,
        **more: Any,
    ) -> None:
        self.folder = folder
        self.counters = Counter[str]()
        own = settings_with(MqttSettings(url="mqtt://x", route=routes), **(FAST | more))
        self.journal = SampleJournal(
            folder, CommitRhythm(0.001, 16, 0.01), snapshot_bytes=own.journal_snapshot_bytes, counters=self.counters
        )
        self.inference = SimulatedInference([manifest or model()])
        if not is_loaded:
            self.inference.manifests.clear()
        self.outlet = Outlet()
        context = RouteContext(self.inference, own, "gw", self.outlet, self.counters, journal=self.journal)
        self.pipeline = MessagePipeline(context, Router(routes, "gw"))
        self.pipeline.recover()
        OPENED.append(self)

    def send(self, mid: int, *rows: dict[str, float], sensor: str = "a", dup: bool = False, epoch: int = 1) -> None:
        payload = json.dumps(rows[0] if len(rows) == 1 else rows).encode()
        times = {"arrived_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        self.pipeline.receive(Message(f"s/{sensor}", payload, 1, mid=mid, dup=dup, epoch=epoch, **times))

    async def committed(self, count: int) -> None:
        await until(lambda: len(self.outlet.acknowledged) >= count)

    async def durable(self) -> None:
        """Wait until everything is on the disk."""
        done = asyncio.Event()
        self.journal.after(done.set)
        await done.wait()

    def killed(self) -> Path:
        """Return a folder with the file as a kill leaves it now."""
        after = self.folder.with_name(f"{self.folder.name}+")
        after.mkdir()
        (after / FILE).write_bytes((self.folder / FILE).read_bytes())
        return after


async def until(condition: Callable[[], bool]) -> None:
    async with timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def value(number: float) -> dict[str, float]:
    """Return a row without a number."""
    return {"v": number}


def numbered(number: int) -> dict[str, float]:
    """Return a row whose value is its number."""
    return {"v": number, "n": number}


class Life:
    """Sensors and a broker over several processes: what is not acknowledged comes again, with DUP, in order."""

    def __init__(self, folder: Path, route: MqttRoute, **more: Any) -> None:
        self.route, self.more = route, {"max_queued": 2, **more}
        self.gateway = JournaledPipeline(folder, route, **self.more)
        self.unacknowledged: dict[int, list[dict[str, float]]] = {}
        self.results: dict[str, list[float]] = {}
        self.repeated = 0

    async def send(self, mid: int, rows: list[dict[str, float]]) -> None:
        self.unacknowledged[mid] = rows
        self.gateway.send(mid, *rows)
        await asyncio.sleep(0)

    async def kill(self) -> None:
        """End the process with the file as it is, and begin another one."""
        after = self.gateway.killed()
        self._collect()
        self.gateway = JournaledPipeline(after, self.route, **self.more)
        for mid, rows in self.unacknowledged.items():
            self.gateway.send(mid, *rows, dup=True)
        await asyncio.sleep(0)

    async def step(self, step: str) -> None:
        """Kill the process, wait for the disk, or replace the journal by what is needed."""
        if step == "kill":
            await self.kill()
        elif step == "sync":
            await self.gateway.durable()
        else:
            self.gateway.journal.renew()
            await asyncio.sleep(0)

    async def end(self) -> list[list[float]]:
        await self.gateway.committed(len(self.unacknowledged))
        await self.gateway.durable()  # the first windows of a sensor run then
        await until(lambda: not self.gateway.pipeline.gauges["running"] + self.gateway.pipeline.gauges["queued"])
        self._collect()
        return sorted(self.results.values())

    def _collect(self) -> None:
        for mid in self.gateway.outlet.acknowledged:
            self.unacknowledged.pop(mid, None)
        for identity, values in self.gateway.outlet.results:
            assert self.results.setdefault(identity, values) == values
