"""TUF 5.4 and 5.5: freshness, and that nothing goes back to an older version."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from tuf.api.metadata import MetaFile, Root, Snapshot, Targets, Timestamp

from tests.conformance.conftest import Client
from tests.conformance.publisher import Publisher

KEYS: dict[str, tuple[list[int], int, list[int], bool]] = {
    "another key": ([2], 1, [2], True),
    "signatures that nobody asked for": ([1], 1, [3, 1, 4], True),
    "three of five": ([0, 1, 2, 3, 4], 3, [1, 2, 4], True),
    "all of three": ([0, 1, 2], 3, [0, 1, 2], True),
    "keys that the root does not name": ([1], 1, [3, 4], False),
    "two of three": ([0, 1, 3, 4, 5], 3, [0, 4], False),
    "three, one of them not named": ([0, 1, 3, 4, 5], 3, [0, 2, 4], False),
    "more than there are keys": ([0, 1], 3, [0, 1], False),
}


@pytest.mark.parametrize("role", [Timestamp.type, Snapshot.type, Targets.type])
@pytest.mark.parametrize("case", KEYS.values(), ids=KEYS)
def test_a_role_needs_its_threshold_of_the_keys_that_root_names(
    device: Client, publisher: Publisher, case: tuple[list[int], int, list[int], bool], role: str
) -> None:
    keys, threshold, signed_by, good = case
    publisher.set_keys(role, keys, threshold=threshold, signed_by=signed_by)
    publisher.publish(Root.type)
    publisher.refresh()
    assert device.refresh() is good, device.said
    assert (device.versions().get(role) == 2) is good


def test_one_signature_many_times_over_is_one_signature(device: Client, publisher: Publisher) -> None:
    publisher.set_keys(Snapshot.type, [1, 2], threshold=2, signed_by=[1])
    publisher.publish(Root.type)
    publisher.refresh()
    place = publisher.place(Snapshot.type)
    document = json.loads(publisher.files[place])
    document["signatures"] *= 2
    publisher.files[place] = json.dumps(document).encode()
    assert not device.refresh()


def test_the_same_version_with_other_content_changes_nothing(device: Client, publisher: Publisher) -> None:
    assert device.refresh()
    before = device.content("timestamp")
    publisher.timestamp.snapshot_meta.version = 100
    publisher.publish(Timestamp.type, bump=False)
    assert device.refresh(), device.said
    assert device.content("timestamp") == before


def test_an_older_timestamp_is_refused(device: Client, publisher: Publisher) -> None:
    old = publisher.files["metadata/timestamp.json"]
    publisher.refresh()
    assert device.refresh()
    publisher.files["metadata/timestamp.json"] = old
    assert not device.refresh()
    assert device.versions()["timestamp"] == 2


@pytest.mark.parametrize("stated", [False, True])
def test_a_timestamp_that_names_an_older_snapshot_is_refused(
    device: Client, publisher: Publisher, stated: bool
) -> None:
    publisher.stated = stated
    publisher.refresh()
    assert device.refresh()
    publisher.snapshot.version = 1
    publisher.publish(Snapshot.type, Timestamp.type, bump=False)
    publisher.publish(Timestamp.type)
    assert not device.refresh()
    assert device.versions() | {"root": 1} == {"root": 1, "timestamp": 2, "snapshot": 2, "targets": 2}


@pytest.mark.parametrize("lost", ["timestamp.json", "snapshot.json", "both"])
def test_an_older_repository_is_refused_though_the_files_that_say_so_are_lost(
    device: Client, publisher: Publisher, lost: str
) -> None:
    old = dict(publisher.files)
    publisher.refresh()
    assert device.refresh()
    for file in ("timestamp.json", "snapshot.json"):
        if lost in {file, "both"}:
            (device.trusted / file).unlink()
    publisher.files.clear()
    publisher.files.update(old)
    assert not device.refresh(), "stock clients go back here"
    assert device.versions().get("timestamp", 2) == 2
    assert "replayed" in device.said or "must be >= 2" in device.said


def test_an_expired_timestamp_is_refused(device: Client, publisher: Publisher) -> None:
    assert device.refresh()
    publisher.timestamp.expires = publisher.now - timedelta(days=1)
    publisher.publish(Timestamp.type)
    assert not device.refresh()
    assert device.versions()["timestamp"] == 1


def test_what_is_kept_expires_too(device: Client, publisher: Publisher) -> None:
    publisher.timestamp.expires = publisher.now + timedelta(days=7)
    publisher.publish(Timestamp.type)
    assert device.refresh()
    assert not device.refresh(at=publisher.now + timedelta(days=8))


def test_expired_files_serve_to_come_to_fresh_ones(device: Client, publisher: Publisher) -> None:
    publisher.timestamp.expires = publisher.now + timedelta(days=7)
    publisher.publish(Timestamp.type)
    assert device.refresh()
    publisher.timestamp.expires = publisher.now + timedelta(days=21)
    publisher.refresh()
    assert device.refresh(at=publisher.now + timedelta(days=18)), device.said
    assert device.versions() == {"root": 1, "timestamp": 3, "snapshot": 2, "targets": 2}


def test_an_expired_timestamp_still_forbids_to_go_back(device: Client, publisher: Publisher) -> None:
    publisher.timestamp.expires = publisher.now + timedelta(days=7)
    publisher.publish(Timestamp.type)
    assert device.refresh()
    publisher.timestamp.version = 1
    publisher.timestamp.expires = publisher.now + timedelta(days=21)
    publisher.publish(Timestamp.type, bump=False)
    assert not device.refresh(at=publisher.now + timedelta(days=18))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"\xff", b'{"signed": {}, "signatures": []}', b"9" * 9000]
)
def test_rubbish_is_refused(device: Client, publisher: Publisher, content: bytes) -> None:
    publisher.files["metadata/timestamp.json"] = content
    assert not device.refresh()
    assert device.versions() == {"root": 1}


def test_a_timestamp_that_is_too_large_is_refused(device: Client, publisher: Publisher) -> None:
    publisher.timestamp.unrecognized_fields["padding"] = "x" * 20_000
    publisher.publish(Timestamp.type)
    assert not device.refresh()


def test_a_new_timestamp_key_lets_its_version_begin_anew(device: Client, publisher: Publisher) -> None:
    publisher.timestamp.version = 99_999
    publisher.publish(Timestamp.type, bump=False)
    assert device.refresh()
    publisher.set_keys(Timestamp.type, [21])
    publisher.publish(Root.type)
    publisher.timestamp.version = 1
    publisher.publish(Timestamp.type, bump=False)
    assert device.refresh(), device.said
    assert device.versions()["timestamp"] == 1


def test_new_snapshot_and_timestamp_keys_let_both_begin_anew(device: Client, publisher: Publisher) -> None:
    publisher.snapshot.version = 99_999
    publisher.publish(Snapshot.type, bump=False)
    publisher.publish(Timestamp.type)
    assert device.refresh()
    publisher.set_keys(Snapshot.type, [22])
    publisher.set_keys(Timestamp.type, [23])
    publisher.publish(Root.type)
    publisher.snapshot.version = 1
    publisher.publish(Snapshot.type, Timestamp.type, bump=False)
    assert device.refresh(), device.said
    assert device.versions()["snapshot"] == 1


def test_a_new_snapshot_key_lets_targets_begin_anew(device: Client, publisher: Publisher) -> None:
    publisher.targets.version = 99_999
    publisher.publish(Targets.type, bump=False)
    publisher.publish(Snapshot.type, Timestamp.type)
    assert device.refresh()
    publisher.set_keys(Snapshot.type, [24])
    publisher.publish(Root.type)
    publisher.targets.version = 2
    publisher.publish(Targets.type, bump=False)
    publisher.publish(Snapshot.type, Timestamp.type)
    assert device.refresh(), device.said
    assert device.versions()["targets"] == 2


def test_a_snapshot_of_another_version_than_timestamp_says_is_refused(device: Client, publisher: Publisher) -> None:
    publisher.snapshot.version = 5
    publisher.publish(Snapshot.type, bump=False)
    publisher.files["metadata/1.snapshot.json"] = publisher.files["metadata/5.snapshot.json"]
    assert not device.refresh()
    assert device.versions() == {"root": 1, "timestamp": 1}


@pytest.mark.parametrize("what", ["hash", "length"])
def test_a_snapshot_that_timestamp_does_not_describe_is_refused(
    device: Client, publisher: Publisher, what: str
) -> None:
    described = MetaFile(2, 1 if what == "length" else None, {"sha256": "0" * 64} if what == "hash" else None)
    publisher.publish(Snapshot.type)
    publisher.timestamp.snapshot_meta = described
    publisher.publish(Timestamp.type)
    assert not device.refresh()
    assert device.versions() == {"root": 1, "timestamp": 2}


def test_lengths_and_hashes_that_are_right_are_accepted(device: Client, publisher: Publisher) -> None:
    publisher.stated = True
    publisher.refresh()
    assert device.refresh(), device.said
    assert device.versions() == {"root": 1, "timestamp": 2, "snapshot": 2, "targets": 2}


def test_an_expired_snapshot_is_refused(device: Client, publisher: Publisher) -> None:
    assert device.refresh()
    publisher.snapshot.expires = publisher.now - timedelta(days=1)
    publisher.refresh()
    assert not device.refresh()
    assert device.versions()["snapshot"] == 1


@pytest.mark.parametrize("stated", [False, True])
def test_a_snapshot_that_names_older_targets_is_refused(device: Client, publisher: Publisher, stated: bool) -> None:
    publisher.stated = stated
    publisher.refresh()
    assert device.refresh()
    publisher.targets.version = 1
    publisher.publish(Targets.type, bump=False)
    publisher.publish(Snapshot.type, Timestamp.type)
    assert not device.refresh()
    assert device.versions()["targets"] == 2


def test_a_snapshot_that_forgets_a_role_is_refused(device: Client, publisher: Publisher) -> None:
    publisher.snapshot.meta["other.json"] = MetaFile(1)
    publisher.publish(Snapshot.type, Timestamp.type)
    assert device.refresh()
    del publisher.snapshot.meta["other.json"]
    publisher.publish(Snapshot.type, Timestamp.type)
    assert not device.refresh()
    assert device.versions()["snapshot"] == 2


def test_without_consistent_snapshots_names_carry_no_version(publisher: Publisher, client: Client) -> None:
    publisher.__init__(consistent=False)  # type: ignore[misc]
    publisher.add("a/file", b"content")
    publisher.refresh()
    assert client.init(publisher.files["metadata/1.root.json"])
    assert client.download("a/file"), client.said
    assert publisher.requests == [
        *(f"metadata/{name}.json" for name in ("2.root", "timestamp", "snapshot", "targets")),
        "targets/a/file",
    ]


@pytest.mark.parametrize("role", [Timestamp.type, Snapshot.type, Targets.type])
def test_what_is_not_there_ends_the_refresh_and_harms_nothing(device: Client, publisher: Publisher, role: str) -> None:
    assert device.refresh()
    publisher.refresh()
    del publisher.files[publisher.place(role)]
    assert not device.refresh()
    before = {Timestamp.type: [], Snapshot.type: [Timestamp.type], Targets.type: [Timestamp.type, Snapshot.type]}[role]
    assert device.versions() == {"root": 1, "timestamp": 1, "snapshot": 1, "targets": 1} | dict.fromkeys(before, 2)


def test_the_bytes_that_came_are_the_bytes_that_are_kept(device: Client, publisher: Publisher) -> None:
    publisher.files["metadata/timestamp.json"] += b" \n"
    assert device.refresh(), device.said
    assert device.content("timestamp") == publisher.files["metadata/timestamp.json"]


@pytest.mark.parametrize("wrong", ["", "00", "0" * 128, "no hex"])
def test_a_wrong_signature_beside_enough_right_ones_is_no_obstacle(
    device: Client, publisher: Publisher, wrong: str
) -> None:
    publisher.set_keys(Timestamp.type, [1, 2])
    publisher.publish(Root.type, Timestamp.type)
    document = json.loads(publisher.files["metadata/timestamp.json"])
    document["signatures"][0]["sig"] = wrong
    publisher.files["metadata/timestamp.json"] = json.dumps(document).encode()
    assert device.refresh(), device.said


def test_a_snapshot_that_would_pass_for_a_timestamp_is_none(device: Client, publisher: Publisher) -> None:
    publisher.set_keys(Snapshot.type, [101])  # the key of timestamp
    publisher.snapshot.meta = {"snapshot.json": MetaFile(1)}
    publisher.publish(Root.type, Snapshot.type)
    publisher.files["metadata/timestamp.json"] = publisher.files["metadata/2.snapshot.json"]
    assert not device.refresh()
    assert device.versions() == {"root": 2}
