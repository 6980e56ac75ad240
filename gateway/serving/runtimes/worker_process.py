"""Worker process of an isolated session, as the gateway sees it: its descriptors, its lanes, and how it ended.

Nothing that it says is trusted: messages are bounded and numbered, shapes are checked against the manifest, and memory
that both sides map is sealed, so that reading it never fails. It may change its answers after it gave them, which
harms nothing but these: what must have a certain form (texts, booleans) is copied before it is checked.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import RequestError, VariantError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.python310 import SAFE_PATH
from gateway.common.domain.tensor import Array, Datatype, Tensors, decode_bytes
from gateway.serving.domain.isolation import GARBAGE, end_reason
from gateway.serving.domain.ports import Part
from gateway.serving.runtimes.child import LAST_WORDS_CHARS, ChildEnd, child_environment
from gateway.serving.runtimes.worker_child import (
    ALIKE,
    ANSWER,
    ASK,
    FAILED,
    LAYOUT,
    MESSAGE_BYTES,
    PART,
    SAME,
    STOP,
    TEXTS,
    WANTS,
    Layout,
    WorkerJob,
    encoded,
    laid_out,
    viewed,
)

COMMAND = (sys.executable, SAFE_PATH, "-B", "-m", "gateway.serving.runtimes.worker_child")
PAGE_BYTES = mmap.PAGESIZE
SLABS = 3
"""Most slabs for the outputs of a lane: one is written, the others are lent to callers that still send them."""
LENT_BYTES = 65_536
"""Size from which outputs are lent and not copied: below, a copy takes less than 10 µs."""
ANSWER_BYTES = 2**30
"""Most bytes of the arrays of a run, in each direction."""
TAIL_BYTES = 4_096
PRINTS_BYTES = 65_536
PRINTS_S = 0.02
"""Pause between two readings of what a worker prints."""


class WorkerGone(Exception):  # noqa: N818  it is no error of the gateway: the session decides what follows
    """The worker ended, or answered what is no answer, while it ran. `was_asked`: it had read the request."""

    def __init__(self, words: str = "", *, was_asked: bool = True) -> None:
        super().__init__(words)
        self.was_asked = was_asked


class Slab:
    """Memory of a fixed size that both sides map. Raises VariantError if there is no memory for it."""

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // PAGE_BYTES) * PAGE_BYTES
        try:
            self.descriptor = os.memfd_create("slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            weakref.finalize(self, os.close, self.descriptor)
            os.posix_fallocate(self.descriptor, 0, self.size)  # all of it now: a page that is lacking later would kill
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.memory = mmap.mmap(self.descriptor, self.size)
        except (OSError, ValueError) as error:
            words = f"there is no memory for {self.size} bytes of arrays of a worker process: {error}"
            raise VariantError(words, remedy="free memory, or send less at once", transient=True) from error
        self._unlent = self._references

    @property
    def _references(self) -> int:
        return sys.getrefcount(self.memory)

    @property
    def is_lent(self) -> bool:
        """Return True while an array over its memory is in use."""
        return self._references > self._unlent


class Lane:
    """One run at a time in a worker: its socket, its slabs, and the layouts of the last run."""

    def __init__(self, manifest: ModelManifest) -> None:
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self.socket.close)
        self.busy = self.has_answered = False
        self.lock = threading.Lock()
        """Held by a run: a worker may have fewer lanes than its session has runs at a time."""
        self._inputs = [spec.name for spec in manifest.inputs]
        self._outputs = manifest.outputs
        self._buffer = bytearray(MESSAGE_BYTES)
        self._number = 0
        self._given: Slab | None = None
        self._forms: list[tuple[Any, tuple[int, ...]]] = []
        self._views: list[Array] = []
        self._own: dict[int, Slab] = {}
        self._layout: Layout = []
        self._total = 0
        self._small: list[tuple[str, Array]] = []
        """Outputs in the first slab, if they are only to be copied."""

    def run(self, inputs: Tensors, part: Part | None = None) -> Tensors:
        """Run once, with a receiver of parts if the session is in parts.

        Raises VariantError with the engine's words, and WorkerGone.
        """
        try:
            arrays = [inputs[name] for name in self._inputs]
        except KeyError as error:
            raise VariantError(f"input {error.args[0]!r} is missing from the run") from None
        self._number += 1
        is_read = False
        slab = 0 if self._total < LENT_BYTES else self._free_slab()
        try:
            layout, descriptors = self._give(arrays)
            self.socket.send(ASK.pack(self._number, slab, ALIKE if layout is None else LAYOUT))
            if layout is not None:
                socket.send_fds(self.socket, [layout], descriptors)
            while (said := self._read(self.socket.recv_into(self._buffer)))[0] > FAILED:
                is_read = True
                if said[0] == WANTS:
                    self._grant(slab, said[1])
                elif part is not None and not part(self._texts(said[1])):
                    self.socket.send(ASK.pack(self._number, 0, STOP))
                    part = None
        except OSError as error:  # before the first answer: the request was not sent, or never read (ECONNRESET)
            raise WorkerGone(was_asked=is_read) from error
        status, content = said
        if status == FAILED:
            raise _failure(content)
        self.has_answered = True
        if status == SAME and self._small and not slab:
            return {name: view.copy() for name, view in self._small}
        return self._take(slab, content)

    def _give(self, arrays: Sequence[Array]) -> tuple[bytes | None, list[int]]:
        """Write the inputs. Return their layout, with the slab if there is a new one; None if it is as before."""
        forms = [(array.dtype, array.shape) for array in arrays]
        if forms == self._forms:
            for view, array in zip(self._views, arrays, strict=True):
                view[...] = array
            return None, []
        contents = [encoded(array) for array in arrays]
        layout, total = laid_out(self._inputs, arrays, contents)
        pickled, descriptors, given = pickle.dumps(layout), list[int](), self._given
        if total > ANSWER_BYTES or len(pickled) > MESSAGE_BYTES:
            raise VariantError(f"a run in a worker process takes {ANSWER_BYTES} bytes of inputs at most, not {total}")
        self._forms = []
        if given is None or given.size < total:
            given = self._given = Slab(total)
            descriptors = [given.descriptor]
        views = viewed(layout, given.memory)
        for view, content in zip(views, contents, strict=True):
            view[...] = content
        if all(entry[1] != TEXTS for entry in layout):  # the size of texts differs from run to run
            self._forms, self._views = forms, views
        return pickled, descriptors

    def _read(self, size: int) -> tuple[int, Any]:
        """Return the status of an answer and what follows it. Raises WorkerGone."""
        if size < ANSWER.size:
            raise WorkerGone("answered garbage: too few bytes" if size else "")
        number, status = ANSWER.unpack_from(self._buffer)
        if number != self._number or status > PART or (status == SAME and not self._layout):
            raise WorkerGone(f"answered garbage: run {number} of {self._number}, status {status}")
        try:
            return status, json.loads(self._buffer[ANSWER.size : size]) if status != SAME else None
        except (ValueError, RecursionError) as error:
            raise WorkerGone(f"answered garbage: {error}") from None

    def _texts(self, said: Any) -> Tensors:
        """Return the texts of a part. Raises WorkerGone."""
        try:
            return {
                spec.name: np.array([text.encode("latin-1") for text in said[spec.name]], object).reshape(spec.shape)
                for spec in self._outputs
                if spec.name in said and spec.datatype is Datatype.BYTES
            }
        except (TypeError, ValueError, AttributeError) as error:
            raise WorkerGone(f"answered garbage: a part: {error}") from None

    def _free_slab(self) -> int:
        """Return a slab for large outputs that no caller uses. There is always one: see `_take`."""
        return next(index for index in range(1, SLABS + 1) if index not in self._own or not self._own[index].is_lent)

    def _grant(self, index: int, size: Any) -> None:
        """Give the worker a slab of the size that it wants."""
        if type(size) is not int or not 0 <= size <= ANSWER_BYTES:
            raise WorkerGone(f"answered garbage: it wants {size!s:.20} bytes for its outputs")
        self._layout, self._small = [], []
        try:
            slab = self._own[index] = Slab(size)
        except VariantError:  # the worker answers that
            self.socket.send(b"\0")
        else:
            socket.send_fds(self.socket, [b"\0"], [slab.descriptor])

    def _take(self, index: int, said: Any) -> Tensors:
        """Return the outputs in a slab, of the shapes that the worker says (None: as before).

        Large ones are lent, unless they are in the first slab, or no other one would be left for the next run.
        """
        slab = self._own.get(index)
        if said is not None:
            try:
                self._layout = checked(self._outputs, said, slab.size if slab else 0)
            except (ValueError, TypeError) as error:
                raise WorkerGone(f"answered garbage: {error}") from None
            self._total = sum(entry[4] for entry in self._layout)
        if slab is None:
            raise WorkerGone("answered garbage: outputs without a slab")
        others = [each for number, each in self._own.items() if number not in {0, index} and not each.is_lent]
        is_lent = index > 0 and (bool(others) or len(self._own.keys() - {0}) < SLABS)
        views, outputs = viewed(self._layout, slab.memory), dict[str, Array]()
        for spec, entry, view in zip(self._outputs, self._layout, views, strict=True):
            if entry[1] == TEXTS:
                try:
                    texts = decode_bytes(view.tobytes(), math.prod(entry[2]), spec.name)
                except RequestError as error:
                    raise WorkerGone(f"answered garbage: {error.message}") from None
                outputs[spec.name] = texts.reshape(entry[2])
            elif spec.datatype is Datatype.BOOL:
                outputs[spec.name] = np.not_equal(view.view(np.uint8), 0)
            else:
                outputs[spec.name] = view if is_lent else view.copy()
        is_plain = not any(spec.datatype in {Datatype.BYTES, Datatype.BOOL} for spec in self._outputs)
        self._small = (
            [(each[0], view) for each, view in zip(self._layout, views, strict=True)] if is_plain and not index else []
        )
        return outputs

    def close(self) -> None:
        """End a run that waits for an answer; it gets none any more."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def checked(specs: Sequence[TensorSpec], said: Any, size: int) -> Layout:
    """Return the layout that a worker says, if it fits the manifest and a slab. Raises ValueError, TypeError."""
    layout, end = Layout(), 0
    for spec, (_, dtype, shape, offset, count) in zip(specs, said, strict=True):
        if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in (*shape, offset, count)):
            raise ValueError(f"output {spec.name} has no shape")
        if len(shape) != len(spec.shape) or not all(w in {ROWS, one} for w, one in zip(spec.shape, shape, strict=True)):
            raise ValueError(f"output {spec.name} has the shape {shape!s:.100}, expected {list(spec.shape)}")
        if dtype != spec.datatype.dtype.str:
            raise ValueError(f"output {spec.name} has the type {dtype!s:.20}, expected {spec.datatype.dtype.str}")
        least = math.prod(shape) * (4 if dtype == TEXTS else spec.datatype.dtype.itemsize)
        if offset < end or offset + count > size or (count < least if dtype == TEXTS else count != least):
            raise ValueError(f"output {spec.name} has {count} bytes at {offset} for the shape {shape!s:.100}")
        end = offset + count
        layout.append((spec.name, dtype, tuple(shape), offset, count))
    return layout


def _failure(said: Any) -> VariantError:
    try:
        reason, remedy, transient = said
        return VariantError(str(reason), remedy=str(remedy), transient=transient is True)
    except (TypeError, ValueError):
        raise WorkerGone("answered garbage: an error without words") from None


class WorkerProcess:
    """One process. The kernel ends it with the thread that made this, which must live as long as it may.

    `cause`, `reason`: why it was killed here, in words and as a metric ("": it was not). `culprit`: the lane whose run
    took too long, or got garbage. `opened`: what it said when its variant was open. `last_words`: the end of what it
    printed. Raises VariantError if it cannot be started.
    """

    def __init__(self, job: WorkerJob, lent: ExitStack) -> None:
        self.lanes = list[Lane]()
        self.copies, self.began_s = lent, time.monotonic()
        self.opening_s = math.inf
        """Time that it took to open its variant; infinite until then."""
        self.cause = self.reason = self.last_words = ""
        self.culprit: object = None
        self.opened: Mapping[str, Any] | None = None
        self.problem: VariantError | None = None
        self.quiet_s = 0.0
        """Time (monotonic) until which its prints are not read."""
        self.opened_bytes = self.memory_bytes = 0
        self.over = threading.Event()
        self._tail = bytearray()
        environment = child_environment(str(job.budget.threads))
        try:
            with ExitStack() as ours:
                for _ in range(job.lanes):
                    self.lanes.append(Lane(job.manifest))
                    ours.enter_context(self.lanes[-1].theirs)
                theirs = [lane.theirs.fileno() for lane in self.lanes]
                self.prints, words = os.pipe()
                weakref.finalize(self, os.close, self.prints)
                ours.callback(os.close, words)
                stdin = os.memfd_create("job", os.MFD_CLOEXEC)
                ours.callback(os.close, stdin)
                os.write(stdin, pickle.dumps(job))
                os.lseek(stdin, 0, os.SEEK_SET)
                self._popen = subprocess.Popen(
                    [*COMMAND, *map(str, theirs)],
                    stdin=stdin,
                    stdout=words,
                    stderr=words,
                    pass_fds=theirs,
                    env=environment,
                    start_new_session=True,
                )
            try:
                self.ended = os.pidfd_open(self._popen.pid)
            except OSError:
                self._popen.kill()
                self._popen.wait()
                raise
            weakref.finalize(self, os.close, self.ended)
        except OSError as error:
            lent.close()
            words_ = f"its worker process could not be started: {error.strerror or error}"
            remedy = "free memory, or allow more processes and descriptors (LimitNOFILE=, ulimit -n)"
            raise VariantError(words_, remedy=remedy, transient=True) from error
        os.set_blocking(self.prints, False)

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._popen.pid

    def lane(self, index: int) -> Lane:
        """Return the lane for one of the session's runs at a time, once its variant is open."""
        assert self.opened is not None  # noqa: S101  no other worker runs
        return self.lanes[index % int(self.opened["lanes"])]

    @property
    def busy(self) -> bool:
        """Return True if a lane has a run."""
        return any(lane.busy for lane in self.lanes)

    def kill(self, reason: str, cause: str) -> None:
        """Kill it, from any thread. The first cause counts."""
        if not self.reason:
            self.reason, self.cause = reason, cause
        with suppress(OSError):  # it has ended
            signal.pidfd_send_signal(self.ended, signal.SIGKILL)

    def read_opened(self) -> None:
        """Read how its opening went, from its first lane."""
        self.copies.close()
        try:
            if not (content := self.lanes[0].socket.recv(MESSAGE_BYTES)):
                return  # its end follows
            said = json.loads(content)
            if "problem" in said:
                problem, remedy, is_transient = str(said["problem"]), str(said["remedy"]), said["transient"] is True
                self.problem = VariantError(problem, remedy=remedy, transient=is_transient)
                return
            list(said["remarks"]), said["rows"]
            if not 1 <= int(said["lanes"]) <= len(self.lanes):
                raise ValueError(f"{said['lanes']!s:.20} runs at a time")  # noqa: TRY301
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.kill(GARBAGE, f"answered garbage when it opened: {error}")
        else:
            self.opened, self.opened_bytes = said, self.measured()
            self.opening_s = time.monotonic() - self.began_s

    def measured(self) -> int:
        """Return its memory now, with its share of what it shares with others (PSS); 0 if it has ended."""
        with suppress(OSError, ValueError, IndexError):
            rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_bytes()  # proc_pid_smaps(5)
            self.memory_bytes = int(rollup.partition(b"\nPss:")[2].split()[0]) * 1024
        return self.memory_bytes

    def read_prints(self) -> None:
        """Keep the end of what it printed, then let it wait: one that prints without end must not take a core."""
        with suppress(OSError):
            content = os.read(self.prints, PRINTS_BYTES)
            self._tail += content
            del self._tail[:-TAIL_BYTES]
            self.quiet_s = time.monotonic() + PRINTS_S if content else math.inf

    def reap(self) -> None:
        """Note its end, with that of all that it started. `over` is set by its keeper."""
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)  # before it is reaped, no other process has its number
        _, status, usage = os.wait4(self.pid, 0)
        code = self._popen.returncode = os.waitstatus_to_exitcode(status)
        self.read_prints()
        wall_s = time.monotonic() - self.began_s
        end = ChildEnd(code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, wall_s)
        if not self.reason:
            self.reason, self.cause = end_reason(code), end.words
        self.last_words = " ".join(bytes(self._tail).decode("utf-8", "replace").split())[-LAST_WORDS_CHARS:]
        self.copies.close()
        for lane in self.lanes:
            lane.close()
