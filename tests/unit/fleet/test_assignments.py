"""Assignments as the contract has them: an expiry of a day, slots, versions that grow."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuf.api.metadata import Metadata

from fleet.publisher.assignments import (
    assigned,
    next_assignment,
    renewed_assignment,
    slots_of,
)
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.trust.assignment_form import assignment_metadata
from tests.simulators.assignment_document import sign_assignment
from tests.simulators.fleet_repository import FleetRepository, new_key

NOW = datetime(2026, 11, 21, 9, 30, 15, tzinfo=UTC)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True)


def target(name: str) -> Target:
    return Target(f"models/acme/{name}/1/release", 10, "ab" * 32)


def made(slots: dict[str, Target], **changes: object) -> Metadata:
    given_ = {"version": 7, "now": NOW, "settings": FleetSettings(), **changes}
    return assignment_metadata(next_assignment("camera-7", slots, [], **given_))


@given(st.dictionaries(NAMES, NAMES, max_size=5).filter(lambda slots: len(set(slots.values())) == len(slots)))
@settings(deadline=None)
def test_slots_come_back(slots: dict[str, str]) -> None:
    metadata = made({slot: target(name) for slot, name in slots.items()})
    assert slots_of(metadata) == {slot: target(name).path for slot, name in slots.items()}


def test_the_document_is_the_contracts() -> None:
    metadata = made({"reader": target("meter")}, nonce="n1", poll_s=30.0)
    signed = json.loads(metadata.to_bytes())["signed"]
    assert signed["version"] == 7
    assert signed["expires"] == "2026-11-22T09:30:15Z"
    assert (signed["device"], signed["issued"]) == ("camera-7", "2026-11-21T09:30:15Z")
    assert (signed["nonce"], signed["poll_s"]) == ("n1", 30.0)
    assert signed["targets"] == {
        "models/acme/meter/1/release": {
            "length": 10,
            "hashes": {"sha256": "ab" * 32},
            "custom": {"slot": "reader"},
        }
    }


def test_files_have_no_slot_and_absent_fields_are_absent() -> None:
    assignment = next_assignment(
        "d", {}, [Target("profiles/x.toml", 1, "cd" * 32)], version=1, now=NOW, settings=FleetSettings()
    )
    signed = json.loads(assignment_metadata(assignment).to_bytes())["signed"]
    assert "custom" not in signed["targets"]["profiles/x.toml"]
    assert not {"nonce", "poll_s"} & signed.keys()


def test_one_release_does_not_go_into_two_slots() -> None:
    with pytest.raises(ConfigurationError, match="is assigned to two slots"):
        made({"a": target("meter"), "b": target("meter")})


def test_renewed_it_says_the_same_one_version_later() -> None:
    first = made({"reader": target("meter")}, nonce="n1")
    later = renewed_assignment(first, NOW + timedelta(hours=20), FleetSettings())
    assert (first.signed.version, later.signed.version) == (7, 8)
    assert later.signed.expires == NOW + timedelta(hours=44)
    assert later.signed.targets == first.signed.targets
    assert later.signed.unrecognized_fields == {"device": "camera-7", "issued": "2026-11-22T05:30:15Z"}


def test_it_is_signed_as_metadata_is() -> None:
    key = new_key()
    assignment = next_assignment("d", {"r": target("m")}, [], version=1, now=NOW, settings=FleetSettings())
    metadata = Metadata.from_bytes(sign_assignment(assignment, key))
    key.public_key.verify_signature(metadata.signatures[key.public_key.keyid], metadata.signed_bytes)


def test_only_what_is_published_is_assigned(tmp_path) -> None:
    repository = FleetRepository(tmp_path)
    path = repository.add_release("reader", "1")
    found = assigned(repository.published, path)
    signed = repository.owner_targets().signed.targets[path]
    assert (found.path, found.size_bytes, found.sha256) == (path, signed.length, signed.hashes["sha256"])
    for missing in ("models/acme/reader/2/release", "profiles/x.toml", "x", "models/other/reader/1/release"):
        with pytest.raises(ConfigurationError, match="is not published"):
            assigned(repository.published, missing)
