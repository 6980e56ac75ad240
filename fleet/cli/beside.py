"""The controller's database, for verbs that work beside it: as whoever may write in its folder."""

from __future__ import annotations

from pathlib import Path

from fleet.config import load_config
from fleet.database.engine import Database, open_database
from fleet.database.place import Place, read_place
from gateway.domain.errors import ConfigurationError


def database_of(folder: str) -> Database:
    """As `fleet.toml` says; close it. Raises ConfigurationError, OSError."""
    path = Path(folder)
    if not path.is_dir():
        raise ConfigurationError("is no folder; name the controller's with --dir", file=folder)
    settings = load_config(path).database
    return open_database(read_place(settings.url, path), settings)


def existing_database_of(folder: str) -> Database:
    """The same, where it is there already: to look at what is not must not make it. Raises as `database_of`."""
    place = place_of(folder)
    if place.file is not None and not place.file.exists():
        raise ConfigurationError("is no database; edge-fleet serve makes it", file=str(place.file))
    return database_of(folder)


def place_of(folder: str) -> Place:
    """Where it is, or would be. Raises ConfigurationError."""
    return read_place(load_config(Path(folder)).database.url, Path(folder))
