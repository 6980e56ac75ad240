"""The nine cases that a device must refuse, the attacker holding timestamp, snapshot and director keys; and more."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, TargetFile, Targets

from gateway.common.domain.assignment import Target
from gateway.common.trust.distrust import Distrust, Reason
from tests.simulators.fleet_repository import FleetRepository, new_key
from tests.simulators.trusting_device import REFUSALS, TrustingDevice, folder_files

DEVICE, SLOT = "device-1", "reader"
RELEASE = "models/acme/reader/{}/release"
ONE, TWO = RELEASE.format(1), RELEASE.format(2)


def sync(repository: FleetRepository, device: TrustingDevice) -> None:
    device.sync(folder_files(repository.public).__getitem__, repository.now)
    device.boot()


def refused(repository: FleetRepository, device: TrustingDevice) -> Reason:
    """Return why the device refuses; and it goes on with what it had."""
    before = (dict(device.slots), dict(device.floors), device.last)
    with pytest.raises(Distrust) as caught:
        sync(repository, device)
    assert (device.slots, device.floors, device.last) == before
    device.boot()
    return caught.value.reason


def target(repository: FleetRepository, path: str) -> Target:
    found = repository.published.target(path)
    assert found
    return Target(path, found.length, found.hashes["sha256"])


def test_what_the_owner_signed_is_accepted(repository: FleetRepository, device: TrustingDevice) -> None:
    repository.assign(DEVICE, {SLOT: TWO})
    sync(repository, device)
    assert device.slots[SLOT].target == TWO
    sync(repository, device)  # an unchanged poll
    repository.assign(DEVICE, {SLOT: ONE})  # at the floor: a forced rollback is the operator's to order
    sync(repository, device)
    assert device.slots[SLOT].target == ONE


def test_an_unsigned_model(repository: FleetRepository, device: TrustingDevice) -> None:
    forged, _ = repository.forge_release(SLOT, "3", b"the attacker's")
    repository.assign(DEVICE, {SLOT: forged})
    assert refused(repository, device) is Reason.UNSIGNED


def test_a_swapped_hash(repository: FleetRepository, device: TrustingDevice) -> None:
    forged, _ = repository.forge_release(SLOT, "2", b"the attacker's")
    assert forged.path == TWO
    repository.assign(DEVICE, {SLOT: forged})
    assert refused(repository, device) is Reason.SWAPPED


def test_a_swapped_length(repository: FleetRepository, device: TrustingDevice) -> None:
    true = target(repository, TWO)
    repository.assign(DEVICE, {SLOT: replace(true, size_bytes=true.size_bytes + 1)})
    assert refused(repository, device) is Reason.SWAPPED


def test_another_devices_document(repository: FleetRepository, device: TrustingDevice) -> None:
    repository.put_assignment(DEVICE, repository.assign("device-2", {SLOT: TWO}))
    assert refused(repository, device) is Reason.OTHER_DEVICE


def test_a_replayed_older_document(repository: FleetRepository, device: TrustingDevice) -> None:
    old = repository.assign(DEVICE, {SLOT: ONE})
    repository.assign(DEVICE, {SLOT: TWO})
    sync(repository, device)
    repository.put_assignment(DEVICE, old)
    assert refused(repository, device) is Reason.REPLAYED


def test_two_documents_of_one_version(repository: FleetRepository, device: TrustingDevice) -> None:
    repository.assign(DEVICE, {SLOT: TWO}, version=7)
    sync(repository, device)
    repository.assign(DEVICE, {SLOT: ONE}, version=7)
    assert refused(repository, device) is Reason.AMBIGUOUS
    repository.assign(DEVICE, {SLOT: ONE})
    sync(repository, device)


def test_a_version_below_the_owners_floor(repository: FleetRepository, device: TrustingDevice) -> None:
    repository.add_release(SLOT, "3", floor="2")
    repository.assign(DEVICE, {SLOT: ONE})
    assert refused(repository, device) is Reason.BELOW_FLOOR
    repository.assign(DEVICE, {SLOT: TWO})
    sync(repository, device)


def test_a_floor_seen_once_holds_though_the_owner_takes_it_back(
    repository: FleetRepository, device: TrustingDevice
) -> None:
    path = repository.add_release(SLOT, "3", floor="2")
    repository.assign(DEVICE, {SLOT: path})
    sync(repository, device)
    lower = repository.owner_targets()
    del lower.signed.targets[path]
    lower.signed.version += 1
    repository.forge("models-acme", lower, repository.keys["models-acme"])
    repository.assign(DEVICE, {SLOT: ONE})
    assert refused(repository, device) is Reason.BELOW_FLOOR


def test_the_wrong_hardware(repository: FleetRepository, device: TrustingDevice) -> None:
    path = repository.add_release(SLOT, "3", accelerators=["hailo-8"])
    repository.assign(DEVICE, {SLOT: path})
    assert refused(repository, device) is Reason.WRONG_HARDWARE
    fitting = replace(device, accelerators=("cpu", "hailo-8"))
    sync(repository, fitting)


def test_an_expired_document(repository: FleetRepository, device: TrustingDevice) -> None:
    repository.assign(DEVICE, {SLOT: TWO})
    repository.now += timedelta(hours=24)
    repository.publish()
    assert refused(repository, device) is Reason.EXPIRED


@pytest.mark.parametrize("role", ["snapshot", "timestamp"])
def test_the_signature_of_another_online_key(repository: FleetRepository, device: TrustingDevice, role: str) -> None:
    keys = repository.keys[role]
    repository.put_assignment(DEVICE, repository.assignment(DEVICE, {SLOT: TWO}, signers=keys))
    assert refused(repository, device) is Reason.WRONG_KEY


@pytest.mark.parametrize("thieves", [["director"], ["snapshot", "timestamp"], ["one of acme's"], ["globex"]])
def test_forged_owner_metadata(repository: FleetRepository, device: TrustingDevice, thieves: list[str]) -> None:
    repository.add_owner("globex")
    stolen = {**repository.keys, "globex": repository.keys["models-globex"]}
    stolen["one of acme's"] = repository.keys["models-acme"][:1]
    forged, document = repository.forge_release(SLOT, "3", b"the attacker's")
    metadata = repository.owner_targets()
    metadata.signed.targets[forged.path] = TargetFile.from_data(forged.path, document, ["sha256"])
    metadata.signed.version += 1
    repository.forge("models-acme", metadata, [key for thief in thieves for key in stolen[thief]])
    repository.assign(DEVICE, {SLOT: forged})
    with pytest.raises(REFUSALS, match="signed by"):
        sync(repository, device)
    assert not device.slots


def test_a_slot_given_twice(repository: FleetRepository, device: TrustingDevice) -> None:
    repository.add_release("other", "1")
    metadata = repository.assignment(DEVICE, {SLOT: TWO, "second": "models/acme/other/1/release"})
    repository.put_assignment(DEVICE, _with_slots(repository, metadata, SLOT))
    assert refused(repository, device) is Reason.SLOT_TWICE


def _with_slots(repository: FleetRepository, content: bytes, slot: str) -> bytes:
    metadata: Metadata[Targets] = Metadata.from_bytes(content)
    for file in metadata.signed.targets.values():
        file.unrecognized_fields["custom"] = {"slot": slot}
    return repository.sign(metadata, repository.keys["director"])


def test_an_owner_in_anothers_name_space(repository: FleetRepository, device: TrustingDevice) -> None:
    repository.add_release("other", "1", "globex")
    forged, document = repository.forge_release(SLOT, "3", b"globex made it")
    metadata = repository.owner_targets("globex")
    metadata.signed.targets[forged.path] = TargetFile.from_data(forged.path, document, ["sha256"])
    metadata.signed.version += 1
    repository.forge("models-globex", metadata, repository.keys["models-globex"])
    repository.assign(DEVICE, {SLOT: forged})
    assert refused(repository, device) is Reason.UNSIGNED


@pytest.mark.parametrize("pattern", ["models/acme/*/*/*", "models/*/*/*/*", "*/*/*/*/*"])
def test_an_owner_who_delegates_anothers_name_space(
    repository: FleetRepository, device: TrustingDevice, pattern: str
) -> None:
    """The attacker is a true owner, names a role of its own in its own metadata and has snapshot list it."""
    repository.add_release("other", "1", "globex")
    key = new_key()
    forged, _ = repository.forge_release(SLOT, "3", b"globex made it")
    metadata = repository.owner_targets("globex")
    role = DelegatedRole("mine", [key.public_key.keyid], 1, terminating=True, paths=[pattern])
    metadata.signed.delegations = Delegations({key.public_key.keyid: key.public_key}, {"mine": role})
    metadata.signed.version += 1
    repository.forge("models-globex", metadata, repository.keys["models-globex"])
    repository.assign(DEVICE, {SLOT: forged})
    assert refused(repository, device) is Reason.UNSIGNED


@pytest.mark.parametrize(
    "path",
    [
        "models/acme/../2/release",
        "models/acme/reader/../release",
        "models/acme/./2/release",
        "models/acme//2/release",
        "models/acme/reader/2/release/",
        "/models/acme/reader/2/release",
        "models/acme/reader/2/release2",
        "models/acme/reader/2\x00/release",
        "models/acme/reader/%2e%2e/release",
        "models\\acme\\reader\\2\\release",
        "models/acme/*/2/release",
        "profiles/../policy",
        "profiles/.hidden",
        "policy/",
        "blobs/sha256",
    ],
)
def test_a_path_that_leads_elsewhere(repository: FleetRepository, device: TrustingDevice, path: str) -> None:
    repository.assign(DEVICE, {SLOT: replace(target(repository, TWO), path=path)})
    assert refused(repository, device) is Reason.BAD_PATH
