"""Process of a camera, as the daemon sees it: its start, its messages, the memory that it passes, its end."""

from __future__ import annotations

import asyncio
import mmap
import os
import site
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.common.domain.python310 import SAFE_PATH
from gateway.serving.frontends.cameras.protocol import REPORT_BYTES, SEALS, CameraProtocolError, encode_order
from gateway.serving.frontends.segment import is_sealed

COMMAND = (sys.executable, SAFE_PATH, "-m", "gateway.serving.frontends.cameras.child")
KEPT_VARIABLES = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "http_proxy", "no_proxy", "SSL_CERT_FILE"),
    "EDGE_GATEWAY_IMAGE",  # for the remedy where PyAV is missing
)
"""Environment of the process, next to Python's path: no credentials, nothing of systemd."""
DESCRIPTORS = 4
"""Most descriptors of a message that are received; one is allowed."""


class CameraProcess:
    """One process, from its start on. Raises OSError if it cannot be started."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_read = False
        self._readable: asyncio.Future[None] | None = None
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*COMMAND, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # FFmpeg's words may hold a password
                    pass_fds=(theirs.fileno(),),
                    env=_environment(),
                    cwd="/",  # no session of its own: to a kernel with autogroups (sched(7)) nice would mean nothing
                )
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self.pid = self._process.pid
        self.send({**setup, "parent": os.getpid()})

    def send(self, order: Mapping[str, Any]) -> None:
        """Send a message. A process that takes none is killed: `receive` then reports its end."""
        try:
            self._socket.send(encode_order(order))
        except OSError:
            self._process.kill()

    async def receive(self) -> tuple[bytes, int]:
        """Return the next message, and its descriptor (-1: none), which the caller closes. b"": it has ended.

        Each call lets the event loop do other work. Raises CameraProtocolError.
        """
        while True:
            await self._wait_readable()
            try:
                message, found, flags, _ = socket.recv_fds(
                    self._socket, REPORT_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return b"", -1
            if len(found) > 1 or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                for descriptor in found:
                    os.close(descriptor)
                raise CameraProtocolError("it is too long, or has several descriptors")
            return message, found[0] if found else -1

    async def end(self, limit_s: float) -> int | None:
        """Close the socket, kill the process and wait for its end. Return as `ended` does."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._process.kill()
        return await self.ended(limit_s)

    async def ended(self, limit_s: float) -> int | None:
        """Wait for the end of the process. Return its exit code; None: it has not ended in time."""
        until_s, pause_s = self._loop.time() + limit_s, 0.001
        while self._process.poll() is None and self._loop.time() < until_s:
            await asyncio.sleep(pause_s)
            pause_s = min(0.1, 2 * pause_s)
        return self._process.returncode

    def resident_bytes(self) -> int:
        """Return its resident memory; 0 if it is gone (proc(5))."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0

    async def _wait_readable(self) -> None:
        readable = self._loop.create_future()
        self._loop.add_reader(self._socket, _note, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(self._socket)


def _note(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def mapped(descriptor: int, byte_size: int) -> memoryview:
    """Return the content of a sealed memfd of exactly `byte_size` bytes in place. Raises CameraProtocolError.

    Its seals make sure that it neither shrinks nor changes afterwards.
    """
    if descriptor < 0:
        raise CameraProtocolError("a frame without memory")
    if not is_sealed(descriptor, SEALS) or os.fstat(descriptor).st_size != byte_size:
        raise CameraProtocolError("its memory is not sealed, or has another size")
    if not byte_size:
        return memoryview(b"")
    try:
        # MAP_PRIVATE: older kernels refuse a shared mapping of what is sealed against writing.
        return memoryview(mmap.mmap(descriptor, byte_size, mmap.MAP_PRIVATE, mmap.PROT_READ))
    except (OSError, ValueError) as error:
        raise MemoryError(f"a frame of {byte_size} bytes cannot be mapped: {error}") from None


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[4])
    paths = [] if root in site.getsitepackages() else [root]  # an installed package is found without help
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
