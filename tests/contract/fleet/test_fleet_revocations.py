"""Revoked certificates, in memory and in the file for proxies, when two callers read the list at the same time.

The one that has read less does not have the last word. Other properties of the file, and when it is written:
`test_fleet_maintenance`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.authority.folder import open_authority
from fleet.controller.authority.revocation import read_list
from fleet.controller.control.revocations import FILE, Revocations, write_revocations
from fleet.controller.database import certificates
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.engine import Database
from tests.simulators.databases import NOW, enrolled
from tests.simulators.databases import alike_database as database
from tests.simulators.operator import PATIENCE_S, until

__all__ = ["database"]
SERIAL = "ab"


@pytest.fixture
def held(database: Database) -> Database:
    """Return a database with a certificate that holds."""
    enrolled(database, "camera-1")
    with database.write() as connection:
        certificates.add(connection, Certificate(SERIAL, "camera-1", NOW, NOW + timedelta(days=90)))
    return database


class Gate:
    """Gate that stops the first reader of the revoked certificates after it has read them, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told, self.go, self._revoked = threading.Event(), threading.Event(), certificates.revoked
        monkeypatch.setattr(certificates, "revoked", self._asked)

    def _asked(self, *said: Any, **more: Any) -> tuple[Certificate, ...]:
        found = self._revoked(*said, **more)
        if not self.told.is_set():
            self.told.set()
            assert self.go.wait(PATIENCE_S)
        return found


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def revoke(database: Database) -> None:
    with database.write() as connection:
        certificates.revoke_all(connection, "camera-1", "stolen", NOW)


def test_what_the_file_lists_stays_listed(held: Database, gate: Gate, tmp_path: Path) -> None:
    """Two replicas share the folder. Who finds another one at it has not written, and comes again."""
    authority = open_authority(tmp_path, NOW)

    def write() -> bool:
        return write_revocations(held, authority, tmp_path, NOW, timedelta(hours=24))

    def listed() -> frozenset[str]:
        found = read_list(authority, (tmp_path / FILE).read_bytes()) if (tmp_path / FILE).exists() else None
        return found.serials if found else frozenset()

    with ThreadPoolExecutor() as pool:
        first = pool.submit(write)
        assert gate.told.wait(PATIENCE_S)
        revoke(held)
        second, before = write(), listed()
        gate.go.set()
        assert first.result()
    assert listed() >= before
    assert second or write()
    assert listed() == {SERIAL}


def test_what_is_known_to_be_revoked_stays_known(held: Database, gate: Gate) -> None:
    """The worker reads, and a request that revokes does so a moment later."""
    revocations = Revocations(held)
    with ThreadPoolExecutor() as pool:
        worker = pool.submit(revocations.refresh, NOW)
        assert gate.told.wait(PATIENCE_S)
        revoke(held)
        request = pool.submit(revocations.refresh, NOW)
        until(lambda: request.done() or revocations._reading.locked(), "the request neither reads nor waits")
        gate.go.set()
        worker.result()
        request.result()
    assert revocations.serials() == {SERIAL}
