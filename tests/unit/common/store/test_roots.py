"""Roots as the update agent keeps them: in their order, bounded, whatever else lies in their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.store.errors import StoreError
from gateway.common.store.roots import ROOT_HISTORY, read_roots


def test_roots_come_in_the_order_of_their_versions(tmp_path: Path) -> None:
    assert read_roots(tmp_path, 10, 9) == []
    folder = tmp_path / ROOT_HISTORY
    folder.mkdir(parents=True)
    for version in (10, 2, 1):
        (folder / f"{version}.root.json").write_bytes(b"%d" % version)
    for stranger in ("x.root.json", "01.root.json", ".tmp-3.root.json", "4.root.json.bak"):
        (folder / stranger).write_bytes(b"no")
    assert read_roots(tmp_path, 10, 9) == [b"1", b"2", b"10"]
    assert read_roots(tmp_path, 10, 2) == [b"1", b"2"]


def test_of_a_root_that_is_too_large_a_byte_too_much_is_read(tmp_path: Path) -> None:
    (tmp_path / ROOT_HISTORY).mkdir(parents=True)
    (tmp_path / ROOT_HISTORY / "1.root.json").write_bytes(b"x" * 99)
    assert read_roots(tmp_path, 10, 9) == [b"x" * 11]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / ROOT_HISTORY / "1.root.json").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"1\.root\.json"):
        read_roots(tmp_path, 10, 9)
