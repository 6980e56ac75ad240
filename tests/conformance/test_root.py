"""TUF 5.2 and 5.3: the pinned root, and the chain of roots that leads on from it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from tuf.api.metadata import Root, Snapshot, Timestamp

from tests.conformance.conftest import Client
from tests.conformance.publisher import Publisher, key

Steps = list[tuple[list[int], int, list[int]]]
"""Versions of root: its keys, its threshold, who signs."""
FOLLOWED: dict[str, Steps] = {
    "another key, signed by both": [([1], 1, [1]), ([2], 1, [2, 1]), ([2], 1, [2])],
    "signatures that nobody asked for": [([1], 1, [3, 1, 4]), ([2], 1, [3, 2, 1, 4]), ([2], 1, [3, 2, 4])],
    "other three of five sign each time": [([0, 1, 2, 3, 4], 3, sigs) for sigs in ([0, 2, 4], [0, 4, 1], [0, 1, 3])],
    "one of five is replaced": [([0, 1, 2, 3, 4], 3, [0, 2, 4]), ([0, 1, 3, 4, 5], 3, [0, 4, 1])],
    "all five are replaced": [
        ([0, 1, 2, 3, 4], 3, [0, 2, 4]),
        ([5, 6, 7, 8, 9], 3, [0, 2, 4, 5, 6, 7]),
        ([5, 6, 7, 8, 9], 3, [5, 6, 7]),
    ],
    "the threshold rises": [([1, 2, 3], 1, [1]), ([1, 2, 3], 2, [1, 2])],
    "the threshold falls": [([1, 2, 3], 2, [1, 2]), ([1, 2, 3], 1, [1, 2]), ([1, 2, 3], 1, [1])],
    "a key comes and the threshold rises": [([1], 1, [1]), ([1, 2], 2, [1, 2])],
}
REFUSED: dict[str, Steps] = {
    "not signed with the old key": [([1], 1, [1]), ([2], 1, [2, 3, 4])],
    "not signed with the new key": [([1], 1, [1]), ([2], 1, [1, 3, 4])],
    "too few of the new keys": [([0, 1, 2, 3, 4], 3, [0, 2, 4]), ([0, 1, 3, 4, 5], 3, [0, 2, 4])],
    "too few of the old keys": [([0, 1, 2, 3, 4], 3, [0, 2, 4]), ([0, 1, 3, 4, 5], 3, [0, 4, 5])],
    "below the risen threshold": [([1, 2, 3], 1, [1]), ([1, 2, 3], 2, [2])],
    "below the old, higher threshold": [([1, 2, 3], 2, [1, 2]), ([1, 2, 3], 1, [1])],
}


def roots(publisher: Publisher, steps: Steps) -> list[bytes]:
    """Publish them in order, from version 1 on."""
    publisher.root.version = 0
    for keys, threshold, sigs in steps:
        publisher.set_keys(Root.type, keys, threshold=threshold, signed_by=sigs)
        publisher.publish(Root.type)
    return [publisher.files[f"metadata/{number + 1}.root.json"] for number in range(len(steps))]


@pytest.mark.parametrize("steps", FOLLOWED.values(), ids=FOLLOWED)
def test_roots_that_both_the_old_and_the_new_keys_sign_are_followed(
    client: Client, publisher: Publisher, steps: Steps
) -> None:
    published = roots(publisher, steps)
    assert client.init(published[0])
    assert client.refresh(), client.said
    assert client.content("root") == published[-1]


@pytest.mark.parametrize("steps", REFUSED.values(), ids=REFUSED)
def test_roots_that_too_few_signed_end_the_refresh(client: Client, publisher: Publisher, steps: Steps) -> None:
    published = roots(publisher, steps)
    assert client.init(published[0])
    assert not client.refresh()
    assert client.content("root") == published[-2]
    assert client.versions() == {"root": len(steps) - 1}


def test_a_first_refresh_asks_for_each_role_once_and_in_order(device: Client, publisher: Publisher) -> None:
    assert device.refresh(), device.said
    assert publisher.asked_metadata() == ["2.root", "timestamp", "1.snapshot", "1.targets"]
    assert device.versions() == {"root": 1, "timestamp": 1, "snapshot": 1, "targets": 1}


def test_a_second_refresh_asks_for_what_may_be_new_alone(device: Client, publisher: Publisher) -> None:
    assert device.refresh()
    publisher.requests.clear()
    assert device.refresh()
    assert publisher.asked_metadata() == ["2.root", "timestamp"]


def damaged(content: bytes, change: str) -> bytes:
    document: dict[str, Any] = json.loads(content)
    if change == "no version":
        del document["signed"]["version"]
    elif change == "another signature":
        document["signatures"][0]["sig"] = "00" * 64
    elif change == "no signature":
        document["signatures"] = []
    else:
        document["signed"]["_type"] = "timestamp"
    return json.dumps(document).encode()


@pytest.mark.parametrize("change", ["no version", "another signature", "no signature", "another type"])
def test_a_pinned_root_that_is_none_is_never_used(client: Client, publisher: Publisher, change: str) -> None:
    client.init(damaged(publisher.files["metadata/1.root.json"], change))
    assert not client.refresh()
    assert publisher.requests == []


def test_every_root_between_is_followed_and_kept(device: Client, publisher: Publisher) -> None:
    for _ in range(3):
        publisher.publish(Root.type)
    assert device.refresh(), device.said
    assert publisher.asked_metadata()[:4] == ["2.root", "3.root", "4.root", "5.root"]
    history = {file.name: file.read_bytes() for file in (device.trusted / "root_history").iterdir()}
    assert history == {f"{n}.root.json": publisher.files[f"metadata/{n}.root.json"] for n in (1, 2, 3, 4)}


def test_roots_that_are_kept_are_not_asked_for_again(device: Client, publisher: Publisher) -> None:
    publisher.publish(Root.type)
    assert device.refresh()
    publisher.requests.clear()
    assert device.refresh()
    assert publisher.asked_metadata() == ["3.root", "timestamp"]


def test_a_root_beyond_a_gap_is_not_seen(device: Client, publisher: Publisher) -> None:
    publisher.publish(Root.type)
    publisher.publish(Root.type)
    del publisher.files["metadata/2.root.json"]
    assert device.refresh(), device.said
    assert device.versions()["root"] == 1


@pytest.mark.parametrize("version", [1, 3])
def test_a_root_with_another_version_than_its_name_is_refused(
    device: Client, publisher: Publisher, version: int
) -> None:
    publisher.root.version = version
    publisher.publish(Root.type, bump=False)
    publisher.files["metadata/2.root.json"] = publisher.files[f"metadata/{version}.root.json"]
    assert not device.refresh()
    assert device.versions() == {"root": 1}


def test_another_role_in_the_place_of_root_is_refused(device: Client, publisher: Publisher) -> None:
    publisher.files["metadata/2.root.json"] = publisher.files["metadata/timestamp.json"]
    assert not device.refresh()
    assert device.versions() == {"root": 1}


def test_an_expired_root_is_kept_and_ends_the_refresh(device: Client, publisher: Publisher) -> None:
    assert device.refresh()
    publisher.root.expires = publisher.now - timedelta(days=1)
    publisher.publish(Root.type)
    publisher.refresh()
    assert not device.refresh()
    assert device.versions() == {"root": 2, "timestamp": 1, "snapshot": 1, "targets": 1}


def test_an_expired_root_on_the_way_to_a_fresh_one_is_no_obstacle(device: Client, publisher: Publisher) -> None:
    fresh = publisher.root.expires
    publisher.root.expires = publisher.now - timedelta(days=1)
    publisher.publish(Root.type)
    publisher.root.expires = fresh
    publisher.publish(Root.type)
    assert device.refresh(), device.said
    assert device.versions()["root"] == 3


def test_a_pinned_root_that_has_expired_leads_to_a_fresh_one(client: Client, publisher: Publisher) -> None:
    fresh = publisher.root.expires
    publisher.root.expires = publisher.now - timedelta(days=400)
    publisher.publish(Root.type, bump=False)
    pinned = publisher.files["metadata/1.root.json"]
    publisher.root.expires = fresh
    publisher.publish(Root.type)
    assert client.init(pinned)
    assert client.refresh(), client.said
    assert client.versions()["root"] == 2


def test_a_root_that_is_too_large_is_not_read_to_its_end(device: Client, publisher: Publisher) -> None:
    publisher.root.unrecognized_fields["padding"] = "x" * 600_000
    publisher.publish(Root.type)
    assert not device.refresh()
    assert device.versions() == {"root": 1}


def test_a_server_that_forbids_what_it_lacks_ends_the_chain_too(device: Client, publisher: Publisher) -> None:
    publisher.statuses["metadata/2.root.json"] = 403
    assert device.refresh(), device.said


def test_a_server_in_trouble_does_not_end_the_chain(device: Client, publisher: Publisher) -> None:
    publisher.publish(Root.type)
    publisher.statuses["metadata/2.root.json"] = 503
    assert not device.refresh()
    assert device.versions() == {"root": 1}


def test_fields_that_nobody_knows_are_signed_and_kept(device: Client, publisher: Publisher) -> None:
    publisher.root.unrecognized_fields["colour"] = {"of": ["sky", 1]}
    publisher.root.roles[Root.type].unrecognized_fields["note"] = "x"
    publisher.root.keys[key(100).public_key.keyid].unrecognized_fields["keyid_hash_algorithms"] = ["md5"]
    publisher.publish(Root.type)
    assert device.refresh(), device.said
    assert device.content("root") == publisher.files["metadata/2.root.json"]


def test_root_json_leads_to_the_newest_root_whenever_it_is_looked_at(device: Client, publisher: Publisher) -> None:
    publisher.publish(Root.type)
    assert device.refresh()
    publisher.statuses["metadata/3.root.json"] = 500
    assert not device.refresh()
    assert device.content("root") == publisher.files["metadata/2.root.json"]
    assert (device.trusted / "root.json").is_symlink()


def test_keys_of_other_roles_come_from_the_newest_root(device: Client, publisher: Publisher) -> None:
    assert device.refresh()
    publisher.set_keys(Timestamp.type, [11])
    publisher.set_keys(Snapshot.type, [12])
    publisher.publish(Root.type)
    assert not device.refresh(), "timestamp is still signed by the key that was taken away"
    publisher.refresh()
    assert device.refresh(), device.said
    assert device.versions() == {"root": 2, "timestamp": 2, "snapshot": 2, "targets": 2}
