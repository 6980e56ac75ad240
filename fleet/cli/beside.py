"""The controller's database, for verbs that work beside it: as whoever may write in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fleet.config import load_config
from fleet.database.engine import Database, open_database
from fleet.database.errors import AwayError
from fleet.database.place import Place, read_place
from gateway.domain.errors import ConfigurationError, UnreachableError


@contextmanager
def beside(folder: str, *, make: bool = False) -> Iterator[Database]:
    """The database that `fleet.toml` names; `make`: also one that is not there yet, as serve does. Raises
    ConfigurationError, UnreachableError where it does not answer, OSError."""
    place = place_of(folder)
    if not make and place.file is not None and not place.file.exists():
        raise ConfigurationError("is no database; edge-fleet serve makes it", file=str(place.file))
    try:
        with closing(open_database(place, load_config(Path(folder)).database)) as database:
            yield database
    except AwayError as error:
        raise UnreachableError(str(error)) from None


def place_of(folder: str) -> Place:
    """Where it is, or would be. Raises ConfigurationError."""
    path = Path(folder)
    if not path.is_dir():
        raise ConfigurationError("is no folder; name the controller's with --dir", file=folder)
    return read_place(load_config(path).database.url, path)
