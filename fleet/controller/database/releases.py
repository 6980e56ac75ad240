"""Releases as they were read from the published repository."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.engine import alone
from fleet.controller.database.errors import ConflictError
from fleet.controller.database.rows import Json, bounded, chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import releases
from gateway.common.domain.routing import newest_version


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """A release. `target`: path. `digest`, `size_bytes`: of the signed document. `floor`: as its owner signed it."""

    target: str
    owner: str
    model: str
    version: str
    floor: str
    digest: str
    size_bytes: int
    released: datetime
    document: Json


@dataclass(frozen=True, slots=True)
class KnownRelease:
    """A release, when it was first read, and since when it is no longer published."""

    release: StoredRelease
    first_read: datetime
    withdrawn: datetime | None


def synchronise(
    connection: Connection, published: Iterable[StoredRelease], now: datetime, settings: DatabaseSettings
) -> tuple[str, ...]:
    """Make the table match what is published: add new releases, mark absent ones as withdrawn.

    Return the targets that are new. Raise ConflictError if the content of a target changed: what is published never
    changes.
    """
    wanted = {release.target: release for release in bounded(published, settings.releases_limit, "releases")}
    alone(connection, "releases are read")
    columns = (releases.c.target, releases.c.digest, releases.c.withdrawn)
    known = {row.target: row for row in connection.execute(sa.select(*columns))}
    for target in known.keys() & wanted.keys():
        if known[target].digest != wanted[target].digest:
            raise ConflictError(f"{target:.300} was published with another digest before; publish a higher version")
    fresh = [wanted[target] for target in wanted if target not in known]
    if fresh:
        rows = ({name: getattr(release, name) for name in StoredRelease.__slots__} for release in fresh)
        connection.execute(sa.insert(releases), [row | {"first_read": now, "withdrawn": None} for row in rows])
    _mark(connection, [target for target in known if known[target].withdrawn and target in wanted], None)
    _mark(connection, [target for target in known if not known[target].withdrawn and target not in wanted], now)
    return tuple(release.target for release in fresh)


def find(connection: Connection, target: str) -> KnownRelease | None:
    """Return the release with this path, published or withdrawn, or None."""
    row = connection.execute(sa.select(releases).where(releases.c.target == target)).one_or_none()
    return KnownRelease(StoredRelease(*row[:9]), row.first_read, row.withdrawn) if row else None


def page(
    connection: Connection, settings: DatabaseSettings, *, model: str = "", after: str = "", limit_rows: int = 100
) -> tuple[KnownRelease, ...]:
    """Return releases in the order of their paths, from the one that follows `after`; `model` "": of all models."""
    wanted = [releases.c.target > after, *([releases.c.model == model] if model else [])]
    limit = page_limit(limit_rows, settings.page_limit_rows)
    statement = sa.select(releases).where(*wanted).order_by(releases.c.target).limit(limit)
    return tuple(
        KnownRelease(StoredRelease(*row[:9]), row.first_read, row.withdrawn) for row in connection.execute(statement)
    )


def floor(connection: Connection, owner: str, model: str) -> str:
    """Return the oldest version that may be assigned, or "" if none is known.

    It is the greatest floor of all releases of the model. Withdrawn ones count: a floor never falls, and devices
    remember it.
    """
    mine = sa.select(releases.c.floor).where(releases.c.owner == owner, releases.c.model == model).distinct()
    return newest_version(connection.execute(mine).scalars()) or ""


def _mark(connection: Connection, targets: list[str], withdrawn: datetime | None) -> None:
    for paths in chunks(targets):
        connection.execute(sa.update(releases).where(releases.c.target.in_(paths)).values(withdrawn=withdrawn))
