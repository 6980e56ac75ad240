"""Location of the database: a file, or a PostgreSQL server."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from gateway.common.domain.errors import ConfigurationError

FILE_NAME = "fleet.sqlite"
_POSTGRESQL = "postgresql+psycopg"


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """Location of a database. Its text contains no password."""

    url: URL = field(repr=False)

    @property
    def file(self) -> Path | None:
        """Return SQLite's file, or None for a server."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    def __str__(self) -> str:
        return str(self.file) if self.file else self.url.set(drivername="postgresql").render_as_string()

    @property
    def setting(self) -> str:
        """Return it as `[database] url` in one spelling, without a password."""
        if self.file is not None:
            return f"sqlite:///{self.file.resolve()}"
        return self.url.set(drivername="postgresql", password=None).render_as_string()

    def make_file(self) -> None:
        """Create SQLite's file, empty and readable only by its owner. Raise OSError.

        The files that SQLite adds (-wal, -shm) get the same mode. An existing file is not opened: closing it would drop
        all locks that SQLite holds on it in this process (https://sqlite.org/howtocorrupt.html, 2.2), and another
        process could then damage it.
        """
        if self.file is not None and not self.file.exists():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600))


def read_place(text: str, folder: Path) -> DatabaseLocation:
    """Read `[database] url`. Raise ConfigurationError.

    `""`: a file in `folder`; `sqlite:////absolute/path`; `postgresql://user@host/name`, or with `?host=/run/…` a UNIX
    socket. A password is better kept in ~/.pgpass or PGPASSFILE.
    """
    if not text:
        return DatabaseLocation(URL.create("sqlite", database=str((folder / FILE_NAME).absolute())))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise _unusable("it cannot be read as a URL") from None  # its text may hold a password
    if url.get_backend_name() == "sqlite" and url.database and Path(url.database).is_absolute():
        return DatabaseLocation(URL.create("sqlite", database=url.database))
    if "password" in url.query:
        raise _unusable("its options contain a password, which would be shown; use PGPASSWORD or ~/.pgpass")
    if url.drivername in {"postgresql", "postgres", _POSTGRESQL} and url.database:
        return DatabaseLocation(url.set(drivername=_POSTGRESQL))
    raise _unusable(f"{url.drivername!r:.40} with the database {url.database!r:.80} is neither")


def _unusable(problem: str) -> ConfigurationError:
    expected = "use postgresql://user@host/name, sqlite:////absolute/file, or nothing for fleet.sqlite in the folder"
    return ConfigurationError(f"{problem}; {expected}", table="database", key="url")
