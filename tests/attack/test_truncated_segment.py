"""Segments that their caller truncates, grows and punches holes in while the daemon reads and writes them."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.attack.rig import Attack, Target, check_harmless
from tests.simulators.segments import shared

GRAPHS = {"frames": "(float[n,1048576] x) => (float[n,1048576] y) { y = Neg(x) }"}
ATTACKS = {
    "truncated segments": Attack(
        "tests.attack.test_truncated_segment:truncate",
        config="[shared_memory]\nallowed = true\n",
        graphs=GRAPHS,
    ),
    "punched sealed memory": Attack(
        "tests.attack.test_truncated_segment:punch",
        config='[shared_memory]\nallowed = true\nsocket = "FOLDER/memory.sock"\n',
        graphs=GRAPHS,
    ),
}
FRAME = np.ones((1, 1_048_576), "<f4")
PUNCH_HOLE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE (fallocate(2))."""


def truncate(target: Target, ends_s: float) -> int:
    """Infer with input and output in a segment that another thread truncates. Return the number of bytes read."""
    import tritonclient.grpc as triton

    with shared(2 * FRAME.nbytes) as (key, _), Path(f"/dev/shm{key}").open("r+b") as segment:
        with triton.InferenceServerClient(target.unix) as client:
            client.register_system_shared_memory("frames", key, 2 * FRAME.nbytes)
        return _infer_during(partial(_truncate, segment.fileno(), ends_s), target, ends_s)


def punch(target: Target, ends_s: float) -> int:
    """Infer with input and output in a sealed memfd in which another thread punches holes. Return the bytes read."""
    memory = os.memfd_create("frames", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 2 * FRAME.nbytes)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with socket.socket(socket.AF_UNIX) as registered:
        registered.connect(str(Path(target.unix.removeprefix("unix:")).with_name("memory.sock")))
        line = json.dumps({"name": "frames", "byte_size": 2 * FRAME.nbytes})
        socket.send_fds(registered, [line.encode() + b"\n"], [memory])
        assert json.loads(registered.recv(4096)) == {}
        return _infer_during(partial(_punch, memory, ends_s), target, ends_s)


def _infer_during(change: Callable[[], None], target: Target, ends_s: float) -> int:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    answered = 0
    with triton.InferenceServerClient(target.unix) as client:
        tensor = triton.InferInput("x", list(FRAME.shape), "FP32")
        tensor.set_shared_memory("frames", FRAME.nbytes)
        output = triton.InferRequestedOutput("y")
        output.set_shared_memory("frames", FRAME.nbytes, FRAME.nbytes)
        changing = threading.Thread(target=change)
        changing.start()
        while time.monotonic() < ends_s:
            try:
                client.infer("frames", [tensor], outputs=[output], client_timeout=5.0)
                answered += 1
            except InferenceServerException:
                continue  # refused: the segment was truncated at that moment
        changing.join()
    return answered * FRAME.nbytes


def _truncate(segment: int, ends_s: float) -> None:
    """Truncate and grow the segment and punch holes. It is complete at the end, for the client's own mapping."""
    size = 2 * FRAME.nbytes
    for turn in itertools.count():
        os.pwrite(segment, bytes(size), 0)  # fill holes, since inputs with holes are always copied
        time.sleep(turn % 5 / 1000)
        if time.monotonic() >= ends_s:
            break
        os.ftruncate(segment, (0, FRAME.nbytes // 2, FRAME.nbytes, 2 * size)[turn % 4])
        _punch_hole(segment)
        os.ftruncate(segment, size)


def _punch(memory: int, ends_s: float) -> None:
    """Write all pages and punch them out repeatedly."""
    while time.monotonic() < ends_s:
        os.pwrite(memory, bytes(2 * FRAME.nbytes), 0)
        time.sleep(0.001)
        _punch_hole(memory)


def _punch_hole(descriptor: int) -> None:
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    assert fallocate(descriptor, PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(2 * FRAME.nbytes)) == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    check_harmless(ATTACKS[name], tmp_path)
