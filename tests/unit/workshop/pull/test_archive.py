"""Archives of releases: what is unpacked, and what hostile ones may not do."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.workshop.pull.archive import unpack
from gateway.workshop.pull.archive_bounds import ArchiveBudget, ArchiveError, member_path
from gateway.workshop.pull.settings import PullSettings

SETTINGS = PullSettings(bytes_limit=100_000, entries_limit=10, depth_limit=3, header_limit_bytes=2000)
FILES = {"1/manifest.toml": b"name", "1/a/model.onnx": b"x" * 5000}


def packed_tar(files: dict[str, bytes], *members: tarfile.TarInfo, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in members:
            tar.addfile(member)
    return buffer.getvalue()


def packed_zip(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return buffer.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def unpacked(folder: Path, content: bytes, suffix: str, limits: PullSettings = SETTINGS) -> dict[str, bytes]:
    archive, target = folder / "archive", folder / "target"
    archive.write_bytes(content)
    target.mkdir()
    try:
        unpack(archive, suffix, target, ArchiveBudget(limits))
    finally:
        inside = {path for path in folder.rglob("*") if path.is_relative_to(target)} | {archive}
        assert set(folder.rglob("*")) == inside
        assert not any(path.is_symlink() for path in inside)
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".tar", packed_tar(FILES, special("1", tarfile.DIRTYPE), special("./", tarfile.DIRTYPE))),
        (".tar.gz", packed_tar(FILES, mode="w:gz")),
        (".tgz", packed_tar(FILES, mode="w:gz")),
        (".zip", packed_zip({**FILES, "1/empty/": b""})),
        (".zip", packed_zip(FILES, zipfile.ZIP_STORED)),
    ],
)
def test_files_are_unpacked(tmp_path: Path, suffix: str, content: bytes) -> None:
    assert unpacked(tmp_path, content, suffix) == FILES
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "target").rglob("*") if path.is_file()}
    mask = os.umask(0)
    os.umask(mask)
    assert modes == {0o666 & ~mask}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\\..\\x", "a\nb", "x" * 256, "a/b/c/d/e"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    for suffix, content in ((".tar", packed_tar({name: b"x"})), (".zip", packed_zip({name: b"x"}))):
        folder = tmp_path / suffix
        folder.mkdir()
        with pytest.raises(ArchiveError):
            unpacked(folder, content, suffix)


@pytest.mark.parametrize(
    "member",
    [
        special("link", tarfile.SYMTYPE, "/etc/passwd"),
        special("link", tarfile.SYMTYPE, "model.onnx"),
        special("link", tarfile.LNKTYPE, "1/manifest.toml"),
        special("device", tarfile.CHRTYPE),
        special("device", tarfile.BLKTYPE),
        special("pipe", tarfile.FIFOTYPE),
        special("1/manifest.toml", tarfile.REGTYPE),
        special(".", tarfile.REGTYPE),
    ],
)
def test_links_devices_and_repetitions_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(ArchiveError, match=r"no plain file|twice"):
        unpacked(tmp_path, packed_tar(FILES, member), ".tar")


def linked(info: zipfile.ZipInfo) -> None:
    info.external_attr = (stat.S_IFLNK | 0o777) << 16


def encrypted(info: zipfile.ZipInfo) -> None:
    info.flag_bits |= 1


@pytest.mark.parametrize("spoil", [linked, encrypted])
def test_links_and_encrypted_files_in_a_zip_are_refused(
    tmp_path: Path, spoil: Callable[[zipfile.ZipInfo], None]
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("link", b"/etc/passwd")
        spoil(made.infolist()[0])
    with pytest.raises(ArchiveError):
        unpacked(tmp_path, buffer.getvalue(), ".zip")


def test_a_method_with_unbounded_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="use deflate"):
        unpacked(tmp_path, packed_zip(FILES, zipfile.ZIP_LZMA), ".zip")


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_a_bomb_ends_at_the_limit(tmp_path: Path, suffix: str) -> None:
    bomb = {"model.onnx": bytes(5_000_000)}
    content = packed_tar(bomb, mode="w:gz") if suffix == ".tar.gz" else packed_zip(bomb)
    assert len(content) < 10_000
    with pytest.raises(ArchiveError, match="100000 bytes unpacked"):
        unpacked(tmp_path, content, suffix)
    assert (tmp_path / "target" / "model.onnx").stat().st_size <= SETTINGS.bytes_limit


def test_a_bomb_of_padding_ends_at_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError):
        unpacked(
            tmp_path,
            gzip.compress(packed_tar({"a": b"x"})[:1024] + special("a" * 90, b"x").tobuf() * 100_000),
            ".tar.gz",
        )


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK])
def test_a_large_header_is_not_read(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 2**33
    with pytest.raises(ArchiveError, match="has a header of"):
        unpacked(tmp_path, header.tobuf(tarfile.GNU_FORMAT) + bytes(1024), ".tar")


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
def test_too_many_entries_are_refused(tmp_path: Path, suffix: str) -> None:
    files = {f"{number}": b"" for number in range(11)}
    with pytest.raises(ArchiveError, match="more than 10"):
        unpacked(tmp_path, packed_tar(files) if suffix == ".tar" else packed_zip(files), suffix)


def test_the_directory_of_a_zip_is_bounded(tmp_path: Path) -> None:
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 2**31, 0, 0)
    with pytest.raises(ArchiveError, match="lists more than"):
        unpacked(tmp_path, end, ".zip")


def test_a_zip64_record_is_refused(tmp_path: Path) -> None:
    content = packed_zip(FILES)
    spoilt = content[:-22] + struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1) + content[-22:]
    with pytest.raises(ArchiveError, match="zip64"):
        unpacked(tmp_path, spoilt, ".zip")


@settings(max_examples=60)
@given(data=st.data(), suffix=st.sampled_from([".tar", ".tar.gz", ".zip"]))
def test_damaged_archives_are_refused_or_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, suffix: str
) -> None:
    sound = {".tar": packed_tar(FILES), ".tar.gz": packed_tar(FILES, mode="w:gz"), ".zip": packed_zip(FILES)}[suffix]
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with suppress(ArchiveError):
        unpacked(tmp_path_factory.mktemp("archive"), bytes(content[:cut]), suffix)


@given(st.text())
def test_any_name_is_below_the_target_or_refused(name: str) -> None:
    try:
        path = member_path(name, 3)
    except ArchiveError:
        return
    assert not path.is_absolute()
    assert ".." not in path.parts
