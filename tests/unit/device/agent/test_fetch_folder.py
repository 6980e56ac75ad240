"""A repository on a stick: plain files inside it, and nothing else however it is put there."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from gateway.common.store.blobs import LocalBlobs
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import NOT_FOUND, FetchError
from gateway.common.transfer.web import WebSource
from gateway.device.agent.fetch.fetch import blob_path, fetch_blob
from gateway.device.agent.fetch.folder import FolderSource, open_source

CONTENT = b"content" * 30_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def stick(tmp_path: Path) -> Path:
    folder = tmp_path / "stick"
    file = folder / blob_path(DIGEST)
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    (folder / "metadata").mkdir()
    (folder / "metadata" / "timestamp.json").write_bytes(b"{}")
    return folder


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    store = LocalBlobs(tmp_path / "blobs")
    store.prepare()
    return store


def test_a_file_is_read_and_is_never_said_to_be_unchanged(stick: Path) -> None:
    found = FolderSource(stick).read("metadata/timestamp.json", 2, etag="x", query={"nonce": "1"})
    assert (found.content, found.etag) == (b"{}", "")


def test_a_blob_is_copied_and_gone_on_with(stick: Path, blobs: LocalBlobs) -> None:
    path = blobs.path(DIGEST)
    path.with_name(f"{DIGEST}.part").write_bytes(CONTENT[:1000])
    told: list[int] = []
    assert fetch_blob(FolderSource(stick), blobs, DIGEST, len(CONTENT), lambda here, _: told.append(here)) == path
    assert path.read_bytes() == CONTENT
    assert told[0] == 1000 + FetchSettings().piece_bytes


@pytest.mark.parametrize("path", ["metadata/2.root.json", "nothing/here", "metadata/timestamp.json2"])
def test_what_is_not_there_is_said_as_a_server_says_it(stick: Path, path: str) -> None:
    with pytest.raises(FetchError, match="has no") as caught:
        FolderSource(stick).read(path, 100)
    assert (caught.value.status, caught.value.final) == (NOT_FOUND, True)


BAD = [
    "",
    ".",
    "..",
    "../stick/metadata/timestamp.json",
    "metadata/../../x",
    "/etc/passwd",
    "metadata//timestamp.json",
    "a\0b",
]


@pytest.mark.parametrize("path", BAD)
def test_paths_stay_inside(stick: Path, path: str) -> None:
    with pytest.raises(FetchError, match="no path inside"):
        FolderSource(stick).read(path, 100)


def make(kind: str, file: Path) -> None:
    if kind == "link":
        file.symlink_to("timestamp.json")
    elif kind == "link outside":
        file.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(file))


@pytest.mark.parametrize("kind", ["link", "link outside", "pipe", "folder", "device", "socket"])
def test_only_plain_files_are_read(stick: Path, kind: str) -> None:
    make(kind, stick / "metadata" / "odd.json")
    with pytest.raises(FetchError, match="copy the repository again") as caught:
        FolderSource(stick).read("metadata/odd.json", 10_000)
    assert caught.value.final


def test_folders_that_are_links_are_not_followed(stick: Path) -> None:
    (stick / "targets").symlink_to("metadata")
    with pytest.raises(FetchError, match="cannot be used"):
        FolderSource(stick).read("targets/timestamp.json", 100)


def test_the_folder_itself_may_be_reached_by_a_link(stick: Path, tmp_path: Path) -> None:
    (tmp_path / "usb").symlink_to(stick)
    assert FolderSource(tmp_path / "usb").read("metadata/timestamp.json", 100).content == b"{}"


def test_a_file_beyond_the_limit_is_refused(stick: Path) -> None:
    with pytest.raises(FetchError, match="at most 1 are read"):
        FolderSource(stick).read("metadata/timestamp.json", 1)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b""])
def test_a_blob_of_another_size_is_refused(stick: Path, blobs: LocalBlobs, content: bytes) -> None:
    (stick / blob_path(DIGEST)).write_bytes(content)
    with pytest.raises(FetchError, match=f"{len(CONTENT)} were signed"):
        fetch_blob(FolderSource(stick), blobs, DIGEST, len(CONTENT))


def test_a_blob_of_other_bytes_is_refused_and_dropped(stick: Path, blobs: LocalBlobs) -> None:
    (stick / blob_path(DIGEST)).write_bytes(bytes(len(CONTENT)))
    with pytest.raises(FetchError, match="digest differs"):
        fetch_blob(FolderSource(stick), blobs, DIGEST, len(CONTENT))
    assert list(blobs.path(DIGEST).parent.iterdir()) == []


def test_a_stick_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="has no"):
        FolderSource(tmp_path / "gone").read("metadata/timestamp.json", 100)


def test_where_a_repository_is_says_what_reads_it(stick: Path, tmp_path: Path) -> None:
    spaced = tmp_path / "a stick"
    stick.rename(spaced)
    for where in (str(spaced), f"file://{spaced}", spaced.as_uri()):
        source = open_source(where, ConnectionPool(FetchSettings()))
        assert source.read("metadata/timestamp.json", 2).content == b"{}"
        assert source.name == str(spaced)
    assert isinstance(open_source("https://example.org/fleet", ConnectionPool(FetchSettings())), WebSource)
