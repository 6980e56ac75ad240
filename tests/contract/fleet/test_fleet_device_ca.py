"""One device CA for a fleet of replicas with folders of their own, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.controller.authority.ca import Authority, name_of, new_authority
from fleet.controller.authority.certificate import verified
from fleet.controller.authority.settings import AuthoritySettings
from fleet.controller.control.device_ca import open_device_ca
from fleet.controller.database import audit, authority
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.place import read_place
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.asking import csr, new_key
from tests.simulators.authority import ca_of_the_guide
from tests.simulators.databases import KINDS, NOW, database, enrolled, url

__all__ = ["database"]


def started(database: Database, folder: Path, machine: str = "one") -> Authority:
    return open_device_ca(database, folder, AuthoritySettings(), machine, NOW)


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("ca.*"))


def known(database: Database) -> str:
    with database.write() as connection:
        found = authority.known(connection)
    assert found
    return found.certificate


def rotated(folder: Path, *, after: Authority | None) -> Authority:
    """Write another CA into the folder's files; `after`: whose devices it trusts, too."""
    made = new_authority(NOW)
    (folder / "ca.key").write_bytes(made.key_pem)
    (folder / "ca.pem").write_bytes(made.pem + (after.pem if after else b""))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_of_replicas_that_first_start_at_one_moment_one_makes_it(kind: str, tmp_path: Path) -> None:
    ready = threading.Barrier(4)

    def start(number: int) -> str:
        with closing(open_database(read_place(text, tmp_path))) as opened:
            ready.wait()
            try:
                return started(opened, tmp_path / f"{number}", f"machine-{number}").certificate_pem.decode()
            except ConfigurationError as error:
                return str(error)

    with url(kind, tmp_path) as text, ThreadPoolExecutor(4) as threads:
        said = list(threads.map(start, range(4)))
        with closing(open_database(read_place(text, tmp_path))) as opened:
            made = known(opened)
    (first,) = (number for number, one in enumerate(said) if one == made)
    for number in {0, 1, 2, 3} - {first}:
        assert said[number].startswith(f"{tmp_path / str(number)}: holds no ca.pem")
        assert f"{name_of(made)}, used by machine-{first} since" in said[number]
        assert "copy ca.key and ca.pem there" in said[number]
        assert files(tmp_path / str(number)) == []


def test_a_copy_of_the_first_one_s_folder_starts(database: Database, tmp_path: Path) -> None:
    first = started(database, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert started(database, tmp_path / "two", "two").pem == first.pem == started(database, tmp_path / "one").pem


def test_a_ca_of_its_own_is_refused_and_stays_where_it_is(database: Database, tmp_path: Path) -> None:
    first = started(database, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    own = rotated(tmp_path / "two", after=None)
    with pytest.raises(ConfigurationError) as refused:
        started(database, tmp_path / "two", "two")
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/two/ca.pem: is of another device CA ({name_of(own.certificate_pem.decode())})")
    assert "copy ca.key and ca.pem there" in said
    assert known(database) == first.certificate_pem.decode()
    assert (tmp_path / "two" / "ca.pem").read_bytes() == own.pem


def test_a_ca_that_trusts_the_one_before_follows_it(database: Database, tmp_path: Path) -> None:
    """First all trust both, then one after another signs with the new one, then the old one goes."""
    first = started(database, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    second = rotated(tmp_path / "two", after=first)
    (tmp_path / "one" / "ca.pem").write_bytes(first.pem + second.pem)
    for folder in ("one", "two", "one"):
        found = started(database, tmp_path / folder, folder)
        assert found.certificate == (first if folder == "one" else second).certificate
        assert known(database) == found.certificate_pem.decode()
    (tmp_path / "two" / "ca.pem").write_bytes(second.pem + first.pem)
    started(database, tmp_path / "two", "two")
    (tmp_path / "two" / "ca.pem").write_bytes(second.pem)
    assert started(database, tmp_path / "two", "two").trusted == (second.certificate,)
    (tmp_path / "one" / "ca.pem").write_bytes(first.pem)
    with pytest.raises(ConfigurationError, match="another device CA"):
        started(database, tmp_path / "one")
    with database.read() as connection:
        log = audit.page(connection, database.settings, action="authority.follow")
    assert [entry.deed.actor for entry in log] == ["two", "one", "two"]
    assert log[0].deed.details == {"before": name_of(first.certificate_pem.decode())}


def test_a_ca_as_the_guide_makes_it_follows(database: Database, tmp_path: Path) -> None:
    first = started(database, tmp_path)
    ca_of_the_guide(tmp_path)
    (tmp_path / "new-ca.key").replace(tmp_path / "ca.key")
    (tmp_path / "ca.pem").write_bytes((tmp_path / "new-ca.pem").read_bytes() + first.pem)
    now = datetime.now(UTC) + timedelta(seconds=1)
    found = open_device_ca(database, tmp_path, AuthoritySettings(), "one", now)
    request = csr(new_key()).encode()
    for made in (found.sign_csr(request, "camera-1", now), first.sign_csr(request, "camera-1", now)):
        assert verified(made.certificate, found.trusted, now) == made
    assert name_of(known(database)) == "CN=edge-fleet device CA 2"


def test_the_ca_of_a_fleet_that_is_older_than_this_table_is_its_own(database: Database, tmp_path: Path) -> None:
    first = started(database, tmp_path)
    enrolled(database, "camera-1")
    with database.write() as connection:
        connection.execute(sa.text("DELETE FROM authority"))
    assert started(database, tmp_path).pem == first.pem
    assert known(database) == first.certificate_pem.decode()


def test_a_start_that_stopped_before_it_was_known_goes_on(database: Database, tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(authority, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            started(database, tmp_path)
    made = (tmp_path / "ca.pem").read_bytes()
    assert started(database, tmp_path).pem == made
