"""Segments that their caller truncates, grows and punches while they are read and while outputs are written."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.attack.rig import Attack, Target, check_harmless
from tests.simulators.segments import shared

ATTACKS = {
    "truncated segments": Attack(
        "tests.attack.test_truncated_segment:truncate",
        config="[shared_memory]\nallowed = true\n",
        graphs={"frames": "(float[n,1048576] x) => (float[n,1048576] y) { y = Neg(x) }"},
    )
}
FRAME = np.ones((1, 1_048_576), "<f4")
PUNCH_HOLE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE (fallocate(2))."""


def truncate(target: Target, ends_s: float) -> int:
    """Infer with input and output in a segment that another thread changes all the time. Returns bytes read."""
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    answered = 0
    with shared(2 * FRAME.nbytes) as (key, _), triton.InferenceServerClient(target.unix) as client:
        client.register_system_shared_memory("frames", key, 2 * FRAME.nbytes)
        tensor = triton.InferInput("x", list(FRAME.shape), "FP32")
        tensor.set_shared_memory("frames", FRAME.nbytes)
        output = triton.InferRequestedOutput("y")
        output.set_shared_memory("frames", FRAME.nbytes, FRAME.nbytes)
        changing = threading.Thread(target=_change, args=(f"/dev/shm{key}", ends_s))
        changing.start()
        while time.monotonic() < ends_s:
            try:
                client.infer("frames", [tensor], outputs=[output], client_timeout=5.0)
                answered += 1
            except InferenceServerException:
                continue  # refused: it was truncated at that moment
        changing.join()
    return answered * FRAME.nbytes


def _change(path: str, ends_s: float) -> None:
    """Truncate and grow the segment, punch holes; whole at the end, for the client's own mapping."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    size = 2 * FRAME.nbytes
    with Path(path).open("r+b") as segment:
        for turn in itertools.count():
            os.pwrite(
                segment.fileno(), bytes(size), 0
            )  # no hole is left: else the inputs are copied whatever the setting
            time.sleep(turn % 5 / 1000)
            if time.monotonic() >= ends_s:
                break
            os.ftruncate(segment.fileno(), (0, FRAME.nbytes // 2, FRAME.nbytes, 2 * size)[turn % 4])
            fallocate(segment.fileno(), PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(size))
            os.ftruncate(segment.fileno(), size)


@pytest.mark.parametrize("name", ATTACKS)
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    check_harmless(ATTACKS[name], tmp_path)
