"""An attacker that holds every online key (timestamp, snapshot, director), against a whole device.

Each attack ends with exit code 1 and the reason in `status`; nothing new is served, and floors of models are as they
were. The next honest assignment is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata, TargetFile, Targets

from gateway.common.domain.assignment import Target
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.state.storage import opened_for_reading
from gateway.device.store.journal_rows import Floors
from tests.simulators.fleet_device import DEVICE, SLOT, FleetDevice, fleet_device
from tests.simulators.fleet_repository import FleetRepository, new_key

ATTACKERS = b"the attacker's"
RELEASE = f"models/acme/{SLOT}/{{}}/release"


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[FleetDevice]:
    """Yield a device in which version 2 serves; its owner's floor is 2, and 1 was assigned before."""
    with fleet_device(tmp_path_factory.mktemp("device"), state) as made:
        made.assign(made.publish(floor="2"))
        assert made.sync().code == 0
        yield made


def forged(repository: FleetRepository, version: str) -> Target:
    return repository.forge_release(SLOT, version, ATTACKERS)[0]


def unsigned_model(device: FleetDevice) -> None:
    device.repository.assign(DEVICE, {SLOT: forged(device.repository, "66")})


def swapped_hash(device: FleetDevice) -> None:
    device.repository.assign(DEVICE, {SLOT: forged(device.repository, "2")})


def another_devices_document(device: FleetDevice) -> None:
    repository = device.repository
    repository.put_assignment(DEVICE, repository.assign("door-2", {SLOT: RELEASE.format(1)}, version=1000))


def replayed_older_document(device: FleetDevice) -> None:
    device.repository.assign(DEVICE, {}, version=1)


def below_the_floor(device: FleetDevice) -> None:
    device.repository.assign(DEVICE, {SLOT: RELEASE.format(1)})


def wrong_hardware(device: FleetDevice) -> None:
    path = device.repository.add_release(SLOT, "50", accelerators=["hailo-8"], runtime="onnx", floor="2")
    device.repository.assign(DEVICE, {SLOT: path})


def expired(device: FleetDevice) -> None:
    now = datetime.now(UTC)
    times = {"issued": now - timedelta(hours=25), "expires": now - timedelta(hours=1)}
    device.repository.assign(DEVICE, {SLOT: RELEASE.format(2)}, **times)


def another_online_key(device: FleetDevice) -> None:
    repository = device.repository
    content = repository.assignment(DEVICE, {SLOT: RELEASE.format(2)}, signers=repository.keys["timestamp"])
    repository.put_assignment(DEVICE, content)


def forged_owner_metadata(device: FleetDevice) -> None:
    repository = device.repository
    target, document = repository.forge_release(SLOT, "67", ATTACKERS)
    metadata = repository.owner_targets()
    metadata.signed.targets[target.path] = TargetFile.from_data(target.path, document, ["sha256"])
    metadata.signed.version += 1
    stolen = [*repository.keys["director"], *repository.keys["snapshot"], new_key()]
    repository.forge("models-acme", metadata, stolen)
    repository.assign(DEVICE, {SLOT: target})


def slot_twice(device: FleetDevice) -> None:
    repository = device.repository
    made = repository.assignment(DEVICE, {SLOT: RELEASE.format(1), "second": RELEASE.format(2)})
    metadata: Metadata[Targets] = Metadata.from_bytes(made)
    for file in metadata.signed.targets.values():
        file.unrecognized_fields["custom"] = {"slot": SLOT}
    repository.put_assignment(DEVICE, repository.sign(metadata, repository.keys["director"]))


def another_model(device: FleetDevice) -> None:
    """Assign a model of the same owner, which signed it for no slot."""
    device.repository.assign(DEVICE, {SLOT: device.repository.add_release("activity", "1")})


def another_owners_model(device: FleetDevice) -> None:
    """Assign a model whose owner names the slot as well; no policy permits it."""
    device.repository.add_owner("globex")
    device.repository.assign(DEVICE, {SLOT: device.repository.add_release(SLOT, "9", "globex", slots=(SLOT,))})


def other_tensors(device: FleetDevice) -> None:
    """Assign a newer version of the same model with another input than clients send."""
    inputs = (("motion", (-1, 100, 6)),)
    device.repository.assign(DEVICE, {SLOT: device.repository.add_release(SLOT, "51", inputs=inputs)})


CASES: dict[str, tuple[Callable[[FleetDevice], None], str]] = {
    "an unsigned model": (unsigned_model, "unsigned"),
    "a swapped hash": (swapped_hash, "swapped"),
    "another device's document": (another_devices_document, "other-device"),
    "an older document": (replayed_older_document, "replayed"),
    "below the owner's floor": (below_the_floor, "below-floor"),
    "wrong hardware": (wrong_hardware, "wrong-hardware"),
    "an expired document": (expired, "expired"),
    "another online key": (another_online_key, "wrong-key"),
    "a slot twice": (slot_twice, "slot-twice"),
    "forged owner metadata": (forged_owner_metadata, "forged"),
    "another model in the slot": (another_model, "wrong-slot"),
    "another owner's model in the slot": (another_owners_model, "wrong-slot"),
    "other tensors in the slot": (other_tensors, "incompatible"),
}


RAISED = {
    "another model in the slot": {"acme/activity": "1"},
    "another owner's model in the slot": {f"globex/{SLOT}": "9"},
}
"""Floors of other models that the case raises: they are signed."""


def floors(device: FleetDevice) -> Floors:
    with opened_for_reading(device.store, AgentConfig()) as storage:
        return storage.journal.floors()


def check_refused(device: FleetDevice, reason: str, raised: dict[str, str]) -> None:
    before, active = floors(device), (device.store / "active.json").read_bytes()
    serving = device.serving
    done = device.sync()
    assert (done.code, done.told["state"], done.told["last_poll"]["reason"]) == (1, "refused", reason), done.told["why"]
    assert f"({reason})" in done.told["why"]
    assert done.told["why"] in done.err
    # versions of metadata and assignments may rise: they are signed
    assert floors(device).versions == {**before.versions, **raised}
    assert (device.serving, (device.store / "active.json").read_bytes()) == (serving, active)
    assert not [file for file in (device.store / "blobs/sha256").iterdir() if ATTACKERS in file.read_bytes()]


OFTEN = {"an unsigned model", "forged owner metadata", "other tensors in the slot"}
"""Cases in `make test`; there, verification alone meets all of them (tests/unit/common/trust/test_hostile.py)."""


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in OFTEN else pytest.mark.long) for c in CASES])
def test_a_thief_of_every_online_key(device: FleetDevice, case: str) -> None:
    attack, reason = CASES[case]
    metadata = device.repository.public / "metadata"
    honest = {file: file.read_bytes() for file in metadata.iterdir()}
    with device.hammered():
        attack(device)
        check_refused(device, reason, RAISED.get(case, {}))
    if case == "forged owner metadata":  # what the thief signed as timestamp and snapshot has to be overtaken
        for file in set(metadata.iterdir()) - set(honest):
            file.unlink()
        for file, content in honest.items():
            file.write_bytes(content)
        device.publish(floor="2")
        device.assign(device.publish(floor="2"))
    else:
        device.assign(RELEASE.format(2))
    done = device.sync()
    assert (done.code, done.told["state"]) == (0, "in-step"), done.told["why"]


TAKEN: dict[str, dict[str, object]] = {
    "an empty assignment": {},
    "an order to remove all models": {"removed": [SLOT]},
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_thief_of_every_online_key_takes_no_model_away(device: FleetDevice, case: str) -> None:
    """No policy was ever signed: the bounds that are built into the device hold."""
    serving, active = device.serving, (device.store / "active.json").read_bytes()
    with device.hammered():
        device.repository.assign(DEVICE, {}, extra=TAKEN[case])
        done = device.sync()
    assert done.told["state"] == ("held" if TAKEN[case] else "unassigned"), done.told["why"]
    assert (device.serving, (device.store / "active.json").read_bytes()) == (serving, active)
    device.assign(RELEASE.format(2))
    done = device.sync()
    assert (done.code, done.told["state"]) == (0, "in-step"), done.told["why"]
