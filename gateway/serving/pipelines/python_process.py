"""Process of a step with Python code, as the gateway sees it: its descriptors, and the arrays of its runs.

Arrays are in two memfds of a fixed size, sealed, and are read and written through descriptors: neither side maps memory
that the other one could change or truncate. What the process writes is copied before it is checked.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.pipeline import PythonStep
from gateway.common.domain.python310 import SAFE_PATH
from gateway.common.domain.tensor import Array, Datatype, Tensor, decode_raw, encode_bytes
from gateway.common.store.plain import open_plain
from gateway.serving.pipelines.python_child import Entry
from gateway.serving.runtimes.child import child_environment

COMMAND = (sys.executable, SAFE_PATH, "-B", "-m", "gateway.serving.pipelines.python_child")
ENVIRONMENT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONPATH", "TZ")
"""Variables that the process gets."""
CORES = os.cpu_count() or 1
SOURCE_LIMIT_BYTES = 2**20
ARRAYS_BYTES = 128 * 2**20
"""Most bytes of the arrays of a run, in each direction."""
KEPT_BYTES = 8 * 2**20
"""Memory of arrays that is kept between runs."""
TAIL_BYTES = 2_048
THREADS = 64
CHECK_S = 1.0
"""Pause between two looks at what a process uses."""
CPU_LATE_S = 0.5
"""CPU time beyond its limit after which the gateway ends a process that does not heed SIGXCPU."""


Answered = tuple[bytes | None, int | None, Callable[[], Any], int]
NOTHING: Answered = (None, None, list, 0)
"""Stands for no answer: it equals no message, not even an empty one."""


class PythonProcess:
    """One process: its descriptors, and the end of what it printed. `cause`: why it was killed, "" if it was not.

    Raises OSError if it cannot be started.
    """

    def __init__(self, limits: PythonStep) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self.control.close)
        with theirs:
            self.given = self._kept(_memory("given"))
            self.own = self._kept(_memory("own"))
            prints, words = os.pipe()
            self.prints = self._kept(prints)
            environment = child_environment("1")
            try:
                self.popen = subprocess.Popen(
                    [*COMMAND, str(self.given), str(self.own)],
                    stdin=theirs.fileno(),
                    stdout=words,
                    stderr=words,
                    pass_fds=(self.given, self.own),
                    env={key: environment[key] for key in ENVIRONMENT if key in environment},
                    start_new_session=True,
                )
            finally:
                os.close(words)
        try:
            self.ended = self._kept(os.pidfd_open(self.popen.pid))
        except OSError:
            self.popen.kill()
            self.popen.wait()
            raise
        self.control.setblocking(False)
        os.set_blocking(self.prints, False)
        self.cause, self.fault, self.up, self.began_s = "", Fault.INTERNAL, False, time.monotonic()
        self.limits, self.tail, self.base_ns, self.granted_until_s, self.given_bytes = limits, bytearray(), 0, 0.0, 0
        self.granted_s = math.inf
        self.gone = asyncio.Event()
        self.asked: tuple[list[Entry], bytes] = [], b"[]"
        self.answered = NOTHING
        """Last shapes that were sent, and last answer with rows, the function that takes it, and its bytes."""

    def _kept(self, descriptor: int) -> int:
        """Return a descriptor that is closed with this object."""
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    @property
    def cpu_ns(self) -> int:
        """Return the CPU time of the process (clock_getcpuclockid(3)); 0 if it has ended."""
        with suppress(OSError):
            return time.clock_gettime_ns(~self.popen.pid << 3 | 2)
        return 0

    def grant_cpu(self, needed_s: float) -> None:
        """Let it use CPU time for a run, and as much again: what goes on between runs ends it (SIGXCPU).

        On all cores it cannot use what was granted before `granted_until_s`.
        """
        now_s = time.monotonic()
        if now_s >= self.granted_until_s:
            most_s = self.granted_s = math.ceil(self.cpu_ns / 1e9 + 2 * needed_s) + 1
            self.granted_until_s = now_s + needed_s / CORES
            with suppress(OSError):  # it has ended
                resource.prlimit(self.popen.pid, resource.RLIMIT_CPU, (most_s, resource.RLIM_INFINITY))

    def excess(self) -> str:
        """Return what it uses beyond its limits, which neither a blocked signal nor the user's other threads change."""
        threads = 0
        with suppress(OSError):  # it has ended
            threads = Path(f"/proc/{self.popen.pid}/task").stat().st_nlink - 2
        if threads > THREADS:
            return f"had {threads} threads, more than {THREADS}, and was ended"
        is_late = self.cpu_ns / 1e9 > self.granted_s + CPU_LATE_S
        return "used more CPU time than it may, and was ended" if is_late else ""

    def read_prints(self) -> bool:
        """Keep the end of what was printed. Return False once nothing more can come."""
        try:
            content = os.read(self.prints, 65_536)
        except OSError:
            return True
        self.tail += content
        del self.tail[:-TAIL_BYTES]
        return bool(content)

    @property
    def words(self) -> str:
        """Return how it ended, once it has."""
        code = self.popen.returncode
        if self.cause:
            return self.cause
        if code == -signal.SIGKILL:
            said = "closed its connection to the gateway, or was killed, perhaps for lack of memory"
        elif code < 0:
            said = f"died by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
            said += ": it used more CPU time than it may" if code == -signal.SIGXCPU else ""
        else:
            said = f"ended by itself (exit {code})"
        last = bytes(self.tail).decode("utf-8", "replace").split("\n")
        last = [line.strip() for line in last if line.strip()]
        return f"{said}; last words: {last[-1][-300:]}" if last else said


def read_code(file: Path) -> bytes:
    """Return the content of a file of Python. It is kept: a process that is started again runs the same.

    Raises ConfigurationError, OSError.
    """
    with open_plain(file) as stream:
        content = stream.read(SOURCE_LIMIT_BYTES + 1)
    if len(content) > SOURCE_LIMIT_BYTES:
        raise ConfigurationError(f"has more than {SOURCE_LIMIT_BYTES} bytes", file=str(file))
    return content


def _memory(name: str) -> int:
    """Return a memfd of the size of all arrays, which cannot change: reading it never fails. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, ARRAYS_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def without_rows(array: Array, spec: TensorSpec) -> Array:
    """Return the array as the code gets it: an image of a step for one row has a dimension too many."""
    return array[0] if array.ndim == len(spec.shape) + 1 else array


def give(process: PythonProcess, specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> list[Entry]:
    """Write arrays to where the process reads them. Raises RequestError."""
    entries, offset = list[Entry](), 0
    for spec, array in zip(specs, arrays, strict=True):
        is_text = spec.datatype is Datatype.BYTES
        content: Any = encode_bytes(array) if is_text else np.ascontiguousarray(array, spec.datatype.dtype)
        size = len(content) if is_text else content.nbytes
        if offset + size > ARRAYS_BYTES:
            words = f"a run of {process.limits.file} takes {ARRAYS_BYTES} bytes of arrays at most"
            raise RequestError(Fault.TOO_LARGE, words)
        try:
            done = os.pwrite(process.given, content, offset) if size else 0
        except OSError as error:
            raise RequestError(Fault.OVERLOADED, f"no memory for its arrays: {error.strerror}") from error
        if done != size:
            raise RequestError(Fault.OVERLOADED, "no memory for its arrays")
        entries.append((array.shape, size))
        offset += size
    process.given_bytes = offset
    return entries


def checked(specs: Sequence[TensorSpec], said: Any, rows: int | None) -> list[Entry]:
    """Return the shapes and bytes of outputs that a process says it wrote, of `rows`. Raises ValueError, TypeError."""
    entries, whole = list[Entry](), 0
    for spec, (shape, size) in zip(specs, said, strict=True):
        wanted = [rows if axis == 0 and rows is not None else size for axis, size in enumerate(spec.shape)]
        if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in (*shape, size)):
            raise ValueError(f"output {spec.name} has no shape")
        if len(shape) != len(wanted) or not all(w in {ROWS, one} for w, one in zip(wanted, shape, strict=True)):
            raise ValueError(f"output {spec.name} has the shape {shape!s:.100}, expected {wanted}")
        count, whole = math.prod(shape), whole + size
        is_text = spec.datatype is Datatype.BYTES
        if whole > ARRAYS_BYTES or (size < 4 * count if is_text else size != count * spec.datatype.dtype.itemsize):
            raise ValueError(f"output {spec.name} has {size} bytes for {count} values")
        entries.append((shape, size))
    return entries


def take(process: PythonProcess, specs: Sequence[TensorSpec], entries: Sequence[Entry]) -> dict[str, Tensor]:
    """Return copies of the outputs that a process wrote. Raises RequestError for what is no text."""
    outputs, offset = dict[str, Tensor](), 0
    _free(process.given, process.given_bytes)
    for spec, (shape, size) in zip(specs, entries, strict=True):
        if spec.datatype is Datatype.BYTES or spec.datatype is Datatype.BOOL:
            try:
                array = decode_raw(spec.datatype, shape, os.pread(process.own, size, offset), spec.name)
            except RequestError as error:
                raise RequestError(Fault.INTERNAL, f"{process.limits.file}: {error.message}", in_run=True) from None
        else:
            array = np.empty(shape, spec.datatype.dtype)
            os.preadv(process.own, [array.data], offset)  # all of it: the memory is sealed
        offset += size
        outputs[spec.name] = Tensor(spec.datatype, array)
    _free(process.own, offset)
    return outputs


def _free(descriptor: int, size: int) -> None:
    """Give the memory of large arrays back (fallocate(2), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)."""
    if size > KEPT_BYTES:
        ctypes.CDLL(None).fallocate(descriptor, 3, ctypes.c_int64(0), ctypes.c_int64(ARRAYS_BYTES))
