"""Archives of releases, unpacked with bounds: only plain files and folders, only below the target folder.

Names, types and sizes in an archive are hostile input. Modes and owners in it are ignored. Links are refused: a release
has none.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from gateway.common.files.durable import make_folder
from gateway.common.store.errors import StoreError, store_errors
from gateway.workshop.pull.archive_bounds import ArchiveBudget, ArchiveError, check_central_directory, member_path
from gateway.workshop.pull.settings import PullSettings

PIECE_BYTES = 1_048_576
FILE_MODE = 0o666
"""Mode of unpacked files, less what the umask takes."""
_ZIP_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Methods with bounded memory. The dictionaries of others may have gigabytes."""
_ENCRYPTED = 0x1
DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError),
    *(ValueError, LookupError, ArithmeticError, RuntimeError),
)
"""What the standard library raises for damaged archives."""


def unpack(archive: Path, suffix: str, target: Path, budget: ArchiveBudget) -> None:
    """Unpack an archive of that suffix into `target`. Raise ArchiveError, SpaceError, StoreError."""
    with archive_errors(), archive.open("rb") as file:
        if suffix == ".zip":
            _unpack_zip(file, target, budget)
        elif suffix == ".tar":
            _unpack_tar(file, target, budget)
        else:
            with gzip.open(file) as unzipped:
                _unpack_tar(unzipped, target, budget)


@contextmanager
def archive_errors() -> Iterator[None]:
    """Convert what damaged archives raise to ArchiveError."""
    try:
        yield
    except DAMAGE as error:
        raise ArchiveError(
            f"is damaged, or no archive of this type ({error!s:.200}); pack and publish it again"
        ) from error


def _unpack_tar(stream: IO[bytes] | gzip.GzipFile, target: Path, budget: ArchiveBudget) -> None:
    limited = _LimitedReader(stream, budget)
    kind = bounded_member(budget.settings)
    with tarfile.open(fileobj=limited, mode="r|", tarinfo=kind, errorlevel=2) as tar:
        for member in tar:
            path = member_path(member.name, budget.settings.depth_limit)
            budget.entry()
            if member.isdir():
                _make_folder(target / path)
            elif member.isreg() and not member.issparse() and path.parts:
                content = tar.extractfile(member)
                _write(content or io.BytesIO(), target / path, budget)
            else:
                raise ArchiveError(
                    f"holds {member.name!r:.150}, which is no plain file; pack copies (tar --dereference)"
                )


def _unpack_zip(file: BinaryIO, target: Path, budget: ArchiveBudget) -> None:
    check_central_directory(file, budget.settings)
    with zipfile.ZipFile(file) as packed:
        for member in packed.infolist():
            path = member_path(member.filename, budget.settings.depth_limit)
            budget.entry()
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                _make_folder(target / path)
            elif kind not in {0, stat.S_IFREG} or not path.parts:
                raise ArchiveError(f"holds {member.filename!r:.150}, which is no plain file; pack copies of files")
            elif member.flag_bits & _ENCRYPTED or member.compress_type not in _ZIP_METHODS:
                raise ArchiveError(f"holds {member.filename!r:.150} encrypted or packed by a rare method; use deflate")
            else:
                with packed.open(member) as content:
                    _write(content, target / path, budget)


def _make_folder(folder: Path) -> None:
    with named_once(folder), store_errors(folder):
        make_folder(folder, None)


@contextmanager
def named_once(path: Path) -> Iterator[None]:
    """Convert the errors of a name that is there already, as a file or a folder, to ArchiveError."""
    try:
        yield
    except StoreError as error:
        if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
            raise ArchiveError(f"holds {path.name!r:.150} twice; pack the release's folder again") from error
        raise


def _write(content: IO[bytes], file: Path, budget: ArchiveBudget) -> None:
    """Write one file durably; it must not exist."""
    _make_folder(file.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with named_once(file), store_errors(file):
        descriptor = os.open(file, flags, FILE_MODE)
    with os.fdopen(descriptor, "wb", buffering=0) as written:
        while piece := content.read(PIECE_BYTES):
            budget.take(len(piece))
            with store_errors(file):
                _write_all(written.fileno(), piece)
        with store_errors(file):
            os.fsync(written.fileno())


def _write_all(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class _LimitedReader(io.RawIOBase):
    """Reader of a tar that ends with ArchiveError beyond its limit: headers and padding count as well."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, budget: ArchiveBudget) -> None:
        self._stream, self._budget = stream, budget
        self._left_bytes = budget.tar_bytes()

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(min(size, PIECE_BYTES) if size >= 0 else PIECE_BYTES)
        self._left_bytes -= len(content)
        if self._left_bytes < 0:
            raise self._budget.exceeded()
        return content


def bounded_member(settings: PullSettings) -> type[tarfile.TarInfo]:
    """Return a kind of member whose extended headers, which tarfile reads into memory, have a limit."""

    class BoundedMember(tarfile.TarInfo):
        def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
            if self.type not in tarfile.REGULAR_TYPES and self.size > settings.header_limit_bytes:
                raise ArchiveError(f"has a header of {self.size} bytes; at most {settings.header_limit_bytes} are read")
            found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
            return found

    return BoundedMember
