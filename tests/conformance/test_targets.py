"""TUF 5.6 and 5.7: the search through delegations, and what is downloaded."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import DelegatedRole, Root, Snapshot, TargetFile, Targets, Timestamp

from tests.conformance.conftest import Client
from tests.conformance.publisher import TOP, Publisher

Edge = tuple[str, str] | tuple[str, str, str]
"""Delegator, role, and what is special: a pattern of paths, or "!" where the search ends with this role."""
GRAPHS: dict[str, tuple[list[Edge], str]] = {
    "one": ([("targets", "A")], "A"),
    "two": ([("targets", "A"), ("targets", "B")], "AB"),
    "below the second": ([("targets", "A"), ("targets", "B"), ("B", "C")], "ABC"),
    "depth first": ([("targets", "A"), ("targets", "B"), ("A", "C"), ("A", "D")], "ACDB"),
    "three deep": ([("targets", "A"), ("targets", "B"), ("A", "C"), ("C", "D")], "ACDB"),
    "the end of a search": ([("targets", "A"), ("targets", "B"), ("A", "C", "!"), ("A", "D")], "AC"),
    "the end of a search, and below": ([("targets", "A"), ("targets", "B"), ("A", "C", "!"), ("C", "D")], "ACD"),
    "other paths": ([("targets", "A", "*.py"), ("targets", "B"), ("A", "C")], "B"),
    "other paths, deeper": ([("targets", "A"), ("targets", "B"), ("A", "C", "*.py"), ("C", "D")], "AB"),
    "a circle": ([("targets", "A"), ("targets", "B"), ("B", "C"), ("C", "D"), ("D", "B")], "ABCD"),
    "a role with two delegators": ([("targets", "A"), ("targets", "B"), ("B", "C"), ("A", "C")], "ACB"),
    "a role with two delegators, one for other paths": (
        [("targets", "A"), ("targets", "B"), ("B", "C"), ("A", "C", "*.py")],
        "ABC",
    ),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_delegations_are_searched_in_order_and_depth_first(
    device: Client, publisher: Publisher, graph: tuple[list[Edge], str]
) -> None:
    edges, visited = graph
    for delegator, role, *special in edges:
        pattern = next((what for what in special if what != "!"), "*")
        publisher.delegate(DelegatedRole(role, [], 1, "!" in special, [pattern]), delegator)
    publisher.refresh()
    assert not device.download("missing")
    assert publisher.asked_metadata()[4:] == [f"1.{role}" for role in visited]


@pytest.fixture
def tree(publisher: Publisher) -> Publisher:
    """Return targets → A (*.md), B (releases/*/*) → C (releases/x/*), D (releases/y/*.zip)."""
    publisher.delegate(DelegatedRole("A", [], 1, False, ["*.doc", "*.md"]))
    publisher.delegate(DelegatedRole("B", [], 1, False, ["releases/*/*"]))
    publisher.delegate(DelegatedRole("C", [], 1, False, ["releases/x/*"]), "B")
    publisher.delegate(DelegatedRole("D", [], 1, False, ["releases/y/*.zip"]), "B")
    for role, path in TREE_TARGETS:
        publisher.add(path, path.encode(), role)
    publisher.refresh()
    return publisher


TREE_TARGETS = [
    ("targets", "plain"),
    ("A", "README.md"),
    ("C", "releases/x/x_v1"),
    ("D", "releases/y/y_v1.zip"),
    ("D", "releases/z/z_v1.zip"),
    ("A", "deep/README.md"),
]
FOUND = [("plain", ""), ("README.md", "A"), ("releases/x/x_v1", "BC"), ("releases/y/y_v1.zip", "BD")]


@pytest.mark.parametrize(("path", "visited"), FOUND)
def test_a_target_is_found_in_the_role_that_may_sign_it(
    device: Client, tree: Publisher, path: str, visited: str
) -> None:
    assert device.download(path), device.said
    assert device.downloaded() == [path.encode()]
    assert tree.asked_metadata()[4:] == [f"1.{role}" for role in visited]


@pytest.mark.parametrize(("path", "visited"), [("releases/z/z_v1.zip", "B"), ("deep/README.md", "")])
def test_a_target_outside_what_was_delegated_does_not_count(
    device: Client, tree: Publisher, path: str, visited: str
) -> None:
    assert not device.download(path)
    assert device.downloaded() == []
    assert tree.asked_metadata()[4:] == [f"1.{role}" for role in visited]


@pytest.mark.parametrize("role", ["?", "#", "/role", "../role", "a b", "%2F", "ü"])
def test_role_names_are_quoted_and_never_leave_the_folder(device: Client, publisher: Publisher, role: str) -> None:
    publisher.delegate(DelegatedRole(role, [], 1, False, ["*"]))
    publisher.refresh()
    assert not device.download("missing")
    assert f"1.{quote(role, '')}" in publisher.asked_metadata()
    assert len(device.versions()) == len(TOP) + 1
    assert {path.name for path in device.trusted.parent.iterdir()} == {"metadata", "downloads", "initial_root.json"}


def test_succinct_bins_are_found_by_the_hash_of_the_path(device: Client, publisher: Publisher) -> None:
    publisher.delegate_bins(3, "bin")
    assert publisher.targets.delegations is not None
    bins = publisher.targets.delegations.succinct_roles
    assert bins is not None
    name = bins.get_role_for_target("some/file")
    publisher.add("some/file", b"binned", name)
    publisher.refresh()
    assert device.download("some/file"), device.said
    assert publisher.asked_metadata()[4:] == [f"1.{name}"]


@pytest.mark.parametrize(
    "fault", ["unsigned", "wrong key", "expired", "not in snapshot", "other version", "wrong hash"]
)
def test_a_delegated_role_that_is_not_right_ends_the_search(device: Client, publisher: Publisher, fault: str) -> None:
    role = publisher.delegate(DelegatedRole("A", [], 1, False, ["*"]))
    publisher.add("file", b"content", "A")
    if fault == "expired":
        role.expires = publisher.now - timedelta(days=1)
    if fault in {"unsigned", "wrong key"}:
        publisher.signers["A"] = [] if fault == "unsigned" else publisher.signers[Targets.type]
    publisher.stated = fault == "wrong hash"
    publisher.publish("A", Targets.type)
    if fault == "not in snapshot":
        del publisher.snapshot.meta["A.json"]
    if fault == "other version":
        publisher.files["metadata/2.A.json"] = publisher.files["metadata/1.A.json"]
        publisher.snapshot.meta["A.json"].version = 2
    if fault == "wrong hash":
        publisher.files["metadata/1.A.json"] += b"\n"
    publisher.publish(Snapshot.type, Timestamp.type)
    assert device.refresh(), device.said
    assert not device.download("file")
    assert "A" not in device.versions()
    assert device.downloaded() == []


def test_a_delegated_role_that_has_expired_meanwhile_is_not_used(device: Client, publisher: Publisher) -> None:
    publisher.delegate(DelegatedRole("A", [], 1, False, ["*"]), expires=publisher.now + timedelta(days=7))
    publisher.add("first", b"1", "A")
    publisher.add("second", b"2", "A")
    publisher.refresh()
    assert device.download("first"), device.said
    assert not device.download("second", at=publisher.now + timedelta(days=18))
    publisher.md["A"].signed.expires = publisher.now + timedelta(days=21)
    publisher.publish("A", Snapshot.type, Timestamp.type)
    assert device.download("second", at=publisher.now + timedelta(days=18)), device.said
    assert device.downloaded() == [b"1", b"2"]


@pytest.mark.parametrize("fault", ["wrong hash", "other version", "expired"])
def test_targets_that_are_not_what_snapshot_says_are_refused(device: Client, publisher: Publisher, fault: str) -> None:
    assert device.refresh()
    publisher.stated = True
    publisher.targets.expires = publisher.now + timedelta(days=-1 if fault == "expired" else 30)
    publisher.publish(Targets.type)
    if fault == "other version":
        publisher.files["metadata/2.targets.json"] = publisher.files["metadata/1.targets.json"]
        publisher.snapshot.meta["targets.json"].length = publisher.snapshot.meta["targets.json"].hashes = None
    publisher.publish(Snapshot.type, Timestamp.type)
    if fault == "wrong hash":
        publisher.files["metadata/2.targets.json"] += b"\n"
    assert not device.refresh()
    assert device.versions()["targets"] == 1


def test_a_download_refreshes_first(device: Client, publisher: Publisher) -> None:
    assert not device.download("nobody signs this")
    assert publisher.asked_metadata() == ["2.root", "timestamp", "1.snapshot", "1.targets"]
    assert device.versions() == {"root": 1, "timestamp": 1, "snapshot": 1, "targets": 1}


@pytest.mark.parametrize("path", ["file", "a/b/c/file.bin", "with space", "pro%20cent", "ü/ö", "a+b@c~d", "x:y"])
def test_a_target_is_downloaded_by_its_hash(device: Client, publisher: Publisher, path: str) -> None:
    publisher.add(path, b"content")
    publisher.refresh()
    assert device.download(path), device.said
    assert device.downloaded() == [b"content"]
    assert not list(device.downloads.glob(".tmp*"))


def test_what_is_here_already_is_not_fetched_again(device: Client, publisher: Publisher) -> None:
    publisher.add("file", b"content")
    publisher.refresh()
    assert device.download("file")
    publisher.requests.clear()
    assert device.download("file")
    assert [path for path in publisher.requests if path.startswith("targets/")] == []


@pytest.mark.parametrize("wrong", [b"CONTENT", b"content and more", b"cont", b""])
def test_other_bytes_than_were_signed_are_never_kept(device: Client, publisher: Publisher, wrong: bytes) -> None:
    publisher.add("file", b"content")
    publisher.refresh()
    place = publisher.target_place("file", publisher.targets.targets["file"])
    publisher.files[place] = wrong
    assert not device.download("file")
    assert device.downloaded() == []


def test_a_new_version_takes_the_place_of_the_old_one_and_a_forged_one_does_not(
    device: Client, publisher: Publisher
) -> None:
    for content in (b"one", b"two"):
        publisher.add("file", content)
        publisher.refresh()
        assert device.download("file"), device.said
        assert device.downloaded() == [content]
    publisher.targets.targets["file"] = TargetFile.from_data("file", b"three", ["sha256"])
    publisher.refresh()
    assert not device.download("file")
    assert device.downloaded() == [b"two"]


@pytest.mark.parametrize("algorithms", [["sha512"], ["sha256", "sha512"], ["sha512", "sha256"]])
def test_other_hashes_will_do(device: Client, publisher: Publisher, algorithms: list[str]) -> None:
    target = TargetFile.from_data("file", b"content", algorithms)
    publisher.targets.targets["file"] = target
    for value in target.hashes.values():
        publisher.files[f"targets/{value}.file"] = b"content"
    publisher.refresh()
    assert device.download("file"), device.said
    assert len([path for path in publisher.requests if path.startswith("targets/")]) == 1


def test_a_hash_that_nobody_knows_proves_nothing(device: Client, publisher: Publisher) -> None:
    target = TargetFile.from_data("file", b"content", ["sha256"])
    target.hashes = {"unknown": target.hashes["sha256"]}
    publisher.targets.targets["file"] = target
    publisher.files[f"targets/{target.hashes['unknown']}.file"] = b"content"
    publisher.refresh()
    assert not device.download("file")
    assert device.downloaded() == []


KINDS = {
    "rsassa-pss-sha256": CryptoSigner.generate_rsa,
    "rsa-pkcs1v15-sha256": lambda: CryptoSigner.generate_rsa(scheme="rsa-pkcs1v15-sha256"),
    "ecdsa-sha2-nistp256": CryptoSigner.generate_ecdsa,
    "ed25519": CryptoSigner.generate_ed25519,
}


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_every_kind_are_understood(client: Client, publisher: Publisher, kind: str) -> None:
    signer = KINDS[kind]()
    for role in TOP:
        for keyid in list(publisher.root.roles[role].keyids):
            publisher.root.revoke_key(keyid, role)
        publisher.root.add_key(signer.public_key, role)
        publisher.signers[role] = [signer]
    publisher.publish(Root.type, bump=False)
    publisher.refresh()
    assert client.init(publisher.files["metadata/1.root.json"])
    assert client.refresh(), client.said
    assert client.versions() == {"root": 1, "timestamp": 2, "snapshot": 2, "targets": 2}
