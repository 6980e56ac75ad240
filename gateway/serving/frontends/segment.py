"""One caller's shared memory: opened without trust, mapped to be read, written through a descriptor.

`Segment` is POSIX shared memory, opened by name. `SealedSegment` is a memfd that a caller passed.

It does not use `multiprocessing.shared_memory`: on Python 3.11 its resource tracker deletes the caller's segment when
this process exits.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import weakref
from pathlib import Path

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Raw, aligned_memory

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - location of shm_open(3)'s segments on Linux
STAT_BLOCK_BYTES = 512
"""Unit of st_blocks (inode(7))."""
F_SEAL_FUTURE_WRITE = 0x10
"""Absent from Python's `fcntl` (linux/fcntl.h)."""

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_REASONS = {
    errno.ENOENT: "there is no such segment",
    errno.EACCES: "this gateway's user may not open it; give the segment to its group and set the mode to 0660",
    errno.ELOOP: "it is a symbolic link",
    errno.ENXIO: "it is no segment",
    errno.EISDIR: "it is no segment",
}
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


class Segment:
    """Part of a segment: `byte_size` bytes from `offset` on.

    Mapping and descriptors live as long as this object, and the mapping as long as any view of it: the data of a
    request in flight stays in place.
    """

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_identity",
        "_path",
        "_region",
        "_view",
        "_writer",
        "byte_size",
        "offset",
    )
    sealed = False
    """True if it can never become smaller, so that reading it in place cannot end this process."""

    def __init__(self, region: str, path: Path, offset: int, byte_size: int, uid: int | None = None) -> None:
        """Open and map it read-only. `region`: its name for the caller. `uid`: its required owner (None, root: any).

        Raises RequestError: INVALID, DENIED, or OVERLOADED if this process has no descriptor or memory left.
        """
        self._region, self._path, self.offset, self.byte_size = region, path, offset, byte_size
        self._writer: int | None = None
        self._descriptor, found = self._open(os.O_RDONLY)
        self._identity = (found.st_dev, found.st_ino)
        if uid and found.st_uid != uid:
            raise _cannot_open(path, f"it belongs to user {found.st_uid}, and you are user {uid}", Fault.DENIED)
        self._map(found)

    def _map(self, found: os.stat_result) -> None:
        offset, byte_size, path = self.offset, self.byte_size, self._path
        if offset + byte_size > found.st_size:
            raise invalid(
                f"failed to register shared memory region '{self._region:.200}': invalid args: {byte_size} bytes from "
                f"{offset} on do not lie within the {found.st_size} bytes of '/{path.name}'"
            )
        lead = offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = mmap.mmap(
                self._descriptor, lead + byte_size, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset - lead
            )
        except (OSError, ValueError) as error:  # ValueError: truncated in the meantime
            raise _cannot_open(path, str(error), Fault.OVERLOADED) from None
        self._view = memoryview(mapping)[lead:]

    @property
    def linked(self) -> bool:
        """Return True if its name still refers to it; no process can open one that was unlinked or replaced."""
        return os.fstat(self._descriptor).st_nlink > 0

    def view(self, offset: int, byte_size: int) -> memoryview:
        """Return bytes of it in place, read-only; a copy if pages are missing.

        A read in place would have to create them: on a full /dev/shm that ends in SIGBUS. Raises RequestError INVALID
        if the bytes are not within it (any more).
        """
        found = self.check(offset, byte_size)
        if found.st_blocks * STAT_BLOCK_BYTES < found.st_size and self._sparse(offset, byte_size):
            return self.copy(offset, byte_size)
        return self._view[offset : offset + byte_size]

    def copy(self, offset: int, byte_size: int) -> memoryview:
        """Return a private copy, read through the descriptor: changes of the segment by the caller cannot affect it."""
        self.check(offset, byte_size)
        content = aligned_memory(byte_size)  # the kernel copies to cache lines faster
        size = os.preadv(self._descriptor, [content], self.offset + offset)
        if size != byte_size:
            raise self._truncated(offset, byte_size, size)
        return content.toreadonly()

    def writer(self) -> int:
        """Return the descriptor for writing, opened at its first use.

        Raises RequestError INVALID if the segment may not be written, or another has taken its name.
        """
        if self._writer is None:
            writer, found = self._open(os.O_RDWR)
            if (found.st_dev, found.st_ino) != self._identity:
                raise _cannot_open(self._path, "another segment has taken its name; register it again")
            self._writer = writer
        return self._writer

    def write(self, offset: int, content: Raw) -> None:
        """Write `content` at `offset`. Raises RequestError INVALID if it was truncated, TOO_LARGE if /dev/shm is full.

        It uses no mapping: there a full /dev/shm would end the process (SIGBUS), here it is an error.
        """
        self.check(offset, len(content))
        try:
            written = os.pwrite(self.writer(), content, self.offset + offset)
        except OSError as error:
            raise _cannot_write(self._path, error.strerror or str(error)) from None
        if written != len(content):
            raise _cannot_write(self._path, f"only {written} of {len(content)} bytes fitted")

    def _open(self, access: int) -> tuple[int, os.stat_result]:
        try:
            descriptor = os.open(self._path, access | _OPEN)
        except OSError as error:
            fault = Fault.OVERLOADED if error.errno in _EXHAUSTED else Fault.INVALID
            reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
            raise _cannot_open(self._path, reason, fault) from None
        weakref.finalize(self, os.close, descriptor)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _cannot_open(self._path, "it is no segment")
        return descriptor, found

    def check(self, offset: int, byte_size: int) -> os.stat_result:
        """Return the file's status. Raises RequestError INVALID if these bytes are outside it, or it was truncated."""
        if offset < 0 or byte_size < 0 or offset > self.byte_size - byte_size:
            raise invalid(
                f"Invalid offset + byte size for shared memory region: '{self._region:.200}': {byte_size} bytes from "
                f"{offset} on do not lie within its {self.byte_size} bytes"
            )
        found = os.fstat(self._descriptor)
        if found.st_size < self.offset + offset + byte_size:
            raise self._truncated(offset, byte_size, max(0, found.st_size - self.offset - offset))
        return found

    def _sparse(self, offset: int, byte_size: int) -> bool:
        start = self.offset + offset
        try:
            return os.lseek(self._descriptor, start, os.SEEK_HOLE) < start + byte_size
        except OSError:  # truncated in the meantime: reading a copy reports it
            return True

    def _truncated(self, offset: int, wanted: int, left: int) -> RequestError:
        return invalid(
            f"Invalid shared memory region: '{self._region:.200}': its segment was truncated, {left} of {wanted} bytes "
            f"are left from offset {offset} on; restore its size or register it again"
        )


class SealedSegment(Segment):
    """A memfd with F_SEAL_SHRINK (memfd_create(2), fcntl(2)): its caller may write to it, and cannot truncate it."""

    __slots__ = ()
    sealed = True

    def __init__(self, region: str, descriptor: int, byte_size: int) -> None:
        """Map the first `byte_size` bytes read-only. `descriptor` is duplicated; the original stays open.

        Raises RequestError: INVALID for a file of another kind or without the seal, OVERLOADED if this process has no
        descriptor or memory left.
        """
        self._region, self._path, self.offset, self.byte_size = region, Path("memfd"), 0, byte_size
        self._writer = None
        try:
            self._descriptor = os.dup(descriptor)
        except OSError as error:
            raise _cannot_open(self._path, error.strerror or str(error), Fault.OVERLOADED) from None
        weakref.finalize(self, os.close, self._descriptor)
        found = os.fstat(self._descriptor)
        if not is_sealed(self._descriptor, fcntl.F_SEAL_SHRINK):
            raise _cannot_open(
                self._path, "pass a memfd in pages of the usual size, sealed with F_SEAL_SHRINK (memfd_create(2))"
            )
        self._map(found)

    @property
    def linked(self) -> bool:
        """Return True: a memfd has no name, and its caller's connection ends when it is no longer needed."""
        return True

    def writer(self) -> int:
        """Return the descriptor. Raises RequestError INVALID if the caller opened or sealed it against writing."""
        access = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if access == os.O_RDONLY or _seals(self._descriptor) & (fcntl.F_SEAL_WRITE | F_SEAL_FUTURE_WRITE):
            raise _cannot_open(self._path, "it may not be written; pass it open for writing, without F_SEAL_WRITE")
        return self._descriptor


def is_sealed(descriptor: int, seals: int) -> bool:
    """Return True for a memfd in pages of the usual size that has all of these seals (fcntl(2))."""
    return os.fstat(descriptor).st_dev == _memfd_device() and _seals(descriptor) & seals == seals


def _seals(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # EINVAL: a file without seals
        return 0


def _memfd_device() -> int:
    """Return the device of memfds in pages of the usual size. A missing huge page would end in SIGBUS."""
    descriptor = os.memfd_create("device")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def invalid(message: str) -> RequestError:
    """Return RequestError INVALID."""
    return RequestError(Fault.INVALID, message)


def _cannot_open(path: Path, reason: str, fault: Fault = Fault.INVALID) -> RequestError:
    return RequestError(fault, f"Unable to open shared memory region: '/{path.name:.255}': {reason}")


def _cannot_write(path: Path, reason: str) -> RequestError:
    return RequestError(Fault.TOO_LARGE, f"Unable to write shared memory region: '/{path.name:.255}': {reason}")
