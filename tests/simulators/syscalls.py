"""A child stopped by ptrace(2) before every system call that changes files.

Calls of libraries (SQLite) are traced, too; so are threads and children of the child.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_FOLLOWED = 0x02 | 0x04 | 0x08 | 0x10
"""PTRACE_O_TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC."""
_OPTIONS = 0x01 | _FOLLOWED | 0x100000
"""PTRACE_O_TRACESYSGOOD and PTRACE_O_EXITKILL, in addition."""
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY = 1
_WALL = 0x40000000
_X86_64 = """
    1 write 18 pwrite64 20 writev 26 msync 40 sendfile 74 fsync 75 fdatasync 76 truncate 77 ftruncate 82 rename 83 mkdir
    84 rmdir 85 creat 86 link 87 unlink 88 symlink 90 chmod 91 fchmod 162 sync 257 openat 258 mkdirat 263 unlinkat
    264 renameat 265 linkat 266 symlinkat 268 fchmodat 277 sync_file_range 285 fallocate 296 pwritev 306 syncfs
    316 renameat2 326 copy_file_range"""
_AARCH64 = """
    34 mkdirat 35 unlinkat 36 symlinkat 37 linkat 38 renameat 45 truncate 46 ftruncate 47 fallocate 52 fchmod
    53 fchmodat 56 openat 64 write 66 writev 68 pwrite64 70 pwritev 71 sendfile 81 sync 82 fsync 83 fdatasync
    84 sync_file_range 227 msync 267 syncfs 276 renameat2 285 copy_file_range"""
_TABLE = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), "").split()
CHANGING = {int(number): name for number, name in zip(_TABLE[::2], _TABLE[1::2], strict=True)}
"""System call numbers by machine (asm/unistd.h). On another machine every system call counts."""


class _Info(ctypes.Structure):
    """Layout of struct ptrace_syscall_info (linux/ptrace.h) at a system call's entry."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


_library = ctypes.CDLL(None, use_errno=True)
_library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_library.ptrace.restype = ctypes.c_long


class Traced:
    """A child that runs `work`. Iterate over the names of its changing calls, each before it is made.

    The child waits during the iteration. `kill` ends it there; `status` is its exit status after the last call. Only
    for a process without other children and threads.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.status: int | None = None
        self._known: set[int] = set()
        self._main = os.fork()
        if self._main == 0:
            _be_traced(work)
        _wait(self._main)
        self._known.add(self._main)
        _ptrace(_SETOPTIONS, self._main, _OPTIONS)
        _ptrace(_SYSCALL, self._main)

    def __iter__(self) -> Iterator[str]:
        while self.status is None:
            pid, status = _wait(-1)
            if os.WIFSTOPPED(status):
                name = _changing(pid) if os.WSTOPSIG(status) == _SYSCALL_STOP else None
                if name:
                    yield name
                _ptrace(_SYSCALL, pid, self._signal_for(pid, status))
            else:
                self._gone(pid, status)

    def kill(self) -> None:
        """Kill the child and its descendants with SIGKILL."""
        for pid in list(self._known):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                self._known.discard(pid)
        while self._known:
            try:
                pid, status = _wait(-1)
            except ChildProcessError:
                return
            if not os.WIFSTOPPED(status):
                self._gone(pid, status)

    def _gone(self, pid: int, status: int) -> None:
        self._known.discard(pid)
        if pid == self._main:
            self.status = os.waitstatus_to_exitcode(status)

    def _signal_for(self, pid: int, status: int) -> int:
        """Return the signal to deliver to the child, without ptrace's own signals."""
        number, event = os.WSTOPSIG(status), status >> 16
        if number == _SYSCALL_STOP or event or (number == signal.SIGSTOP and pid not in self._known):
            self._known.add(pid)
            return 0
        return number


def _be_traced(work: Callable[[], None]) -> NoReturn:
    """Run `work` in the child; never return."""
    code = 1
    try:
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        code = 0
    except BaseException:  # noqa: BLE001  the child's boundary: any error goes to stderr
        traceback.print_exc()
    finally:
        os._exit(code)


def _changing(pid: int) -> str | None:
    """Return the call's name if `pid` is about to enter one that changes files, or None."""
    info = _Info()
    _ptrace(_GET_SYSCALL_INFO, pid, ctypes.addressof(info), ctypes.sizeof(info))
    if info.op != _ENTRY:
        return None
    if not CHANGING:
        return f"call {info.number}"
    name = CHANGING.get(info.number)
    if name == "openat" and not info.arguments[2] & os.O_CREAT:
        return None
    return name


def _ptrace(request: int, pid: int, data: int = 0, size: int = 0) -> None:
    if _library.ptrace(request, pid, size or None, data or None) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace {request:#x} of {pid}: {os.strerror(code)}")


def _wait(pid: int) -> tuple[int, int]:
    return os.waitpid(pid, _WALL)
