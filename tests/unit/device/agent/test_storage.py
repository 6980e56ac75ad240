"""The device's store as the agent uses it: held by one, read by many, tidied, checked, taken back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.software_release import SoftwareRelease, SoftwareVariant, software_bytes
from gateway.common.store.active import read_active, write_active
from gateway.common.store.errors import StoreAbsentError, StoreError
from gateway.common.trust.settings import TrustSettings
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.state.identity import DeviceIdentity, bootstrap
from gateway.device.agent.state.slot_state import SlotState, begun, failed, keep_state, read_state
from gateway.device.agent.state.storage import Storage, opened, opened_for_reading
from gateway.device.agent.update.committing import roll_back
from gateway.device.agent.update.verify import Verification
from gateway.device.store.journal_rows import Floors
from tests.simulators.device_store import DeviceStore, flip_bit
from tests.simulators.fleet_repository import FleetRepository

CONFIG = AgentConfig()
NOW = datetime(2031, 5, 9, tzinfo=UTC)
SLOT = "meter"


@pytest.fixture
def store(tmp_path: Path) -> DeviceStore:
    """Return a bootstrapped device with version 2 in its slot, and 1 before."""
    repository = FleetRepository(tmp_path / "fleet")
    document = b'{"schema": 1, "device": "door-1", "repository": "http://h/", "assignment": "http://h/a"}'
    identity = DeviceIdentity("door-1", "http://h/", "http://h/a", repository.root_bytes(1), document)
    bootstrap(identity, tmp_path / "store")
    made = DeviceStore(tmp_path / "store", repository)
    for version in "12":
        made.install(SLOT, repository.add_release(SLOT, version))
    return made


@pytest.fixture
def storage(store: DeviceStore) -> Iterator[Storage]:
    with opened(store.folder, CONFIG) as found:
        yield found


def problems(storage: Storage, store: DeviceStore) -> list[tuple[str, bool]]:
    lines = Verification(storage, store.repository.root_bytes(1), TrustSettings()).run()
    return [(line.what, not line.problem) for line in lines]


def test_one_agent_at_a_time_and_any_number_of_readers(store: DeviceStore) -> None:
    with opened(store.folder, CONFIG):
        with pytest.raises(UnreachableError, match="another edge-agent uses this folder"), opened(store.folder, CONFIG):
            pass
        with opened_for_reading(store.folder, CONFIG) as one, opened_for_reading(store.folder, CONFIG) as another:
            assert one.active() == another.active()
    with opened(store.folder, CONFIG):
        pass


def test_a_folder_that_was_never_bootstrapped(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="edge-agent bootstrap DIR"), opened(tmp_path, CONFIG):
        pass


def test_what_is_committed_or_could_be_gone_back_to_is_kept_and_nothing_else(
    storage: Storage, store: DeviceStore
) -> None:
    store.fetch(SLOT, store.repository.add_release(SLOT, "3"))  # an update that came to nothing
    files = {path for path in store.folder.rglob("*") if path.is_file()}
    storage.collect()
    gone = files - {path for path in store.folder.rglob("*") if path.is_file()}
    assert gone
    assert problems(storage, store) == [("committed meter", True), ("previous meter", True)]
    contents = [path.read_bytes() for path in (store.folder / "blobs/sha256").iterdir()]
    assert [f"meter {version}".encode() in contents for version in "123"] == [True, True, False]


def test_updates_of_settings_and_programs_keep_their_files_until_they_end(storage: Storage) -> None:
    put = storage.blobs.put
    names = [f"{name}-1.0-py3-none-any.whl" for name in ("edge_inference_gateway", "pip")]
    wheels = tuple(Artifact(name, put(name.encode()), len(name)) for name in names)
    release = SoftwareRelease("edge-gateway", "1.0", "1.0", NOW, (SoftwareVariant("x86_64", "3.13", "", wheels),))
    documents = {SOFTWARE_SLOT: put(software_bytes(release)), SETTINGS_SLOT: put(b"settings")}
    kept = {*documents.values(), *(wheel.sha256 for wheel in wheels)}
    for slot, digest in documents.items():
        evidence = put(f"evidence of {slot}".encode())
        kept.add(evidence)
        activation = Activation(slot, "path", digest, (), (evidence,), 1)
        keep_state(storage.journal, begun(SlotState(slot), activation, NOW, assignment=1, attempt=0))
    storage.collect()
    assert all(map(storage.blobs.verify, kept))
    for slot in documents:
        state = read_state(storage.journal, slot)
        keep_state(storage.journal, failed(state, state.phase, "something else is assigned now", NOW))
    storage.collect()
    assert not any(map(storage.blobs.verify, kept))


@pytest.mark.parametrize("thorough", [False, True])
def test_whole_and_not_whole(storage: Storage, store: DeviceStore, *, thorough: bool) -> None:
    activation = store.active.slots[SLOT]
    artifact = store.release_folder(activation) / "only/model.npz"
    assert storage.whole(activation, thorough=thorough)
    flip_bit(artifact)
    assert storage.whole(activation, thorough=thorough) != thorough
    artifact.write_bytes(b"short")
    assert not storage.whole(activation, thorough=thorough)
    artifact.unlink()
    assert not storage.whole(activation, thorough=thorough)


@pytest.mark.parametrize("part", ["release", "evidence"])
def test_what_proves_a_release_belongs_to_it(storage: Storage, store: DeviceStore, part: str) -> None:
    activation = store.active.slots[SLOT]
    digest = activation.release if part == "release" else activation.evidence[-1]
    flip_bit(store.folder / "blobs/sha256" / digest)
    assert not storage.whole(activation, thorough=False)
    # of the owner's older metadata the previous release has its own copy
    assert problems(storage, store) == [("committed meter", False), ("previous meter", True)]


def test_verify_reads_every_byte(storage: Storage, store: DeviceStore) -> None:
    flip_bit(store.release_folder(store.active.previous[SLOT]) / "only/model.npz")
    assert problems(storage, store) == [("committed meter", True), ("previous meter", False)]


def test_verify_believes_no_other_root(storage: Storage, store: DeviceStore, tmp_path: Path) -> None:
    other = FleetRepository(tmp_path / "other").root_bytes(1)
    lines = Verification(storage, other, TrustSettings()).run()
    assert all(line.problem for line in lines)
    assert len(lines) == 2


def test_back_by_hand(storage: Storage, store: DeviceStore) -> None:
    newest = store.active.slots[SLOT]
    gone, back = roll_back(storage, SLOT)
    assert (gone.version, back.version) == ("2", "1")
    assert read_active(store.active_file).slots[SLOT].version == "1"
    assert storage.journal.rejected(SLOT, newest.release) == "rolled back by hand on the device"
    with pytest.raises(StoreAbsentError, match="no previous release"):
        roll_back(storage, SLOT)
    with pytest.raises(StoreAbsentError, match="nothing is committed for other"):
        roll_back(storage, "other")


def test_not_back_below_what_its_owner_allows(storage: Storage, store: DeviceStore) -> None:
    storage.journal.raise_floors(Floors(versions={"acme/meter": "2"}))
    with pytest.raises(StoreError, match="below the floor 2"):
        roll_back(storage, SLOT)
    assert read_active(store.active_file).slots[SLOT].version == "2"


def test_not_back_by_hand_in_the_middle_of_an_update(storage: Storage, store: DeviceStore) -> None:
    from gateway.device.agent.clock import system_now

    storage.journal.begin(store.active.slots[SLOT], 1, system_now())
    with pytest.raises(StoreError, match="is being updated"):
        roll_back(storage, SLOT)


def test_a_damaged_active_file_is_an_error_of_the_store(storage: Storage, store: DeviceStore) -> None:
    active = store.active
    store.active_file.write_text("{")
    with pytest.raises(StoreError, match="move it away"):
        storage.active()
    write_active(store.active_file, active)
    assert storage.active() == active
