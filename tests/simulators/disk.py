"""File system in a file, with simulated power cuts: unsynced data are lost, as on a real disk."""

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
"""Losses of a power cut: `all` unsynced data; `data` only, while names and sizes are kept; or `some`.

`some`: the data of a random half of the files were written back, but no names.
"""
SIZES_BYTES = {"ext4": 64 << 20, "xfs": 320 << 20}
_MAKE = {
    # without ext4's workarounds for programs that rename without fsync, and without its commit timer
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
    """Isolate this process's mounts from others. Raise OSError if that is not permitted."""
    if _library.unshare(_CLONE_NEWNS) < 0:
        raise OSError(ctypes.get_errno(), "mounting is not allowed here")
    _run("mount", "--make-rprivate", "/")


def make(image: Path, kind: str) -> None:
    """Create an empty file system. Raise OSError."""
    with image.open("wb") as file:
        file.truncate(SIZES_BYTES[kind])
    _run(*_MAKE[kind], str(image))


@contextmanager
def mounted(image: Path, kind: str, place: Path) -> Iterator[None]:
    """Mount a file system. Unmounting syncs it if the power was not cut. Raise OSError."""
    _run("mount", "-t", kind, "-o", _OPTIONS[kind], str(image), str(place))
    try:
        yield
    finally:
        _run("umount", str(place))


def fill(file: Path, free_bytes: int | None) -> None:
    """Let `file` occupy all space except about `free_bytes`; None: leave the space as it is."""
    taken, piece = 0, _FILLER_BYTES if free_bytes is not None else 0
    with file.open("wb") as filler:
        while piece >= _BLOCK_BYTES:
            found = os.statvfs(file)
            if found.f_bavail * found.f_frsize >= piece + (free_bytes or 0) and _allocated(filler, taken, piece):
                taken += piece
            else:
                piece //= 2


def cut_power(place: Path, loss: str, seed: int) -> None:
    """Simulate a power cut: nothing reaches the disk from now on."""
    if loss == "some":
        _write_back(place, random.Random(seed))
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = _LOGFLUSH if loss == "data" else _NOLOGFLUSH
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", flags))
    finally:
        os.close(descriptor)


def fault(image: Path, kind: str) -> str:
    """Return the findings of the file system's check, or ""."""
    done = subprocess.run([*_CHECK[kind], str(image)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _allocated(filler: BinaryIO, offset: int, size: int) -> bool:
    try:
        os.posix_fallocate(filler.fileno(), offset, size)
    except OSError:  # the file system reserves the last blocks
        return False
    return True


def _write_back(place: Path, chance: random.Random) -> None:
    """Write back data of files, but no names, as the kernel may do at any time and in any order."""
    for file in sorted(path for path in place.rglob("*") if path.is_file()):
        if chance.random() < 0.5:
            descriptor = os.open(file, os.O_RDONLY)
            _library.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE_AND_WAIT)
            os.close(descriptor)


def _run(*command: str) -> None:
    done = subprocess.run(["/usr/bin/env", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
