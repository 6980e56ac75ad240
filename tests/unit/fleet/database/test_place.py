"""Location of the database, as people write it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fleet.controller.database.place import read_place
from gateway.common.domain.errors import ConfigurationError


def test_nothing_means_a_file_in_the_folder(tmp_path: Path) -> None:
    place = read_place("", tmp_path)
    assert place.file == tmp_path / "fleet.sqlite"
    assert str(place) == str(place.file)
    place.make_file()
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600


def test_a_path_with_all_kinds_of_characters(tmp_path: Path) -> None:
    place = read_place("", tmp_path / "50 % of? #1")
    place.make_file()
    assert place.file is not None
    assert place.file.exists()


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://anna:secret@db/fleet",
        "postgres://anna:secret@db/fleet",
        "postgresql+psycopg://anna:secret@db/fleet",
    ],
)
def test_a_server_shows_no_password(text: str) -> None:
    place = read_place(text, Path())
    assert place.file is None
    assert place.url.drivername == "postgresql+psycopg"
    assert str(place) == "postgresql://anna:***@db/fleet"
    assert "secret" not in repr(place)


@pytest.mark.parametrize(
    "text",
    ["mysql://anna:secret@db/fleet", "sqlite://", "sqlite:///relative.sqlite", "postgresql://", "postgresql://anna:secret@db",
     "postgresql+asyncpg://db/fleet", "secret", "postgresql://anna:secret@db:port/fleet"],
)  # fmt: skip
def test_what_is_neither_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"database\.url: .*use postgresql://") as refused:
        read_place(text, Path("/"))
    assert "secret" not in str(refused.value)
