"""Cache of revoked certificates and valid API tokens; the revocation list as a file for proxies.

Every request checks the cache, and none waits for the database. The file is written again if it differs from the
database, or half of its life is over.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from fleet.controller.authority.ca import Authority
from fleet.controller.authority.revocation import RevocationList, read_list, revocation_list
from fleet.controller.database import certificates, tokens
from fleet.controller.database.credentials import read_credential
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.settings import DatabaseSettings
from fleet.disk import read_bounded, write_durably
from gateway.common.files.locks import try_lock

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
        with database.read() as connection:
            revoked, file = _revoked(connection, now, database.settings), folder / FILE
        known = read_list(authority, read_bounded(file, LIMIT_BYTES)) if file.exists() else None
        if known is None or not _holds(known, revoked, now, validity):
            number = max(known.number + 1 if known else 1, int(now.timestamp()))
            write_durably(file, revocation_list(authority, revoked, now, number=number, next_after=validity))
    return True


def _revoked(connection: Connection, now: datetime, settings: DatabaseSettings) -> dict[str, datetime]:
    """Read all revoked certificates page by page: the time of revocation by serial."""
    found, after, limit_rows = dict[str, datetime](), "", settings.page_limit_rows
    while page := certificates.revoked(connection, now, settings, after=after, limit_rows=limit_rows):
        found |= {certificate.serial: certificate.revoked or now for certificate in page}
        after = page[-1].serial
    return found


def _holds(known: RevocationList, revoked: dict[str, datetime], now: datetime, validity: timedelta) -> bool:
    young = known.made <= now < known.made + min(validity, known.next_update - known.made) / 2
    return known.genuine and young and known.serials == {f"{int(serial, 16):x}" for serial in revoked}


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yield whether no other process writes the file; replicas may share the folder."""
    with (folder / LOCK_FILE).open("w") as lock:
        yield try_lock(lock)


class Revocations:
    """Serials of revoked certificates, names of valid API tokens. One per process; any thread may call it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._serials: frozenset[str] = frozenset()
        self._tokens: Mapping[str, str] = {}
        self._reading = threading.Lock()

    def serials(self) -> Collection[str]:
        """Return the serials, in lower-case hex, of revoked certificates that have not expired."""
        return self._serials

    def token_name(self, text: str) -> str:
        """Return the name of an API token that was valid at the last reading, else "". It grants no right."""
        return self._tokens.get(read_credential(text).digest, "")

    def refresh(self, now: datetime) -> None:
        """Read both again. Do not call it within a transaction.

        Readers take turns, so that an older reading does not replace a newer one. Raise AwayError; the known ones then
        stay.
        """
        with self._reading, self._database.read() as connection:
            self._tokens = tokens.names(connection, now)
            self._serials = frozenset(_revoked(connection, now, self._database.settings))
