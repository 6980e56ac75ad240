"""Cost of watching a fleet: `python -m tests.performance.fleet_watch [devices] [sqlite|postgresql]`.

Prints the time of an evaluation by the leader, a page of metrics, OTLP's form and a message to a webhook.
"""

from __future__ import annotations

import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from fleet.controller.database import alerts, leader
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.engine import Database
from fleet.controller.database.figures import figures
from fleet.controller.database.tables import certificates, device_seen, devices, telemetry, telemetry_sources
from fleet.controller.monitoring.evaluation import AlertEvaluation
from fleet.controller.monitoring.otlp_devices import Names, pieces
from fleet.controller.monitoring.post import Post
from fleet.controller.monitoring.settings import AlertSettings
from fleet.controller.monitoring.webhook import Webhook
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, made
from tests.simulators.receiver import receiving
from tests.unit.fleet.monitoring.test_otlp import STATISTICS, VITALS, heard

SETTINGS = settings_with(AlertSettings(), settle_s=0.0)
NEW = {"profile": "", "accelerators": [], "site": "", "inventory": {}, "health": "", "health_details": {}}


def filled(database: Database, count: int) -> None:
    """Store so many devices that were seen just now, each with a certificate and four streams."""
    names = [f"device-{number:07}" for number in range(count)]
    empty = {"contiguous": 1, "spans": [], "lost": 0, "rows": 1, "bytes": 900, "boot_epoch": 1}
    with database.write() as connection:
        for start in range(0, count, 5_000):
            part = names[start : start + 5_000]
            known = {"state": "enrolled", "registered": NOW, "enrolled": NOW, "revoked_because": "", **NEW}
            connection.execute(sa.insert(devices), [{"id": name, **known} for name in part])
            connection.execute(sa.insert(device_seen), [{"device": name, "seen": NOW} for name in part])
            lasts = NOW + timedelta(days=90)
            rows = [Certificate(f"{name}-c", name, NOW, lasts) for name in part]
            fields = Certificate.__slots__
            values = [{field: getattr(row, field) for field in fields} for row in rows]
            connection.execute(sa.insert(certificates), values)
            streams = ("vitals", "statistics", "state", "updates")
            found = [{"device": name, "stream": stream, **empty} for name in part for stream in streams]
            connection.execute(sa.insert(telemetry_sources), found)


def told(database: Database, rows: int, at_s: float) -> None:
    """Store vitals and statistics of so many devices."""
    at = NOW + timedelta(seconds=at_s)
    with database.write() as connection:
        wanted = telemetry_sources.c.stream.in_(["vitals", "statistics"])
        found = connection.execute(
            sa.select(telemetry_sources.c.id, telemetry_sources.c.stream).where(wanted).limit(rows)
        )
        said = {"vitals": VITALS, "statistics": STATISTICS}
        common = {"seq": int(at_s), "at": at, "received": at, "kind": "x", "bytes": 900}
        values = [{"source": source, "document": said[stream], **common} for source, stream in found]
        connection.execute(sa.insert(telemetry), values)


def timed(name: str, work: Callable[[], object], times: int = 3) -> None:
    """Print the shortest of some runs."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    print(f"{name:<60} {1000 * min(took):9.1f} ms")


def main(count: int, kind: str) -> None:
    """Measure all of it."""
    with tempfile.TemporaryDirectory() as folder, made(kind, Path(folder)) as database:
        filled(database, count)
        fence = leader.candidate(database, "me").stand(NOW)
        assert fence is not None
        watch, now_s = AlertEvaluation(database, SETTINGS, Counter()), [0.0]

        def look(step_s: float = 1.0) -> None:
            now_s[0] += step_s
            watch.evaluate(fence, NOW + timedelta(seconds=now_s[0]))

        print(f"{count} devices on {kind}")
        timed("a look, first of the hour", look, times=1)
        timed("a look at which nothing is new", look)
        for rows in (1_000, 4_000):
            for _ in range(2):
                told(database, rows, now_s[0] + 1)
                timed(f"a look at {rows} new rows of telemetry", look, times=1)
        while now_s[0] < 3_600:
            look(100.0)
        timed(f"a look at which {min(count, SETTINGS.open_limit)} devices fall silent", lambda: look(150.0), times=1)
        timed("a look while they are", look)
        with database.read() as connection:
            print(alerts.counts(connection))
        with database.read() as connection:
            timed("what the database counts for /metrics", lambda: figures(connection))
        rows = [
            heard(("vitals", "statistics")[n % 2], (VITALS, STATISTICS)[n % 2], device=f"d{n}") for n in range(4_000)
        ]
        timed("4000 rows in the form of OTLP", lambda: list(pieces(rows, Names(128))))
        with receiving() as receiver:
            post = Post(15.0, ssl.create_default_context())
            webhook = Webhook(database, AlertSettings(url=receiver.url), post, Counter(), secret=b"x" * 32)
            with database.write() as connection:
                alerts.put(connection, [], tell=True)
                connection.execute(sa.text("UPDATE alerts SET told = 0"))
            began = time.perf_counter()
            webhook.tick(lambda: NOW + timedelta(seconds=now_s[0]))
            took_s = time.perf_counter() - began
            print(f"{len(receiver.posted)} messages to a webhook: {len(receiver.posted) / took_s:.0f} a second")


if __name__ == "__main__":
    main(int((*sys.argv, "10000")[1]), (*sys.argv, "", "sqlite")[2] or "sqlite")
