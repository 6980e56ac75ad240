"""Ten thousand connections that are mostly idle: `python -m tests.attack.connections`.

Each comes from one of 64 loopback addresses and sends one request. 16 others send one request after another, first
alone and then with all others open. Prints the memory per connection, the processor time while all are idle, and the
durations of calls.

examples:
  python -m tests.attack.connections
  python -m tests.attack.connections --connections 1000 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil

from tests.attack.callers import Caller, Seen, connect
from tests.attack.good_client import REQUEST
from tests.attack.rig import Attack, target_of, victim

ADDRESSES = 64
AT_ONCE = 50
OTHER_FILES = 200
ASKING = 16
CONFIG = "[grpc]\nmax_connections = {most}\n"


def measured(folder: Path, connections: int, seconds: float) -> dict[str, Any]:
    """Open the connections to a separate daemon and measure."""
    files = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > hard:
        raise SystemExit(f"{files} open files are needed and {hard} allowed: raise the limit (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))  # the daemon inherits it
    try:
        with victim(Attack("", config=CONFIG.format(most=connections + ASKING)), folder) as daemon:
            return asyncio.run(_measured(target_of(daemon).grpc, psutil.Process(daemon.pid), connections, seconds))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _measured(address: str, daemon: psutil.Process, connections: int, seconds: float) -> dict[str, Any]:
    message = REQUEST.SerializeToString()
    asking = await connect(address, message, [""] * ASKING)
    alone = await _ask(asking, seconds)
    before_bytes, began_s = daemon.memory_info().rss, time.monotonic()
    idle: list[Caller] = []
    for begin in range(0, connections, AT_ONCE):
        sources = [f"127.0.1.{number % ADDRESSES + 1}" for number in range(begin, min(begin + AT_ONCE, connections))]
        idle += (callers := await connect(address, message, [""] * len(sources), sources))
        for caller in callers:
            caller.ask()
            await caller.free.wait()
    opened_s = time.monotonic() - began_s
    answered = sum(caller.seen.answered for caller in idle)
    used_s = _cpu_s(daemon)
    await asyncio.sleep(seconds)
    idle_cpu_s = _cpu_s(daemon) - used_s
    among = await _ask(asking, seconds)
    grown_bytes = daemon.memory_info().rss - before_bytes
    for caller in (*idle, *asking):
        caller.close()
    return {
        "connections": len(idle),
        "answered": answered,
        "opened_per_s": round(len(idle) / opened_s),
        "bytes_per_connection": round(grown_bytes / len(idle)),
        "idle_cpu_percent": round(100 * idle_cpu_s / seconds, 2),
        "alone_p50_ms": round(alone[0], 2),
        "alone_p99_ms": round(alone[1], 2),
        "among_p50_ms": round(among[0], 2),
        "among_p99_ms": round(among[1], 2),
    }


async def _ask(callers: Sequence[Caller], seconds: float) -> tuple[float, float]:
    """Return median and 99th percentile in ms of calls that each caller makes one after another."""
    ends_s = time.monotonic() + seconds
    for caller in callers:
        caller.seen = Seen()

    async def one_by_one(caller: Caller) -> None:
        while time.monotonic() < ends_s:
            caller.ask()
            await caller.free.wait()

    await asyncio.gather(*map(one_by_one, callers))
    percentiles = quantiles([took_s for caller in callers for took_s in caller.seen.took_s], n=100)
    return percentiles[49] * 1e3, percentiles[98] * 1e3


def _cpu_s(daemon: psutil.Process) -> float:
    times = daemon.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000, help="idle connections")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement of calls")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="connections-") as folder:
        seen = measured(Path(folder), arguments.connections, arguments.seconds)
    print(json.dumps(seen) if arguments.json else "\n".join(f"{key:20} {value}" for key, value in seen.items()))


if __name__ == "__main__":
    main()
