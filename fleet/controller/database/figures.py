"""Numbers of stored objects, for the metrics page.

The database counts them, which takes a moment: see `MetricsSettings.cache_s`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import alerts, devices
from fleet.controller.database.tables import assignments, certificates, events, rollouts, telemetry_sources


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers of stored objects. `lost_rows`: of the sources that are stored. `open_alerts`: by rule."""

    devices: Mapping[str, int]
    rollouts: Mapping[str, int]
    open_alerts: Mapping[str, int]
    untold_alerts: int
    telemetry_rows: int
    telemetry_bytes: int
    lost_rows: int
    events: int
    assignments: int
    certificates: int
    database_bytes: int


def figures(connection: Connection) -> Figures:
    """Return all figures, as of one moment."""
    by_state = sa.select(rollouts.c.state, sa.func.count()).group_by(rollouts.c.state)
    kept = [sa.func.coalesce(sa.func.sum(telemetry_sources.c[name]), 0) for name in ("rows", "bytes", "lost")]
    rows, size_bytes, lost = connection.execute(sa.select(*kept)).one()
    return Figures(
        devices={str(state): count for state, count in devices.counts(connection, devices.DeviceSelection()).items()},
        rollouts=_merged(connection.execute(by_state)),
        open_alerts=alerts.counts(connection),
        untold_alerts=alerts.waiting(connection),
        telemetry_rows=int(rows),
        telemetry_bytes=int(size_bytes),
        lost_rows=int(lost),
        events=_count(connection, events),
        assignments=_count(connection, assignments),
        certificates=_count(connection, certificates),
        database_bytes=size_of(connection),
    )


def size_of(connection: Connection) -> int:
    """Return the bytes that the database takes on its disk, without SQLite's log."""
    if connection.dialect.name == "postgresql":
        return int(connection.execute(sa.select(sa.func.pg_database_size(sa.func.current_database()))).scalar_one())
    pages, page_bytes = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size")
    )
    return int(pages) * int(page_bytes)


def _merged(found: Iterable[Any]) -> dict[str, int]:
    """Count by state as shown to people: a rollout whose devices are still being rolled back is aborted."""
    counts: Counter[str] = Counter()
    for state, count in found:
        counts["aborted" if state == "returning" else state] += int(count)
    return dict(counts)


def _count(connection: Connection, table: sa.Table) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
