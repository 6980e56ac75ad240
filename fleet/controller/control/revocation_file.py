"""Revocation list as a file for proxies.

It is written again if it differs from the database, or half of its life is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from fleet.controller.authority.ca import Authority
from fleet.controller.authority.revocation import RevocationList, read_list, revocation_list
from fleet.controller.database import certificates
from fleet.controller.database.engine import Database
from fleet.disk import read_bounded, write_durably
from gateway.files.locks import try_lock

FILE, LOCK_FILE = "crl.pem", ".crl.lock"
LIMIT_BYTES = 268_435_456


def write_revocations(
    database: Database, authority: Authority, folder: Path, now: datetime, validity: timedelta
) -> bool:
    """Write the list if needed.

    Return True if the file is as it should be, False if another replica is writing it, perhaps from older data. Raise
    AwayError, ConfigurationError, OSError.
    """
    with _locked(folder) as alone:
        if not alone:
            return False
        revoked, file = _revoked(database, now), folder / FILE
        known = read_list(authority, read_bounded(file, LIMIT_BYTES)) if file.exists() else None
        if known is None or not _holds(known, revoked, now, validity):
            number = max(known.number + 1 if known else 1, int(now.timestamp()))
            write_durably(file, revocation_list(authority, revoked, now, number=number, next_after=validity))
    return True


def _holds(known: RevocationList, revoked: dict[str, datetime], now: datetime, validity: timedelta) -> bool:
    young = known.made <= now < known.made + min(validity, known.next_update - known.made) / 2
    return known.genuine and young and known.serials == {f"{int(serial, 16):x}" for serial in revoked}


def _revoked(database: Database, now: datetime) -> dict[str, datetime]:
    """Return the serials of all revoked certificates at one time, with the times of their revocation."""
    found, after, settings = dict[str, datetime](), "", database.settings
    with database.read() as connection:
        limit_rows = settings.page_limit_rows
        while page := certificates.revoked(connection, now, settings, after=after, limit_rows=limit_rows):
            found |= {certificate.serial: certificate.revoked or now for certificate in page}
            after = page[-1].serial
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yield whether no other process writes the file; replicas may share the folder."""
    with (folder / LOCK_FILE).open("w") as lock:
        yield try_lock(lock)
