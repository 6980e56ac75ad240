"""Rules of this product's TUF client that the official suite does not check.

The official suite is tuf-conformance 2.4.0 (github.com/theupdateframework/tuf-conformance), which passes in full:
`pytest tuf_conformance --entrypoint …/tests/conformance/tuf-client`. The tests of `SignedRepository` are in
tests/unit/agent.
"""

from __future__ import annotations

import pytest
from tuf.api.metadata import DelegatedRole, Root, Snapshot, Targets, Timestamp

from tests.conformance.conftest import Client
from tests.conformance.publisher import Publisher


def test_every_root_between_is_followed_and_kept(device: Client, publisher: Publisher) -> None:
    for _ in range(3):
        publisher.publish(Root.type)
    assert device.refresh(), device.said
    assert publisher.asked_metadata()[:4] == ["2.root", "3.root", "4.root", "5.root"]
    history = {file.name: file.read_bytes() for file in (device.trusted / "root_history").iterdir()}
    assert history == {f"{n}.root.json": publisher.files[f"metadata/{n}.root.json"] for n in (1, 2, 3, 4)}
    publisher.requests.clear()
    assert device.refresh()
    assert publisher.asked_metadata() == ["5.root", "timestamp"]


def test_root_json_leads_to_the_newest_root_whenever_it_is_looked_at(device: Client, publisher: Publisher) -> None:
    publisher.publish(Root.type)
    assert device.refresh()
    publisher.statuses["metadata/3.root.json"] = 500
    assert not device.refresh()
    assert device.content("root") == publisher.files["metadata/2.root.json"]
    assert (device.trusted / "root.json").is_symlink()


@pytest.mark.parametrize(("role", "padding"), [(Root.type, 600_000), (Timestamp.type, 20_000)])
def test_a_role_that_is_too_large_is_not_read_to_its_end(
    device: Client, publisher: Publisher, role: str, padding: int
) -> None:
    publisher.md[role].signed.unrecognized_fields["padding"] = "x" * padding
    publisher.publish(role)
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


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"\xff", b'{"signed": {}, "signatures": []}', b"9" * 9000]
)
def test_rubbish_is_refused(device: Client, publisher: Publisher, content: bytes) -> None:
    publisher.files["metadata/timestamp.json"] = content
    assert not device.refresh()
    assert device.versions() == {"root": 1}


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


@pytest.mark.parametrize("fault", ["unsigned", "wrong key", "other version", "wrong hash"])
def test_a_delegated_role_that_is_not_right_ends_the_search(device: Client, publisher: Publisher, fault: str) -> None:
    publisher.delegate(DelegatedRole("A", [], 1, False, ["*"]))
    publisher.add("file", b"content", "A")
    if fault in {"unsigned", "wrong key"}:
        publisher.signers["A"] = [] if fault == "unsigned" else publisher.signers[Targets.type]
    publisher.stated = fault == "wrong hash"
    publisher.publish("A", Targets.type)
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


@pytest.mark.parametrize("path", ["file", "a/b/c/file.bin", "with space", "pro%20cent", "ü/ö", "a+b@c~d", "x:y"])
def test_a_target_is_downloaded_by_its_hash(device: Client, publisher: Publisher, path: str) -> None:
    publisher.add(path, b"content")
    publisher.refresh()
    assert device.download(path), device.said
    assert device.downloaded() == [b"content"]
    assert not list(device.downloads.glob(".tmp*"))


@pytest.mark.parametrize("wrong", [b"CONTENT", b"content and more", b"cont", b""])
def test_other_bytes_than_were_signed_are_never_kept(device: Client, publisher: Publisher, wrong: bytes) -> None:
    publisher.add("file", b"content")
    publisher.refresh()
    publisher.files[publisher.target_place("file", publisher.targets.targets["file"])] = wrong
    assert not device.download("file")
    assert device.downloaded() == []
