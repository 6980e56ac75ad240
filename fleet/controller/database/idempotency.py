"""Answers to requests with an Idempotency-Key: written in the transaction of what the request did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.engine import try_alone
from fleet.controller.database.tables import idempotency_keys as keys


@dataclass(frozen=True, slots=True)
class Key:
    """Idempotency key. `token`: id of the caller's API token. `digest`: SHA-256 (hex) of the key."""

    token: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """First answer to a key. `request`: SHA-256 (hex) of what was asked for; `answer`: sealed by the caller's token."""

    request: str
    answer: bytes


def claim(connection: Connection, key: Key) -> bool:
    """Lock the key until the transaction ends; return whether no other transaction holds it."""
    return try_alone(connection, f"idempotency key {key.token} {key.digest}")


def find(connection: Connection, key: Key) -> StoredAnswer | None:
    """Return what was answered, or None. The clock does not matter: it may have leapt between two requests."""
    mine = (keys.c.token == key.token, keys.c.key == key.digest)
    row = connection.execute(sa.select(keys.c.request, keys.c.answer).where(*mine)).one_or_none()
    return StoredAnswer(*row) if row else None


def add(connection: Connection, key: Key, kept: StoredAnswer, now: datetime, limit_rows: int) -> None:
    """Store an answer. Beyond `limit_rows` of a caller the oldest are deleted."""
    mine = keys.c.token == key.token
    oldest = sa.select(keys.c.at).where(mine).order_by(keys.c.at.desc()).offset(limit_rows - 1).limit(1)
    beyond = connection.execute(oldest).scalar()
    if beyond is not None:
        connection.execute(sa.delete(keys).where(mine, keys.c.at <= beyond))
    row = {"token": key.token, "key": key.digest, "request": kept.request, "answer": kept.answer, "at": now}
    connection.execute(sa.insert(keys).values(**row))


def forget(connection: Connection, before: datetime) -> int:
    """Delete answers that were given before `before`. Return how many."""
    return connection.execute(sa.delete(keys).where(keys.c.at < before)).rowcount
