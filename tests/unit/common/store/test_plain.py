"""Anything in a file's place that is no file ends at once, wherever the daemon reads its store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.common.store.active import read_active
from gateway.common.store.errors import StoreError
from gateway.common.store.plain import file_digest, open_plain
from gateway.common.store.roots import read_bounded

PLACES: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a loop of links": lambda file: file.symlink_to(file),
}
READERS: dict[str, Callable[[Path], object]] = {
    "open_plain": open_plain,
    "file_digest": file_digest,
    "read_active": read_active,
    "read_bounded": lambda file: read_bounded(file, 10),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_plain_file_is_not_waited_on(tmp_path: Path, place: str, reader: str) -> None:
    PLACES[place](tmp_path / "file")
    with pytest.raises((OSError, StoreError)):
        READERS[reader](tmp_path / "file")


def test_links_are_followed_to_plain_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_plain(tmp_path / "link") as stream:
        assert stream.read() == b"content"
