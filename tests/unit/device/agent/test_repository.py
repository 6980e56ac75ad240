"""The agent's use of the signed repository: proof, floors, a time that is handed in, what is on the disk after."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tuf.api.metadata import DelegatedRole, Metadata, Root, Snapshot, TargetFile, Targets, Timestamp

from gateway.common.domain.assignment import Target
from gateway.common.store.errors import StoreError
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.transfer.web import WebSource
from gateway.common.trust.distrust import Distrust, Reason
from gateway.device.agent.fetch.folder import FolderSource
from gateway.device.agent.fetch.repository import SignedRepository, SignedTarget, as_target
from gateway.device.agent.settings import RepositorySettings
from tests.conformance.publisher import Publisher
from tests.simulators.constants import settings_with

PATH = "models/acme/meter/2/release"
RELEASE = b'{"schema": 1}\n'
DAY = timedelta(days=1)


class Device:
    """A folder of trusted metadata, and the repository as published in another."""

    def __init__(self, folder: Path) -> None:
        self.publisher = Publisher()
        self.publisher.delegate(DelegatedRole("models-acme", [], 1, True, ["models/acme/*/*/*"]))
        self.publisher.add(PATH, RELEASE, "models-acme")
        self.publisher.refresh()
        self.trusted, self.public = folder / "metadata", folder / "public"
        self.pinned = self.publisher.files["metadata/1.root.json"]
        self.floors: dict[str, int] = {}

    def open(self, at: datetime | None = None, *, remember: bool = True, **options: Any) -> SignedRepository:
        """Open the repository at time `at` (default: when it was published), with what is public now."""
        for place, content in self.publisher.files.items():
            file = self.public / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        floors = self.floors if remember else {}
        source = FolderSource(self.public)
        return SignedRepository(self.trusted, source, self.pinned, at or self.publisher.now, floors=floors, **options)

    def refreshed(self, at: datetime | None = None, **options: Any) -> SignedRepository:
        """Return a refreshed repository, and keep its risen floors, like an agent does."""
        repository = self.open(at, **options)
        repository.refresh()
        self.floors |= repository.risen_floors()
        return repository

    def refused(self, at: datetime | None = None, **options: Any) -> Reason:
        """Return why a refresh is refused."""
        with pytest.raises(Distrust) as caught:
            self.refreshed(at, **options)
        assert str(self.public) in caught.value.where or caught.value.reason is Reason.REPLAYED
        return caught.value.reason

    def kept(self) -> Mapping[str, bytes]:
        """Return every file and link of the TUF client, by name."""
        return {
            str(file.relative_to(self.trusted)): file.read_bytes() for file in self.trusted.rglob("*") if file.is_file()
        }


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_release_is_found_with_the_metadata_that_proves_it(device: Device) -> None:
    repository = device.refreshed()
    found = repository.find(PATH)
    assert repository.read(found) == RELEASE
    assert (found.root, repository.root.version) == (1, 1)
    files = device.publisher.files
    assert found.evidence == (files["metadata/2.targets.json"], files["metadata/1.models-acme.json"])
    assert found.role.version == 1
    top, owner = (Metadata[Targets].from_bytes(content) for content in found.evidence)
    repository.root.verify_delegate(Targets.type, top.signed_bytes, top.signatures)
    top.signed.verify_delegate("models-acme", owner.signed_bytes, owner.signatures)
    assert as_target(found) == Target(PATH, len(RELEASE), found.target.hashes["sha256"])


def test_proof_is_the_same_when_it_comes_from_the_disk(device: Device) -> None:
    before = device.refreshed().find(PATH)
    repository = device.refreshed()
    device.publisher.files.clear()
    for file in device.public.rglob("*.json"):
        file.unlink()
    assert repository.find(PATH).evidence == before.evidence


def test_each_target_has_the_proof_of_its_own_role(device: Device) -> None:
    device.publisher.delegate(DelegatedRole("profiles", [], 1, True, ["profiles/*"]))
    device.publisher.add("profiles/board.toml", b"x", "profiles")
    device.publisher.refresh()
    repository = device.refreshed()
    roles = {path: repository.find(path).evidence for path in (PATH, "profiles/board.toml", PATH)}
    assert [len(evidence) for evidence in roles.values()] == [2, 2]
    assert roles["profiles/board.toml"][-1] == device.publisher.files["metadata/1.profiles.json"]


def test_what_the_top_level_role_signs_itself_has_no_owner(device: Device) -> None:
    device.publisher.add("top", b"y")
    device.publisher.refresh()
    with pytest.raises(Distrust) as caught:
        device.refreshed().find("top")
    assert caught.value.reason is Reason.UNSIGNED


def test_what_nobody_signs_is_not_found(device: Device) -> None:
    repository = device.refreshed()
    for path in ("models/acme/meter/3/release", "models/other/meter/2/release", "nothing"):
        with pytest.raises(Distrust) as caught:
            repository.find(path)
        assert caught.value.reason is Reason.UNSIGNED


def test_other_bytes_than_the_owner_signed_are_not_read(device: Device) -> None:
    repository = device.refreshed()
    found = repository.find(PATH)
    (device.public / device.publisher.target_place(PATH, found.target)).write_bytes(RELEASE.swapcase())
    with pytest.raises(Distrust) as caught:
        repository.read(found)
    assert caught.value.reason is Reason.SWAPPED


def test_a_document_of_a_size_that_no_document_has_is_not_asked_for(device: Device) -> None:
    repository = device.refreshed(settings=settings_with(RepositorySettings(), document_limit_bytes=10))
    with pytest.raises(Distrust) as caught:
        repository.read(repository.find(PATH))
    assert caught.value.reason is Reason.TOO_LARGE


def test_a_target_without_sha256_is_none_of_ours(device: Device) -> None:
    repository = device.refreshed()
    found = repository.find(PATH)
    other = SignedTarget(TargetFile.from_data(PATH, RELEASE, ["sha512"]), found.role, found.evidence, found.root)
    with pytest.raises(Distrust, match="sha256"):
        as_target(replace(other, root=2))


@pytest.mark.parametrize("role", [Timestamp.type, Snapshot.type])
def test_offline_what_online_keys_signed_may_be_past_its_expiry(device: Device, role: str) -> None:
    device.publisher.md[role].signed.expires = device.publisher.now + DAY
    device.publisher.refresh()
    assert device.refused(device.publisher.now + 2 * DAY) is Reason.EXPIRED
    device.refreshed(device.publisher.now + 20 * DAY, grace=30 * DAY)
    assert device.refused(device.publisher.now + 32 * DAY, grace=30 * DAY) is Reason.EXPIRED


@pytest.mark.parametrize("role", [Root.type, Targets.type, "models-acme"])
def test_offline_what_offline_keys_signed_may_not(device: Device, role: str) -> None:
    device.publisher.md[role].signed.expires = device.publisher.now + DAY
    device.publisher.publish(Root.type)
    device.publisher.refresh()
    later = device.publisher.now + 2 * DAY
    with pytest.raises(Distrust) as caught:
        device.refreshed(later, grace=30 * DAY).find(PATH)
    assert caught.value.reason is Reason.EXPIRED
    assert f"{role}.json" not in device.kept() or role == Root.type


def test_the_time_is_the_one_that_was_handed_in(device: Device) -> None:
    device.refreshed(datetime(1970, 1, 1, tzinfo=UTC))
    assert device.refused(datetime(2100, 1, 1, tzinfo=UTC)) is Reason.EXPIRED


def test_what_was_verified_says_until_when_it_holds(device: Device) -> None:
    repository = device.refreshed()
    repository.find(PATH)
    expiries = repository.expiries()
    assert set(expiries) == {"root", "timestamp", "snapshot", "targets", "models-acme"}
    assert set(expiries.values()) == {device.publisher.targets.expires}


def test_floors_rise_with_what_was_verified_and_only_then(device: Device) -> None:
    repository = device.refreshed()
    repository.find(PATH)
    device.floors |= repository.risen_floors()
    assert {name.split(":")[1]: value for name, value in device.floors.items()} == {
        "root": 1,
        "timestamp": 2,
        "snapshot": 2,
        "targets": 2,
        "models-acme": 1,
    }
    again = device.open()
    again.refresh()
    again.find(PATH)
    assert again.risen_floors() == {}
    device.publisher.refresh()
    newer = device.open()
    assert newer.risen_floors() == {}
    newer.refresh()
    assert {name.split(":")[1] for name in newer.risen_floors()} == {"timestamp", "snapshot", "targets"}


def test_an_older_repository_is_refused_by_a_device_that_lost_its_files(device: Device, tmp_path: Path) -> None:
    old = dict(device.publisher.files)
    device.publisher.refresh()
    device.refreshed().find(PATH)
    device.publisher.files = old
    device.trusted = tmp_path / "anew"
    assert device.refused() is Reason.REPLAYED
    assert set(device.kept()) == {"root.json", "root_history/1.root.json"}, "nothing older was kept"
    device.refreshed(remember=False)


def test_an_older_role_of_an_owner_is_refused_though_online_keys_vouch_for_it(device: Device, tmp_path: Path) -> None:
    old = device.publisher.files["metadata/1.models-acme.json"]
    device.publisher.refresh()
    repository = device.refreshed()
    repository.find(PATH)
    device.floors |= repository.risen_floors()
    device.publisher.snapshot.meta["models-acme.json"].version = 1
    device.publisher.files["metadata/1.models-acme.json"] = old
    device.publisher.publish(Snapshot.type, Timestamp.type)
    device.trusted = tmp_path / "anew"
    with pytest.raises(Distrust) as caught:
        device.refreshed().find(PATH)
    assert caught.value.reason is Reason.REPLAYED
    assert "models-acme.json" not in device.kept()


def test_a_root_that_was_passed_is_not_gone_back_to(device: Device, tmp_path: Path) -> None:
    device.publisher.publish(Root.type)
    device.refreshed()
    (device.public / "metadata/2.root.json").unlink()
    del device.publisher.files["metadata/2.root.json"]
    device.trusted = tmp_path / "anew"
    assert device.refused() is Reason.REPLAYED


def test_a_new_key_begins_with_a_new_floor(device: Device, tmp_path: Path) -> None:
    device.publisher.timestamp.version = 1_000
    device.publisher.publish(Timestamp.type, bump=False)
    device.refreshed()
    device.publisher.set_keys(Timestamp.type, [31])
    device.publisher.publish(Root.type)
    device.publisher.timestamp.version = 4
    device.publisher.publish(Timestamp.type, bump=False)
    device.refreshed()
    device.trusted = tmp_path / "anew"
    device.refreshed()


def test_an_unchanged_poll_writes_nothing(device: Device) -> None:
    device.publisher.publish(Root.type)
    device.refreshed().find(PATH)
    before = {file: os.lstat(file) for file in [device.trusted, *device.trusted.rglob("*")]}
    device.refreshed().find(PATH)
    after = {file: os.lstat(file) for file in [device.trusted, *device.trusted.rglob("*")]}
    assert {file: (s.st_ino, s.st_mtime_ns) for file, s in after.items()} == {
        file: (s.st_ino, s.st_mtime_ns) for file, s in before.items()
    }


def test_what_a_killed_agent_left_is_taken_away(device: Device) -> None:
    device.refreshed()
    leavings = [device.trusted / ".tmp-1", device.trusted / "root_history" / ".tmp-2"]
    for file in leavings:
        file.write_bytes(b"half")
    device.refreshed()
    assert not any(file.exists() for file in leavings)


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "models-acme"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 100])
def test_files_that_a_disk_spoilt_are_fetched_anew(device: Device, role: str, content: bytes) -> None:
    device.refreshed().find(PATH)
    before = device.kept()
    (device.trusted / f"{role}.json").write_bytes(content)
    device.refreshed().find(PATH)
    assert device.kept() == before


def test_roots_that_a_disk_spoilt_are_fetched_anew(device: Device) -> None:
    device.publisher.publish(Root.type)
    device.refreshed()
    before = device.kept()
    for file in (device.trusted / "root_history").iterdir():
        file.write_bytes(b"{")
    device.refreshed()
    assert device.kept() == before


def test_root_json_stays_at_the_newest_root_while_a_poll_begins(device: Device) -> None:
    device.publisher.publish(Root.type)
    device.refreshed()
    device.open()
    assert (device.trusted / "root.json").read_bytes() == device.publisher.files["metadata/2.root.json"]


def test_nothing_is_staged_elsewhere(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    repository = device.refreshed()
    assert repository.read(repository.find(PATH)) == RELEASE


def test_a_disk_that_cannot_be_written_is_said(device: Device, tmp_path: Path) -> None:
    device.trusted = tmp_path / "file" / "metadata"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="writable"):
        device.refreshed()


def test_a_source_that_lacks_what_was_promised_is_said(device: Device) -> None:
    del device.publisher.files["metadata/timestamp.json"]
    with pytest.raises(FetchError, match=r"has no metadata/timestamp\.json"):
        device.refreshed()


def test_a_server_that_is_away_is_said(device: Device) -> None:
    with device.publisher.served() as url:
        pass
    source = WebSource(url, settings_with(FetchSettings(), attempts=1))
    repository = SignedRepository(device.trusted, source, device.pinned, device.publisher.now)
    with pytest.raises(FetchError):
        repository.refresh()


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00"])
def test_a_pinned_root_that_is_none_is_refused(device: Device, content: bytes) -> None:
    device.pinned = content
    assert device.refused() is Reason.DAMAGED
