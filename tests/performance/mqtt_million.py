"""Account for every message of sensors: each is answered, in a window, or refused with a reason; memory stays flat.

    python -m tests.performance.mqtt_million [--messages 1000000]

Four of ten messages are single ones, five go into windows, one cannot be read. The daemon, mosquitto and a paho client
run on this machine; all messages have QoS 1.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.performance.losses import CONFIG, write_models
from tests.simulators.broker import mosquitto
from tests.simulators.daemon import Daemon

BROKER = "max_queued_messages 0\nmax_inflight_messages 100\npersistence false"
KINDS = (("single", b"[1]"),) * 4 + (("window", b"[1]"),) * 5 + (("single", b"[1"),)
SENSORS = 100
PARTS = 20
"""Measurements of the memory."""
AT_ONCE = 5_000
"""Publications that wait in paho at a time."""
EVENT = re.compile(r'edge_gateway_mqtt_(events|drops)_total\{(?:event|reason)="(\w+)"\} (\S+)')


def counters(daemon: Daemon) -> Counter[str]:
    """Return the daemon's counters; drops have the prefix `dropped_`."""
    with urllib.request.urlopen(f"http://{daemon.http}/metrics", timeout=10) as answer:
        found = EVENT.findall(answer.read().decode())
    return Counter({("dropped_" if kind == "drops" else "") + name: int(float(value)) for kind, name, value in found})


def resident_mib(daemon: Daemon) -> float:
    """Return the daemon's resident memory."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def publish(client: Client, first: int, count: int) -> None:
    """Publish messages of all kinds, and wait until the broker has them."""
    for start in range(first, first + count, AT_ONCE):
        sent = []
        for number in range(start, min(start + AT_ONCE, first + count)):
            kind, payload = KINDS[number % len(KINDS)]
            sent.append(client.publish(f"{kind}/{number % SENSORS}", payload, 1))
        for one in sent:
            one.wait_for_publish()


async def settled(daemon: Daemon, messages: int) -> Counter[str]:
    """Return the counters once all messages have been received and nothing changes any more."""
    before: Counter[str] = Counter()
    while True:
        now = await asyncio.to_thread(counters, daemon)
        if now["received"] >= messages and now == before:
            return now
        before = now
        await asyncio.sleep(1.0)


def accounted(found: Counter[str]) -> dict[str, int]:
    """Return the number of messages by what became of them."""
    drops = {name: count for name, count in found.items() if name.startswith("dropped_")}
    singles = found["answered"] - found["windows"]
    return {"answered": singles, "windowed": found["samples"], "refused": found["refused"], **drops}


async def measure(messages: int, folder: Path) -> None:
    """Print memory and rate of each part, then what became of the messages."""
    write_models(folder / "models")
    (folder / "broker").mkdir()
    async with mosquitto(folder / "broker", BROKER) as broker:
        daemon = Daemon(folder / "gateway", models=folder / "models", config=CONFIG, mqtt=broker.url)
        await asyncio.to_thread(daemon.start)
        client = Client(CallbackAPIVersion.VERSION2)
        client.max_inflight_messages_set(1_000)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        try:
            await asyncio.to_thread(daemon.wait_logged, "link completed")
            for part in range(PARTS):
                began_s = time.monotonic()
                await asyncio.to_thread(publish, client, part * messages // PARTS, messages // PARTS)
                await settled(daemon, (part + 1) * messages // PARTS)
                rate = messages / PARTS / (time.monotonic() - began_s)
                print(f"{(part + 1) * messages // PARTS:>9} messages  {rate:7.0f}/s  {resident_mib(daemon):6.1f} MiB")
            found = accounted(await settled(daemon, messages))
        finally:
            client.disconnect()
            client.loop_stop()
            await asyncio.to_thread(daemon.kill)
    print(found, f"sum {sum(found.values())} of {messages}")


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(asked.messages, Path(folder)))


if __name__ == "__main__":
    main()
