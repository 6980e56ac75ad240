"""Cache of revoked certificates and valid API tokens: every request checks it, and none waits for the database."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from datetime import datetime

from fleet.controller.database import certificates, tokens
from fleet.controller.database.credentials import read_credential
from fleet.controller.database.engine import Database


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
        with self._reading:
            self._serials = self._read(now)

    def _read(self, now: datetime) -> frozenset[str]:
        settings, found, after = self._database.settings, set[str](), ""
        with self._database.read() as connection:
            self._tokens = tokens.names(connection, now)
            limit_rows = settings.page_limit_rows
            while page := certificates.revoked(connection, now, settings, after=after, limit_rows=limit_rows):
                found |= {certificate.serial for certificate in page}
                after = page[-1].serial
        return frozenset(found)
