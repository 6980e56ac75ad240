"""The director's view of the published repository: when it reads it again, and what it then signs again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.control import director_published
from fleet.controller.control.director import Director
from fleet.controller.control.director_published import Publications, PublishedMetadata
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.database import certificates, desired, devices
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.desired import Desired
from fleet.controller.database.engine import Database
from fleet.controller.database.seen import LastSeenBuffer
from fleet.publisher.keys import refuse_to_ask
from fleet.publisher.roles import DIRECTOR
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import Fault, RequestError
from tests.simulators.databases import NOW, made
from tests.simulators.fleet_repository import FleetRepository


class Monotonic:
    """Clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with made("sqlite", tmp_path) as opened:
        with opened.write() as connection:
            devices.enrol(connection, "camera-1", NOW)
            certificates.add(connection, Certificate("c1", "camera-1", NOW, NOW + timedelta(days=90)))
        yield opened


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    return FleetRepository(tmp_path / "publisher", now=NOW)


def publications(repository: FleetRepository, database: Database, clock: Monotonic) -> Publications:
    return Publications(repository.workspace, database, 5.0, monotonic=clock)


def director(repository: FleetRepository, database: Database, clock: Monotonic) -> Director:
    """Return the director of a replica of its own."""
    config, known = FleetConfig(), publications(repository, database, clock)
    settings = (config.director, config.publisher)
    seen = LastSeenBuffer(config.database)
    keys = OnlineKeys(repository.workspace.keys, repository.keys[DIRECTOR], refuse_to_ask, 0.0)
    return Director(database, known, keys, settings, seen=seen, counts=Counter())


def want(database: Database, repository: FleetRepository, path: str, slot: str = "meter") -> None:
    target = repository.published.target(path)
    assert target
    one = Desired("camera-1", slot, path, target.hashes["sha256"], target.length, "", NOW)
    with database.write() as connection:
        desired.put(connection, [one], database.settings)


def test_without_anything_published_it_says_what_to_do(tmp_path, database) -> None:
    empty = Publications(Workspace(tmp_path / "empty"), database, 5.0)
    for ask in (empty.current, empty.fresh):
        with pytest.raises(RequestError, match="edge-fleet publish") as refused:
            ask()
        assert refused.value.fault is Fault.UNAVAILABLE


def test_it_looks_again_when_it_is_time_and_at_once_after_a_publication(repository, database) -> None:
    clock = Monotonic()
    known = publications(repository, database, clock)
    before = known.current()
    clock.now_s += 4.9
    assert known.current() is before
    clock.now_s += 0.2
    assert known.current() is not before
    repository.add_file("policy/a.json", b"{}")
    assert [file.path for file in known.current().files] == ["policy/a.json"]
    repository.add_file("policy/b.json", b"{}")
    assert len(known.fresh().files) == 2
    assert known.current().basis == known.fresh().basis != before.basis


@pytest.mark.parametrize("ended", [False, True])
def test_no_thread_goes_by_the_publication_before_while_another_reads_the_new_one(
    repository, database, monkeypatch, ended
) -> None:
    """A device that has the new metadata would refuse what the old director's key signed.

    `ended`: the other thread has read it before this one looks whether another is published.
    """
    known = publications(repository, database, Monotonic())
    before = known.current()
    repository.rotate(DIRECTOR)
    reading, asked = threading.Event(), threading.Event()
    read, mark = director_published._read, director_published.publication_mark

    def read_slowly(workspace: Workspace) -> PublishedMetadata:
        reading.set()
        asked.wait()
        return read(workspace)

    def note(public: Path) -> tuple[int, ...]:
        if threading.current_thread() is threading.main_thread():
            asked.set()
            if ended:
                thread.join()
        return mark(public)

    monkeypatch.setattr(director_published, "_read", read_slowly)
    monkeypatch.setattr(director_published, "publication_mark", note)
    thread = threading.Thread(target=known.current)
    thread.start()
    reading.wait()
    assert known.current().director != before.director
    thread.join()


def test_a_damaged_publication_is_read_again_when_it_is_time_not_at_every_poll(repository, database, caplog) -> None:
    clock = Monotonic()
    known = publications(repository, database, clock)
    before = known.current()
    timestamp = repository.public / "metadata" / "timestamp.json"
    timestamp.write_bytes(b"rubbish")
    assert [known.current() for _ in range(3)] == [before] * 3
    assert len(caplog.records) == 1
    clock.now_s += 5.1
    assert known.current() is before
    assert len(caplog.records) == 2


def test_a_new_root_is_noticed_though_nothing_else_changes(repository, database) -> None:
    known = publications(repository, database, Monotonic())
    before = known.fresh()
    repository.rotate("root")
    assert known.fresh().root == repository.root_bytes() != before.root
    assert known.fresh().basis == before.basis, "no assignment depends on it"


def test_a_repository_that_cannot_be_read_leaves_what_was_known(repository, database) -> None:
    clock = Monotonic()
    known = publications(repository, database, clock)
    before, file = known.current(), repository.public / "metadata" / "timestamp.json"
    content = file.read_bytes()
    file.write_bytes(content[:-50])
    clock.now_s += 6
    assert known.current() is before
    with pytest.raises(RequestError, match="cannot be read"):
        known.fresh()
    file.write_bytes(content)
    assert known.fresh().basis == before.basis


def test_only_what_concerns_devices_is_signed_anew_for(repository, database) -> None:
    known = publications(repository, database, Monotonic())
    first = repository.add_release("meter", "1")
    want(database, repository, first)
    before = known.fresh().basis
    other = repository.add_release("door", "1")
    repository.add_release("meter", "2")
    repository.publish()
    assert known.fresh().basis == before
    repository.add_release("meter", "3", floor="2")
    found = known.fresh()
    assert found.basis != before
    assert {path for path, _ in found.barred} == {first}
    with database.read() as connection:
        assert "allows 2" in found.refusal(connection, first, dict(found.barred)[first])
        assert "not published" in found.refusal(connection, "models/acme/meter/9/release", "a" * 64)
        assert "in its place" in found.refusal(connection, other, "a" * 64)


def test_a_replica_that_heard_late_signs_nothing_again(repository, database) -> None:
    early, late = (director(repository, database, Monotonic()) for _ in range(2))
    first = late.assigned("c1", NOW)
    repository.add_file("policy/a.json", b"{}")
    early._publications.fresh()
    second = early.assigned("c1", NOW, etag=first.digest)
    assert second.digest != first.digest
    for replica in (late, early, late):
        assert replica.assigned("c1", NOW, etag=second.digest).content is None


def test_replicas_agree_on_what_is_barred(repository, database) -> None:
    """One replica reads while the release is still desired by a device, the other one afterwards."""
    path = repository.add_release("meter", "1")
    want(database, repository, path)
    repository.add_release("meter", "2", floor="2")
    clock = Monotonic()
    early = director(repository, database, clock)
    early.assigned("c1", NOW)
    with database.write() as connection:
        desired.remove(connection, ["camera-1"], "meter")
    late = director(repository, database, Monotonic())
    clock.now_s += 1
    digest = late.assigned("c1", NOW).digest
    for replica in (early, late, early, late):
        assert replica.assigned("c1", NOW, etag=digest).content is None
