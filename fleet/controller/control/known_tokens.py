"""Cache of the names of valid API tokens: rate limits ask it with every request, and none waits for the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from fleet.controller.database import tokens
from fleet.controller.database.credentials import read_credential
from fleet.controller.database.engine import Database


class KnownTokens:
    """Names of valid API tokens by digest. One per process; any thread may call it. It grants no right."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._names: Mapping[str, str] = {}

    def name(self, text: str) -> str:
        """Return the name of a token that was valid at the last reading, "" for any other text."""
        return self._names.get(read_credential(text).digest, "")

    def refresh(self, now: datetime) -> None:
        """Read the tokens again. Raise AwayError; the known ones then stay."""
        with self._database.read() as connection:
            self._names = tokens.names(connection, now)
