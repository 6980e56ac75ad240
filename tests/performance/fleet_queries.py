"""Time of a page of 100 devices by query: `python -m tests.performance.fleet_queries [DEVICES]`."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from fleet.controller.control.device_query import selected
from fleet.controller.database import devices, tables
from fleet.controller.database.devices import DeviceSelection
from fleet.controller.database.engine import Database
from tests.simulators.databases import KINDS, made

QUERIES = (
    "all",
    "tag = t3",
    "tag = rack-499",
    "id = device-009999",
    "tag = none",
    "accelerator = coral-* and not tag = t1",
    "site = site-7 and version.meter-reader < 3",
    "version.activity >= 4 or tag in (t1, rack-*) and profile != x86",
)
PASSES = 9
NOW = datetime.now(UTC)


def main() -> None:
    """Print one line for each query on each database."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder, made(kind, Path(folder)) as database:
            _fill(database, count)
            for query in QUERIES:
                rows, took_ms = _measured(database, query)
                print(f"{kind:11} {query:64} {rows:4} rows {took_ms:7.1f} ms")


def _measured(database: Database, query: str) -> tuple[int, float]:
    took_s, rows = [], 0
    for _ in range(PASSES):
        began_s = time.perf_counter()
        with database.read() as connection:
            wanted = DeviceSelection(matching=selected(connection, query))
            rows = len(devices.page(connection, wanted, database.settings))
        took_s.append(time.perf_counter() - began_s)
    return rows, 1000 * statistics.median(took_s)


def _fill(database: Database, count: int) -> None:
    names = [f"device-{number:06}" for number in range(count)]
    tagged = ((f"t{number % 7}", f"rack-{number % 500}", "all") for number in range(count))
    with database.write() as connection:
        connection.execute(sa.insert(tables.devices), [_device(number, name) for number, name in enumerate(names)])
        pairs = zip(names, tagged, strict=True)
        rows = [{"device": name, "tag": tag} for name, tags in pairs for tag in tags]
        connection.execute(sa.insert(tables.device_tags), rows)
        connection.execute(sa.insert(tables.device_running), list(_running(names)))
    with database.write() as connection:
        connection.exec_driver_sql("ANALYZE")


def _device(number: int, name: str) -> dict[str, Any]:
    kinds = {"profile": ("rpi5", "x86")[number % 2], "accelerators": [] if number % 3 else ["coral-usb"]}
    empty = {"serial": None, "inventory": {}, "health": "ok", "health_details": {}, "revoked_because": ""}
    known = {"id": name, "state": "enrolled", "site": f"site-{number % 50}", "registered": NOW, "enrolled": NOW}
    return {**known, **kinds, **empty}


def _running(names: list[str]) -> Iterator[dict[str, Any]]:
    rest = {"digest": "ab", "variant": "v", "accelerator": "cpu", "state": "committed", "at": NOW}
    for number, name in enumerate(names):
        for slot in ("meter-reader", "activity"):
            yield {"device": name, "slot": slot, "target": f"models/acme/{slot}/{number % 5}/release", **rest}


if __name__ == "__main__":
    main()
