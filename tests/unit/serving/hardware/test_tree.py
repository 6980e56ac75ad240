"""A reader that never leaves its root and never raises, whatever the tree holds."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.serving.hardware.settings import HardwareSettings
from gateway.serving.hardware.tree import Tree, grants
from tests.devices.build import Folder, Link, Node, build
from tests.simulators.constants import settings_with


def test_links_are_followed_inside_the_root_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    root = build(
        tmp_path / "root",
        {
            "/sys/real/name": "inside\n",
            "/sys/relative": Link("../sys/real"),
            "/sys/absolute": Link("/sys/real"),
            "/sys/chain": Link("absolute/name"),
            "/sys/escape": Link("../../../../../../secret"),
            "/sys/escape-absolute": Link(str(tmp_path / "secret")),
            "/sys/dangling": Link("nowhere"),
            "/sys/loop": Link("loop2"),
            "/sys/loop2": Link("loop"),
            "/sys/self": Link("self/deeper"),
        },
    )
    tree = Tree(root)
    assert tree.line("/sys/relative/name") == tree.line("/sys/absolute/name") == tree.line("/sys/chain") == "inside"
    assert tree.resolve("/sys/chain") == "/sys/real/name"
    for name in ("escape", "escape-absolute", "dangling", "loop", "self"):
        assert tree.resolve(f"/sys/{name}") is None
        assert tree.read_text(f"/sys/{name}") is None
        assert tree.names(f"/sys/{name}") == ()
    assert tree.read_text("/../secret") is None
    assert tree.link_name("/sys/dangling") == "nowhere"


def test_escaping_names_meet_what_the_root_itself_holds(tmp_path: Path) -> None:
    root = build(tmp_path / "root", {"/secret": "inside", "/sys/escape": Link("../../../../secret")})
    (tmp_path / "secret").write_text("outside")
    assert Tree(root).read_text("/sys/escape") == "inside"


def test_files_in_place_of_links_count_as_links_under_another_root(tmp_path: Path) -> None:
    entries = {"/sys/real/name": "inside\n", "/sys/link": Link("../sys/real"), "/sys/up/down/device": Link("../..")}
    tree = Tree(build(tmp_path / "root", entries, flat_links=True))
    assert tree.line("/sys/link/name") == "inside"
    assert tree.link_name("/sys/link") == "real"
    assert tree.resolve("/sys/up/down/device") == "/sys"


def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path) -> None:
    root = build(tmp_path / "root", {"/folder": Folder(), "/exact": "x" * 16, "/long": "x" * 17, "/empty": ""})
    os.mkfifo(root / "fifo")
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 30)
    tree = Tree(root, settings_with(HardwareSettings(), attribute_bytes=16))
    assert tree.read_text("/exact") == "x" * 16
    assert tree.read_text("/empty") == ""
    assert tree.line("/empty") is None
    for name in ("/folder", "/long", "/huge", "/fifo", "/absent", "/exact/below"):
        assert tree.read_text(name) is None


def test_a_file_whose_reading_fails_is_none() -> None:
    assert Tree(Path("/")).read_text("/proc/self/mem") is None  # EIO at offset 0, for root as well


def test_garbage_becomes_printable(tmp_path: Path) -> None:
    root = build(
        tmp_path / "root",
        {
            "/garbage": b"\xff\xfe\x00ab\x1b[31mc\n\nd",
            "/strings": b"one\x00\x00two \xff\x00",
            "/number": "0042\n",
            "/negative": "-5",
            "/words": "12 apples",
            "/hex": "0x8086\n",
            "/long": "y" * 300,
        },
    )
    tree = Tree(root)
    assert tree.line("/garbage") == "\ufffd\ufffd ab [31mc d"
    assert tree.strings("/strings") == ("one", "two \ufffd")
    assert (tree.integer("/number"), tree.integer("/negative"), tree.integer("/words")) == (42, -5, None)
    assert (tree.hexadecimal("/hex"), tree.hexadecimal("/words")) == ("8086", None)
    assert len(tree.line("/long") or "") == tree.settings.text_chars


def test_folders_list_a_bounded_number_of_printable_names(tmp_path: Path) -> None:
    root = build(tmp_path / "root", {f"/many/{index:02d}": "" for index in range(20)} | {"/odd/fine": "", "/file": ""})
    (root / "odd" / "new\nline").touch()
    (root / "odd" / os.fsdecode(b"\xff")).touch()
    tree = Tree(root, settings_with(HardwareSettings(), entries_max=7))
    assert len(tree.names("/many")) == 7
    assert tree.names("/odd") == ("fine",)
    assert tree.names("/file") == tree.names("/absent") == ()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o666, True), (0o660, True), (0o644, True), (0o440, True), (0o600, False), (0o400, False), (0o000, False)],
)
def test_permission_under_another_root_comes_from_mode_bits(tmp_path: Path, mode: int, expected: bool) -> None:
    tree = Tree(build(tmp_path / "root", {"/dev/node": Node(mode)}))
    assert tree.may_open("/dev/node") is expected


@pytest.mark.parametrize("kind", [stat.S_IFREG, stat.S_IFCHR])
def test_no_service_is_in_the_group_of_root_or_the_overflow_group(kind: int) -> None:
    groups = [993, 0, 65534]
    assert [grants(kind | 0o660, group) for group in groups] == [True, False, False]
    assert [grants(kind | 0o666, group) for group in groups] == [True] * 3


def test_a_file_that_nobody_may_read_is_there_all_the_same(tmp_path: Path) -> None:
    root = build(tmp_path / "root", {"/dev/node": "content"})
    (root / "dev/node").chmod(0)
    tree = Tree(root)
    assert tree.exists("/dev/node")
    assert not tree.may_open("/dev/node")


def test_a_real_node_under_another_root_needs_reading_and_writing() -> None:
    assert Tree(Path("/dev")).may_open("/null")


def test_permission_on_the_live_root_is_the_running_users() -> None:
    tree = Tree(Path("/"))
    assert tree.live
    assert tree.may_open("/dev/null")
    assert not tree.may_open("/dev/no-such-node")


def test_names_with_nuls_and_absurd_lengths_are_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert tree.read_text("/a\0b") is None
    assert tree.read_text("/" + "x" * 5000) is None
    assert tree.resolve("/") == "/"
