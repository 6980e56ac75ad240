"""Process of an isolated session: it confines itself, opens one variant, and runs it for each message of the gateway.

Its stdin is a file with the job. Its arguments are descriptors of one socket for each run at a time (a lane), whose
first message tells how the opening went. Arrays are in memory that the gateway made and both sides map.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gateway
from gateway.common.domain.errors import VariantError, is_temporary
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.tensor import ALIGNED_BYTES, Array, Tensors, decode_bytes, encode_bytes
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.isolation import EXCESS, WorkerPolicy
from gateway.serving.domain.ports import Session
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.sandbox import PR_SET_PDEATHSIG, SandboxError, SandboxLimits, enter

MESSAGE_BYTES = 65_536
REASON_CHARS = 2_000
REMARKS = 16
"""Most characters of an engine's error or remark, and most remarks."""
ASK, ANSWER = struct.Struct("<QBB"), struct.Struct("<QB")
"""Number of the run, the slab for its outputs, and one of the next three; number, and one of the last five:"""
ALIKE, LAYOUT, STOP = range(3)
"""Inputs of the same layout as before; their layout follows; no more parts of the run under way are wanted."""
SAME, SHAPES, FAILED, WANTS, PART = range(5)
"""Outputs of the same shapes as before; their shapes follow; an error does; they need a slab of a size that follows;
new texts of a run in parts follow. After the last two, the run goes on."""
PACKAGE = Path(gateway.__file__).parent
TEXTS = "|O"
Layout = list[tuple[str, str, tuple[int, ...], int, int]]
"""Name, dtype, shape, offset and bytes of each array in a slab."""


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """Variant to open, `lanes` runs at a time, in a process of `gateway` (its id)."""

    manifest: ModelManifest
    variant: Variant
    files: Path
    budget: SessionBudget
    policy: WorkerPolicy
    lanes: int
    gateway: int


def main() -> None:
    """Open the job's variant, then run it until the gateway closes a socket."""
    with open(0, "rb", closefd=False) as stdin:
        job: WorkerJob = pickle.load(stdin)  # noqa: S301  written by our own parent
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    lanes = [socket.socket(fileno=int(each)) for each in sys.argv[1:]]
    try:
        runtime = get_runtime(job.variant.runtime)  # from files that it may not read later
        lacks = confined(job)
        session = runtime.open(job.manifest, job.variant, job.files, job.budget)
        with suppress(VariantError):  # too little memory for all of them
            session.widen(job.lanes)
    except BaseException as error:  # noqa: BLE001  the process boundary: any error of an engine is the answer
        words = words_of(error).replace(f"{job.files}/", "")
        problem = {"problem": words, "remedy": getattr(error, "remedy", ""), "transient": is_passing(error)}
        lanes[0].send(json.dumps(problem).encode())
        os._exit(1)
    sessions = [session, *session.peers][: len(lanes)]
    for each, lane in zip(sessions[1:], lanes[1:], strict=False):
        threading.Thread(target=serve, args=(each, job.manifest, lane), daemon=True).start()
    rows = session.rows and {
        "inputs": [(name, each.shape, each.axis) for name, each in session.rows.inputs.items()],
        "outputs": list(session.rows.outputs.items()),
    }
    remarks: Sequence[str] = (*session.remarks, *(f"its worker process is not confined: {words}" for words in lacks))
    remarks = [each[:REASON_CHARS] for each in remarks[:REMARKS]]
    opened = {"lanes": len(sessions), "rows": rows, "remarks": remarks, "in_parts": session.in_parts}
    lanes[0].send(json.dumps(opened).encode())
    serve(session, job.manifest, lanes[0])


def confined(job: WorkerJob) -> tuple[str, ...]:
    """Confine this process as its job allows; return what is not bounded, in words."""
    limits = SandboxLimits(
        int(EXCESS * job.policy.memory_bytes),
        (str(job.files), str(PACKAGE), "/proc/self"),
        nice=job.policy.nice,
        devices=job.policy.devices,
        listens=RUNTIMES[job.variant.runtime].isolated,
    )
    try:
        return enter(limits)
    except SandboxError as error:
        return (str(error),)
    finally:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != job.gateway:  # it ended before its end could be signalled
            os._exit(1)


def serve(session: Session, manifest: ModelManifest, lane: socket.socket) -> None:
    """Run the session for each message of a lane. Ends the process with the socket, or by an error outside of a run."""
    try:
        _Lane(session, manifest, lane).serve()
    finally:
        os._exit(0)


class _Lane:
    """The worker's side of a lane: its slabs, and the layouts of the last run."""

    def __init__(self, session: Session, manifest: ModelManifest, lane: socket.socket) -> None:
        self._session, self._socket = session, lane
        self._wanted = [spec.name for spec in manifest.outputs]
        self._given = memoryview(b"")
        self._inputs: dict[str, Array] = {}
        self._own: dict[int, memoryview] = {}
        self._said: list[tuple[str, tuple[int, ...]]] = []
        self._views: dict[int, list[Array]] = {}

    def serve(self) -> None:
        while message := self._socket.recv(ASK.size):
            number, slab, how = ASK.unpack(message)
            if how == STOP:  # of a run that has ended
                continue
            try:
                if how == LAYOUT:
                    self._lay_out()
                session, part = self._session, partial(self._part, number)
                outputs = session.run_in_parts(self._inputs, part) if session.in_parts else session.run(self._inputs)
                self._answer(number, slab, [outputs[name] for name in self._wanted])
                del outputs
            except Exception as error:  # noqa: BLE001  a run's boundary
                said = json.dumps([words_of(error), getattr(error, "remedy", ""), is_passing(error)]).encode()
                self._socket.send(ANSWER.pack(number, FAILED) + said)

    def _part(self, number: int, outputs: Tensors) -> bool:
        """Send new texts. Return False if the gateway has asked for the end of the run. Implements `Part`."""
        texts = {name: [bytes(text).decode("latin-1") for text in array.ravel()] for name, array in outputs.items()}
        content = json.dumps(texts, ensure_ascii=False).encode()
        if len(content) > MESSAGE_BYTES - ANSWER.size:
            raise VariantError(f"a part of its answer has {len(content)} bytes, {MESSAGE_BYTES} are sent at most")
        self._socket.send(ANSWER.pack(number, PART) + content)
        try:
            self._socket.recv(ASK.size, socket.MSG_DONTWAIT)  # a stop, or the end of the socket
        except BlockingIOError:
            return True
        return False

    def _lay_out(self) -> None:
        """Read the layout of the inputs, and the slab that they are in from now on if there is another one."""
        body, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        if descriptors:
            self._given = mapped(descriptors[0])
        layout: Layout = pickle.loads(body)  # noqa: S301  written by our own parent
        self._inputs = {}
        for entry, view in zip(layout, viewed(layout, self._given), strict=True):
            name, dtype, shape, _, _ = entry
            view.flags.writeable = False
            is_text = dtype == TEXTS
            self._inputs[name] = decode_bytes(view.data, math.prod(shape), name).reshape(shape) if is_text else view

    def _answer(self, number: int, slab: int, arrays: list[Array]) -> None:
        """Copy the outputs into a slab, and say their shapes unless they are as before."""
        said = [(array.dtype.str, array.shape) for array in arrays]
        if said == self._said and (views := self._views.get(slab)) is not None:
            for view, array in zip(views, arrays, strict=True):
                view[...] = array
            self._socket.send(ANSWER.pack(number, SAME))
            return
        contents = [encoded(array) for array in arrays]
        layout, total = laid_out(["" for _ in arrays], arrays, contents)
        if slab not in self._own or total > len(self._own[slab]):
            self._views, self._said = {}, []  # the gateway forgets their shapes, too, even if it has no memory
            self._socket.send(ANSWER.pack(number, WANTS) + json.dumps(total).encode())
            granted, descriptors = b" " * ASK.size, list[int]()
            while len(granted) == ASK.size:  # a stop of the run, which has ended meanwhile
                granted, descriptors, _, _ = socket.recv_fds(self._socket, ASK.size, 1)
            if not descriptors:
                raise VariantError("the gateway has no memory for its outputs", transient=True)
            self._own[slab] = mapped(descriptors[0])
        views = viewed(layout, self._own[slab])
        for view, content in zip(views, contents, strict=True):
            view[...] = content
        if said != self._said or any(dtype == TEXTS for dtype, _ in said):
            self._views, self._said = {}, said
        if not any(dtype == TEXTS for dtype, _ in said):  # the size of texts differs from run to run
            self._views[slab] = views
        self._socket.send(ANSWER.pack(number, SHAPES) + json.dumps(layout).encode())


def encoded(array: Array) -> Array:
    """Return what is written to a slab: texts as bytes, all else as it is."""
    return np.frombuffer(encode_bytes(array), np.uint8) if array.dtype.hasobject else array


def laid_out(names: Sequence[str], arrays: Sequence[Array], contents: Sequence[Array]) -> tuple[Layout, int]:
    """Return where the contents of arrays are placed in a slab, and how many bytes it needs."""
    layout, end = Layout(), 0
    for name, array, content in zip(names, arrays, contents, strict=True):
        layout.append((name, array.dtype.str, array.shape, end, content.nbytes))
        end += -(-content.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
    return layout, end


def viewed(layout: Layout, memory: Any) -> list[Array]:
    """Return the arrays of a layout in a slab, texts as bytes."""
    return [
        np.ndarray((size,), np.uint8, memory, offset) if dtype == TEXTS else np.ndarray(shape, dtype, memory, offset)
        for _, dtype, shape, offset, size in layout
    ]


def mapped(descriptor: int) -> memoryview:
    """Return the memory of a slab, and close its descriptor."""
    memory = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))
    os.close(descriptor)
    return memory


def words_of(error: BaseException) -> str:
    """Return an error in words."""
    words = error.reason if isinstance(error, VariantError) else f"{type(error).__name__}: {error}"
    return words[:REASON_CHARS]


def is_passing(error: BaseException) -> bool:
    """Return True if an error says nothing about the model."""
    return getattr(error, "transient", False) or isinstance(error, MemoryError) or is_temporary(words_of(error))


if __name__ == "__main__":
    main()
