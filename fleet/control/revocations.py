"""Serials of revoked certificates, as they were read last: every request asks, and none waits for the database."""

from __future__ import annotations

import threading
from collections.abc import Collection
from datetime import datetime

from fleet.database import certificates
from fleet.database.engine import Database


class Revocations:
    """One per process; any thread may ask."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._serials: frozenset[str] = frozenset()
        self._reading = threading.Lock()

    def serials(self) -> Collection[str]:
        """Lower-case hex, of certificates that have not expired."""
        return self._serials

    def refresh(self, now: datetime) -> None:
        """Read them anew, one after the other: who read first does not have the last word. Not within a transaction.
        Raises AwayError; what was known before stands then."""
        with self._reading:
            self._serials = self._read(now)

    def _read(self, now: datetime) -> frozenset[str]:
        settings, found, after = self._database.settings, set[str](), ""
        with self._database.read() as connection:
            limit_rows = settings.page_limit_rows
            while page := certificates.revoked(connection, now, settings, after=after, limit_rows=limit_rows):
                found |= {certificate.serial for certificate in page}
                after = page[-1].serial
        return frozenset(found)
