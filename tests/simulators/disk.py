"""A file system in a file, whose power can be cut: what was not synced by then is gone, as on a real disk."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

EXT4_IOC_SHUTDOWN = XFS_IOC_GOINGDOWN = 0x8004587D
"""_IOR('X', 125, __u32): the same number in fs/ext4 and fs/xfs."""
_LOGFLUSH, _NOLOGFLUSH = 1, 2
LOSSES = ("all", "data", "some")
"""What a cut takes: `all` that was not synced; the `data` alone, while all names and sizes reach the disk;
`some`: the data of every second file, by chance, had been written back already, no name."""
SIZES_BYTES = {"ext4": 64 << 20, "xfs": 320 << 20}
_MAKE = {
    # without ext4's own mending of programs that rename without fsync, or wait for its timer
    "ext4": ("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
_OPTIONS = {"ext4": "loop,noauto_da_alloc,commit=600", "xfs": "loop"}
_CHECK = {"ext4": ("e2fsck", "-fn"), "xfs": ("xfs_repair", "-n")}
_CLONE_NEWNS = 0x20000
_FILLER_BYTES, _BLOCK_BYTES = 1 << 25, 4096
_SYNC_FILE_RANGE_WRITE_AND_WAIT = 7
_library = ctypes.CDLL(None, use_errno=True)


def own_mounts() -> None:
    """What this process mounts is seen by nobody else and ends with it. Raises OSError where that is not allowed."""
    if _library.unshare(_CLONE_NEWNS) < 0:
        raise OSError(ctypes.get_errno(), "mounting is not allowed here")
    _run("mount", "--make-rprivate", "/")


def make(image: Path, kind: str) -> None:
    """An empty file system. Raises OSError."""
    with image.open("wb") as file:
        file.truncate(SIZES_BYTES[kind])
    _run(*_MAKE[kind], str(image))


@contextmanager
def mounted(image: Path, kind: str, place: Path) -> Iterator[None]:
    """Mounted while the context lasts; unmounting syncs, unless the power was cut. Raises OSError."""
    _run("mount", "-t", kind, "-o", _OPTIONS[kind], str(image), str(place))
    try:
        yield
    finally:
        _run("umount", str(place))


def fill(file: Path, free_bytes: int | None) -> None:
    """Let `file` take all room but about `free_bytes`; None: no room."""
    taken, piece = 0, _FILLER_BYTES if free_bytes is not None else 0
    with file.open("wb") as filler:
        while piece >= _BLOCK_BYTES:
            found = os.statvfs(file)
            if found.f_bavail * found.f_frsize >= piece + (free_bytes or 0) and _allocated(filler, taken, piece):
                taken += piece
            else:
                piece //= 2


def cut_power(place: Path, loss: str, seed: int) -> None:
    """From now on nothing reaches the disk."""
    if loss == "some":
        _write_back(place, random.Random(seed))
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = _LOGFLUSH if loss == "data" else _NOLOGFLUSH
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", flags))
    finally:
        os.close(descriptor)


def fault(image: Path, kind: str) -> str:
    """What the file system's own check finds; "" for nothing."""
    done = subprocess.run([*_CHECK[kind], str(image)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _allocated(filler: BinaryIO, offset: int, size: int) -> bool:
    try:
        os.posix_fallocate(filler.fileno(), offset, size)
    except OSError:  # the file system needs the last blocks for its own books
        return False
    return True


def _write_back(place: Path, chance: random.Random) -> None:
    """As the kernel may do at any time, in any order: data of files, without the names."""
    for file in sorted(path for path in place.rglob("*") if path.is_file()):
        if chance.random() < 0.5:
            descriptor = os.open(file, os.O_RDONLY)
            _library.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE_AND_WAIT)
            os.close(descriptor)


def _run(*command: str) -> None:
    done = subprocess.run(["/usr/bin/env", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
