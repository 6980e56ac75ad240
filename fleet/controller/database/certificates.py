"""Certificates that the device CA signed, and which of them are revoked. `serial`: lower-case hex."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.rows import page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import certificates, devices


@dataclass(frozen=True, slots=True)
class Certificate:
    """A device certificate. `revoked` None: not revoked. `key_digest`: SHA-256 (hex) of its public key."""

    serial: str
    device: str
    issued: datetime
    expires: datetime
    revoked: datetime | None = None
    revoked_because: str = ""
    key_digest: str = ""


def add(connection: Connection, certificate: Certificate) -> None:
    """Store a certificate before it is handed out. Raise ConflictError for a used serial or an unknown device."""
    values = {name: getattr(certificate, name) for name in Certificate.__slots__}
    connection.execute(sa.insert(certificates).values(**values))


def find(connection: Connection, serial: str) -> Certificate | None:
    """Return the certificate with this serial, or None."""
    row = connection.execute(sa.select(certificates).where(certificates.c.serial == serial)).one_or_none()
    return Certificate(*row) if row else None


def any_known(connection: Connection) -> bool:
    """Return whether any certificate is stored."""
    return connection.execute(sa.select(certificates.c.serial).limit(1)).first() is not None


def of_device(connection: Connection, device: str, settings: DatabaseSettings) -> tuple[Certificate, ...]:
    """Return the device's certificates, newest first."""
    statement = sa.select(certificates).where(certificates.c.device == device)
    newest = statement.order_by(certificates.c.issued.desc(), certificates.c.serial)
    return tuple(Certificate(*row) for row in connection.execute(newest.limit(settings.page_limit_rows)))


def revoke_all(connection: Connection, device: str, because: str, now: datetime) -> int:
    """Revoke all certificates of a device. Return how many were not revoked before."""
    held = sa.update(certificates).where(certificates.c.device == device, certificates.c.revoked.is_(None))
    return connection.execute(held.values(revoked=now, revoked_because=because)).rowcount


def revoke_other_keys(connection: Connection, device: str, key_digest: str, because: str, now: datetime) -> int:
    """Revoke the device's certificates for other keys. Return how many were not revoked before."""
    held = sa.update(certificates).where(certificates.c.device == device, certificates.c.revoked.is_(None))
    others = held.where(certificates.c.key_digest != key_digest)
    return connection.execute(others.values(revoked=now, revoked_because=because)).rowcount


def issued_since(connection: Connection, device: str, since: datetime) -> int:
    """Return how many certificates were issued to a device after `since`."""
    mine = (certificates.c.device == device, certificates.c.issued > since)
    return int(connection.execute(sa.select(sa.func.count()).where(*mine)).scalar_one())


def has_key(connection: Connection, device: str, key_digest: str, since: datetime) -> bool:
    """Return whether the device has a certificate for this key that was issued after `since` and is not revoked."""
    mine = (certificates.c.device == device, certificates.c.key_digest == key_digest, certificates.c.issued > since)
    held = sa.select(certificates.c.serial).where(*mine, certificates.c.revoked.is_(None))
    return connection.execute(held.limit(1)).first() is not None


def revoked(
    connection: Connection, now: datetime, settings: DatabaseSettings, *, after: str = "", limit_rows: int = 1000
) -> tuple[Certificate, ...]:
    """Return the entries of a revocation list: revoked, not yet expired, by serial, from the one after `after`."""
    named = certificates.c.revoked.is_not(None) & (certificates.c.expires > now) & (certificates.c.serial > after)
    statement = sa.select(certificates).where(named).order_by(certificates.c.serial)
    limit = page_limit(limit_rows, settings.page_limit_rows)
    return tuple(Certificate(*row) for row in connection.execute(statement.limit(limit)))


def forget(connection: Connection, before: datetime) -> int:
    """Delete certificates that expired before `before`. Return how many.

    The newest of each device stays until the device is removed: after a temporarily wrong clock, a device without one
    would have to be enrolled by hand.
    """
    later = certificates.alias("later")
    newer = sa.exists().where(later.c.device == certificates.c.device, later.c.expires > certificates.c.expires)
    gone = sa.exists().where(devices.c.id == certificates.c.device, devices.c.removed.is_not(None))
    old = certificates.c.expires < before
    return connection.execute(sa.delete(certificates).where(old, sa.or_(newer, gone))).rowcount
