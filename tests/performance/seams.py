"""Count what a sensor's messages become between two lives: starts, changed settings, another broker, another model.

    python -m tests.performance.seams --load-s 60

Each case has a broker and a daemon of its own. A sensor publishes messages with numbers at QoS 1; a message is answered
if a result with its number came, refused if an error or no result came for a model that is absent, doubled if two
results with different ids came, and lost otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import tempfile
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.performance.losses import write_models
from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import LIVE, QUIET, SHORT_TRIALS, Daemon, DaemonEndedError
from tests.simulators.mqtt_peer import Peer, peer

COUNT = 100
QUIET_S = 5.0
"""Time without another result or error after which all have come."""
ROUTE = '[[mqtt.route]]\nname = "{0}"\ntopics = ["{1}"]\nsensor = "topic[1]"\nmodel = "one"\n'
CONFIG = f'{QUIET}{SHORT_TRIALS}[gateway]\nid = "gw"\n[mqtt]\nreconnect_min_s = 0.1\nreconnect_max_s = 0.5\n'


@dataclass(slots=True)
class Seam:
    """Broker, folders and counts of one case."""

    broker: Mosquitto
    home: Peer
    folder: Path
    load_s: float
    sent: int = 0
    note: str = ""
    daemons: list[Daemon] = field(default_factory=list)

    def daemon(self, *routes: tuple[str, str], state: str = "state", trial: str = "") -> Daemon:
        """Return a daemon with routes (name, topics) that is not started."""
        text = (CONFIG.replace(SHORT_TRIALS, trial) if trial else CONFIG) + "".join(
            ROUTE.format(*each) for each in routes
        )
        place = self.folder / f"daemon{len(self.daemons)}"
        made = Daemon(
            place, models=self.folder / "models", state=self.folder / state, config=text, mqtt=self.broker.url
        )
        self.daemons.append(made)
        return made

    async def up(self, *routes: tuple[str, str], **more: str) -> Daemon:
        """Return a daemon whose link is complete."""
        daemon = self.daemon(*routes, **more)
        await asyncio.to_thread(daemon.start)
        await asyncio.to_thread(daemon.wait_logged, "link completed")
        return daemon

    async def send(self, count: int = COUNT, topic: str = "s/a/imu", value: float | None = None) -> None:
        """Publish messages with the next numbers, or all with `value`."""
        for _ in range(count):
            await self.home.publish(topic, f"[{self.sent if value is None else value}]")
            self.sent += 1

    async def settle(self) -> None:
        """Wait until nothing more comes."""
        count = -1
        while count != len(self.home.received):
            count = len(self.home.received)
            await asyncio.sleep(QUIET_S)


IMU = ("single", "s/+/imu")
Case = Callable[[Seam], Awaitable[None]]


async def backlog(seam: Seam) -> None:
    """Start with a backlog at the broker."""
    await asyncio.to_thread((await seam.up(IMU)).stop)
    await seam.send()
    await seam.up(IMU)


async def restart(seam: Seam) -> None:
    """Stop and start while messages come."""
    daemon = await seam.up(IMU)
    sending = asyncio.ensure_future(seam.send(400))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(daemon.stop)
    await seam.up(IMU)
    await sending


async def changed_topics(seam: Seam) -> None:
    """Change the topics `s/+/imu` to `s/#`."""
    await asyncio.to_thread((await seam.up(IMU)).stop)
    await seam.up(("single", "s/#"))
    await seam.send()


async def removed_route(seam: Seam) -> None:
    """Remove a route; its messages are nobody's, those of the other route are answered."""
    await asyncio.to_thread((await seam.up(IMU, ("other", "o/+/imu"))).stop)
    daemon = await seam.up(("other", "o/+/imu"))
    for _ in range(COUNT):
        await seam.home.publish("s/a/imu", "[-1]")
    await seam.send(topic="o/a/imu")
    await seam.settle()
    seam.note = f"{metric(daemon, 'received')} received, {COUNT} of another route sent, too"


async def new_broker(seam: Seam) -> None:
    """Replace the broker by one without its state: equal messages under packet ids that were there before."""
    await seam.up(IMU)
    await seam.send(40, value=7)
    await seam.settle()
    await seam.broker.kill()
    for path in seam.folder.joinpath("broker").glob("*.db*"):
        path.unlink()
    await seam.broker.start()
    await asyncio.to_thread(seam.daemons[-1].wait_logged, "broker connection made")
    while not seam.home.connected:
        await asyncio.sleep(0.1)
    await seam.home.subscribe("edge/gw/results/#", "edge/gw/errors")
    async with peer(seam.broker.port) as sensor:
        for _ in range(40):
            await sensor.publish("s/a/imu", "[7]")
            seam.sent += 1


async def restored_backup(seam: Seam) -> None:
    """Restore a copy of the state folder that is older than the last messages."""
    daemon = await seam.up(IMU)
    await seam.send(50)
    await asyncio.to_thread(daemon.stop)
    shutil.copytree(seam.folder / "state", seam.folder / "backup")
    daemon = await seam.up(IMU)
    await seam.send(50)
    await asyncio.to_thread(daemon.stop)
    await seam.send(50)
    await seam.up(IMU, state="backup")
    await seam.send(50)


async def second_daemon(seam: Seam) -> None:
    """Start another daemon on the same state folder."""
    await seam.up(IMU)
    second = seam.daemon(IMU)
    try:
        await asyncio.to_thread(second.start)
    except DaemonEndedError:
        seam.note = f"second daemon: exit code {second.ended()}"
    else:
        seam.note = "second daemon: runs"
    await seam.send()


async def absent(seam: Seam) -> None:
    """Remove the model."""
    shutil.rmtree(seam.folder / "models" / "one")
    await seam.up(IMU)
    await seam.send()


async def refused(seam: Seam) -> None:
    """Refuse the model: its file is damaged."""
    (seam.folder / "models" / "one" / "model.onnx").write_bytes(b"damaged")
    await seam.up(IMU)
    await seam.send()


async def loading(seam: Seam) -> None:
    """Add the model while messages come; its trial lasts long."""
    shutil.move(seam.folder / "models" / "one", seam.folder / "one")
    trial = (
        f"[trial]\nmeasure_s = {seam.load_s}\nmeasure_runs = 1_000_000_000\ndeadline_s = {10 * seam.load_s}\nnice = 0\n"
    )
    daemon = await seam.up(IMU, trial=trial)
    shutil.move(seam.folder / "one", seam.folder / "models" / "one")
    daemon.signal(signal.SIGHUP)
    while not await asyncio.to_thread(is_loading, daemon):
        await asyncio.sleep(0.1)
    await seam.send()
    seam.note = f"{metric(daemon, 'held_model_away')} times held"
    await asyncio.to_thread(daemon.wait_logged, "variant chosen", 20 * seam.load_s, model="one")


CASES: dict[str, Case] = {
    "start with a backlog": backlog,
    "restart": restart,
    "changed topics": changed_topics,
    "removed route": removed_route,
    "new broker": new_broker,
    "restored backup": restored_backup,
    "second daemon": second_daemon,
    "model absent": absent,
    "model loading": loading,
    "model refused": refused,
}


def fetched(daemon: Daemon, path: str) -> str:
    """Return a page of the daemon."""
    with urllib.request.urlopen(f"http://{daemon.http}{path}") as answer:
        return str(answer.read(), "utf-8")


def is_loading(daemon: Daemon) -> bool:
    """Return True if the model `one` loads."""
    try:
        fetched(daemon, "/v2/models/one/config")
    except urllib.error.HTTPError as error:
        return b"is loading" in error.read()
    return False


def metric(daemon: Daemon, event: str) -> int:
    """Return a counter of MQTT events."""
    lines = [line for line in fetched(daemon, "/metrics").splitlines() if f'event="{event}"' in line]
    return int(float(lines[0].rpartition(" ")[2])) if lines else 0


async def measure(name: str, load_s: float) -> tuple[str, ...]:
    """Run one case. Return the row of the table."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        folder.joinpath("broker").mkdir(mode=0o777)
        write_models(folder / "models")
        broker = Mosquitto(folder / "broker")
        await broker.start()
        try:
            async with peer(broker.port) as home:
                await home.subscribe("edge/gw/results/#", "edge/gw/errors")
                seam = Seam(broker, home, folder, load_s)
                try:
                    await CASES[name](seam)
                    await seam.settle()
                finally:
                    for daemon in seam.daemons:
                        await asyncio.to_thread(daemon.stop) if daemon in LIVE else None
                return row(name, seam)
        finally:
            await broker.kill()


def row(name: str, seam: Seam) -> tuple[str, ...]:
    """Return what became of the messages."""
    ids, errors = defaultdict[float, set[str]](set), Counter[str]()
    for message in seam.home.received:
        found = json.loads(message.payload)
        if message.topic.endswith("/errors"):
            errors[found["fault"]] += 1
        else:
            ids[found["outputs"][0]["data"][0]].add(found["id"])
    answered = sum(map(len, ids.values()))
    doubled = 0 if len(ids) == 1 else answered - len(ids)
    lost = max(0, seam.sent - answered - sum(errors.values()))
    told = ", ".join(f"{count} {fault}" for fault, count in errors.items()) or "0"
    return name, str(seam.sent), str(answered), told, str(doubled), str(lost), seam.note


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="run this case only; may be repeated")
    parser.add_argument("--load-s", type=float, default=60.0, help="time that the trial of the loading model takes")
    arguments = parser.parse_args()
    table = Table("case", "sent", "answered", "refused", "doubled", "lost", "note")
    for name in arguments.case or CASES:
        table.add_row(*asyncio.run(measure(name, arguments.load_s)))
    Console().print(table)


if __name__ == "__main__":
    main()
