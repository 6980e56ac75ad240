"""Segment of POSIX shared memory in which a client puts one frame after the other."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  location of shm_open(3)'s segments on Linux
NAME = "edge-gateway-camera-"


class FrameSegment:
    """New segment of `byte_size` bytes, until `close`. `gid`: the group that may read it, None: its user only.

    Raises OSError if /dev/shm is full: its memory is reserved now, because a write to a page that cannot be had would
    end the process (SIGBUS).
    """

    def __init__(self, byte_size: int, gid: int | None = None, folder: Path = SHARED_MEMORY) -> None:
        self.byte_size = byte_size
        self._file = folder / f"{NAME}{token_hex(8)}"
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, byte_size)
            if gid is not None:
                with suppress(PermissionError):  # not our group: the gateway then says that it may not open it
                    os.fchown(descriptor, -1, gid)
                    os.fchmod(descriptor, 0o640)
            self._memory = mmap.mmap(descriptor, byte_size)
        except BaseException:
            self._file.unlink()
            raise
        finally:
            os.close(descriptor)

    @property
    def name(self) -> str:
        """Return its name, which its region has too."""
        return self._file.name

    @property
    def key(self) -> str:
        """Return its name for shm_open(3)."""
        return f"/{self.name}"

    def write(self, *parts: bytes) -> int:
        """Write parts from the beginning on. Return their size. Raises ValueError if it is too small for them."""
        at = 0
        for part in parts:
            if at + len(part) > self.byte_size:
                raise ValueError(f"the segment has {self.byte_size} bytes")
            self._memory[at : at + len(part)] = part
            at += len(part)
        return at

    def close(self) -> None:
        """Remove it. It must not be used afterwards."""
        self._file.unlink(missing_ok=True)
        self._memory.close()
