"""Whatever is wrong with a repository on the server is found, with where it is and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata

from fleet.publisher.settings import FleetSettings
from fleet.publisher.verify import Report, stated_bytes, verify
from tests.simulators.fleet_repository import FleetRepository, new_key

DEVICE = "camera-7"
TARGET = "models/acme/reader/1/release"


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    made = FleetRepository(tmp_path)
    made.add_release("reader", "1")
    made.add_file("profiles/lab.toml", b"x")
    made.rotate("root")
    made.assign(DEVICE, {"reader": TARGET}, ["profiles/lab.toml"])
    return made


def verified(repository: FleetRepository, **later: float) -> Report:
    return verify(repository.public, repository.now + timedelta(**later), FleetSettings())


def found(repository: FleetRepository, **later: float) -> list[str]:
    return [f"{finding.where} {finding.problem}" for finding in verified(repository, **later).findings]


def test_a_repository_as_published_is_fine(repository: FleetRepository) -> None:
    report = verified(repository)
    assert report.findings == ()
    assert report.files == 4
    assert report.size_bytes == stated_bytes(repository.public, FleetSettings())
    assert [expiry.what for expiry in report.expiries[:2]] == ["timestamp", "assignments/camera-7"]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (2, ["timestamp", "assignments/camera-7"]),
        (8, ["timestamp", "assignments/camera-7", "snapshot"]),
        (200, ["timestamp", "assignments/camera-7", "snapshot", "targets", "models-acme", "profiles"]),
    ],
)
def test_what_has_expired_is_found(repository: FleetRepository, days: float, expected: list[str]) -> None:
    findings = verified(repository, days=days).findings
    assert sorted(finding.where for finding in findings) == sorted(expected)
    remedies = {finding.where: finding.remedy for finding in findings}
    assert remedies["timestamp"] == "edge-fleet publish"
    assert remedies["assignments/camera-7"] == "edge-fleet assign --renew camera-7"
    assert (
        remedies.get("targets", "edge-fleet renew targets, sign, publish") == "edge-fleet renew targets, sign, publish"
    )


def only(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a blob is gone": (
        lambda public: next((public / "blobs/sha256").iterdir()).unlink(),
        "cannot be read: No such file",
    ),
    "a blob is spoilt": (lambda public: flip(next((public / "blobs/sha256").iterdir())), "has the digest"),
    "a blob is shorter": (lambda public: next((public / "blobs/sha256").iterdir()).write_bytes(b"x"), "has 1 bytes"),
    "a profile is spoilt": (lambda public: flip(only(public, "targets/profiles/*")), "has the digest"),
    "a release is gone": (
        lambda public: only(public, "targets/models/acme/reader/1/*").unlink(),
        "is no release document",
    ),
    "the targets are gone": (lambda public: only(public, "metadata/2.targets.json").unlink(), "cannot be read"),
    "the timestamp is spoilt": (lambda public: (public / "metadata/timestamp.json").write_text("{"), "is damaged"),
    "an assignment is no metadata": (
        lambda public: (public / "assignments/camera-7.json").write_text("[]"),
        "is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(repository: FleetRepository, damage: str) -> None:
    spoil, said = DAMAGES[damage]
    spoil(repository.public)
    assert any(said in line for line in found(repository)), found(repository)


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp", "models-acme", "profiles"])
def test_a_document_that_others_signed_is_found(repository: FleetRepository, role: str) -> None:
    file = max((repository.public / "metadata").glob(f"*{role}.json"))
    metadata = Metadata.from_bytes(file.read_bytes())
    file.write_bytes(repository.sign(metadata, [new_key()]))
    assert found(repository) == [f"{role} {metadata.signed.version} lacks 1 signature of its keys"]


def test_a_gap_among_the_roots_is_found(repository: FleetRepository) -> None:
    repository.rotate("root")
    (repository.public / "metadata/2.root.json").unlink()
    assert found(repository) == ["metadata/3.root.json follows root 1"]


def test_a_root_that_the_one_before_did_not_sign_is_found(repository: FleetRepository) -> None:
    file = repository.public / "metadata/2.root.json"
    file.write_bytes(repository.sign(Metadata.from_bytes(file.read_bytes()), repository.keys["root"]))
    assert found(repository) == ["metadata/2.root.json lacks 2 of the previous root's signatures"]


def test_a_target_outside_its_roles_paths_is_found(repository: FleetRepository) -> None:
    owner = repository.owner_targets()
    owner.signed.version += 1
    owner.signed.targets["models/other/reader/1/release"] = owner.signed.targets[TARGET]
    owner.signed.targets["models/other/reader/1/release"].path = TARGET
    repository.forge("models-acme", owner, repository.keys["models-acme"])
    assert any("outside its paths: no device will take it" in line for line in found(repository))


def test_a_floor_that_the_document_does_not_say_is_found(repository: FleetRepository) -> None:
    owner = repository.owner_targets()
    owner.signed.version += 1
    owner.signed.targets[TARGET].unrecognized_fields["custom"] = {"floor": "0"}
    repository.forge("models-acme", owner, repository.keys["models-acme"])
    assert found(repository) == [f"{TARGET} signs the floor 0, its document says 1"]


def test_a_file_of_another_version_than_its_name_is_found(repository: FleetRepository) -> None:
    old, new = (repository.public / f"metadata/{version}.models-acme.json" for version in (1, 2))
    repository.renew("models-acme")
    new.write_bytes(old.read_bytes())
    assert found(repository) == ["metadata/2.models-acme.json says version 1"]


def assignment(repository: FleetRepository, change: Callable[[dict[str, object]], object]) -> None:
    """Serve a changed assignment that the director signed."""
    file = repository.public / "assignments/camera-7.json"
    document = json.loads(file.read_bytes())
    change(document["signed"])
    file.write_bytes(repository.sign(Metadata.from_dict(document), repository.keys["director"]))


def test_assignments_that_devices_would_refuse_are_found(repository: FleetRepository) -> None:
    assignment(repository, lambda signed: signed.update(device="camera-8"))
    assert found(repository) == ["assignments/camera-7 is addressed to another device"]
    repository.assign(DEVICE, {"reader": TARGET})
    assignment(repository, lambda signed: signed["targets"][TARGET].update(length=1))
    assert found(repository) == [f"assignments/camera-7 names {TARGET}, which is not published like that"]
    other = repository.add_release("other", "1")
    repository.assign(DEVICE, {"reader": TARGET, "other": other})
    assignment(repository, lambda signed: signed["targets"][other].update(custom={"slot": "reader"}))
    assert found(repository) == ["assignments/camera-7 fills the slot reader twice"]
    repository.assign(DEVICE, {"reader": TARGET}, signers=[new_key()])
    assert found(repository) == ["assignments/camera-7 is not signed by the director"]


@pytest.mark.parametrize("custom", ["text", [], 7, {}, {"slot": 3}])
def test_odd_custom_parts_are_no_stumbling_block(repository: FleetRepository, custom: object) -> None:
    assignment(repository, lambda signed: signed["targets"][TARGET].update(custom=custom))
    assert found(repository) == []


def test_an_empty_folder_is_no_repository(tmp_path: Path) -> None:
    report = verify(tmp_path, FleetRepository(tmp_path / "x").now, FleetSettings())
    assert [finding.problem for finding in report.findings] == ["is missing"]
