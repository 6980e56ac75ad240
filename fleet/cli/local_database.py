"""Direct access to the controller's database, for verbs that run as a user who may write in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fleet.controller.config import load_config
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.errors import AwayError
from fleet.controller.database.place import DatabaseLocation, read_place
from gateway.common.domain.errors import ConfigurationError, UnreachableError


@contextmanager
def opened_database(folder: str, *, make: bool = False) -> Iterator[Database]:
    """Open the database that `fleet.toml` names. `make`: create it if it does not exist, as serve does.

    Raise ConfigurationError, UnreachableError if it does not answer, OSError.
    """
    place = place_of(folder)
    if not make and place.file is not None and not place.file.exists():
        raise ConfigurationError("is not a database; edge-fleet serve creates it", file=str(place.file))
    try:
        with closing(open_database(place, load_config(Path(folder)).database)) as database:
            yield database
    except AwayError as error:
        raise UnreachableError(str(error)) from None


def place_of(folder: str) -> DatabaseLocation:
    """Return the location of the folder's database, which may not exist. Raise ConfigurationError."""
    path = Path(folder)
    if not path.is_dir():
        raise ConfigurationError("is not a folder; name the controller's with --dir", file=folder)
    return read_place(load_config(path).database.url, path)
