"""Attacks with inputs that make a model run endlessly, or allocate more memory than the device has."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.attack.attacker import Pace
from tests.attack.rig import Attack, Target, check_harmless

LOOP = """(int64 n, float[2] x) => (float[2] y) <bool t = {1}> {
    y = Loop (n, t, x)
        <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Sin(v) }>
}"""
FILL = "(int64[k] shape) => (float[m] y) { y = ConstantOfShape(shape) }"
MEMORY_MIB = 1500
CONFIG = f"[limits]\nrun_limit_s = 1.0\nrun_end_s = 1.0\n[gateway]\nmemory_mib = {MEMORY_MIB}\n"
ATTACKS = {
    "runs without end": Attack("tests.attack.test_endless_runs:loop", config=CONFIG, graphs={"loop": LOOP}),
    "answers larger than memory": Attack("tests.attack.test_endless_runs:fill", config=CONFIG, graphs={"fill": FILL}),
}


def loop(target: Target, ends_s: float) -> int:
    """Ask for 10^15 iterations."""
    return _ask(target, ends_s, "loop", {"n": np.array(10**15), "x": np.ones(2, np.float32)}, "longer than a run may")


def fill(target: Target, ends_s: float) -> int:
    """Ask for two gigabytes of zeros."""
    return _ask(target, ends_s, "fill", {"shape": np.array([2**29])}, "memory")


def _ask(target: Target, ends_s: float, model: str, inputs: dict[str, np.ndarray], words: str) -> int:
    pace, tensors = Pace(target), []
    for name, array in inputs.items():
        tensors.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(target.grpc) as client:
        while time.monotonic() < ends_s:
            try:
                client.infer(model, tensors)
            except InferenceServerException as error:
                if words not in str(error) and "is loading" not in str(error):  # a slow machine is ready before it
                    raise
            pace.sent(100)
    return pace.sent_bytes


@pytest.mark.parametrize("name", ATTACKS)
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    observed = check_harmless(ATTACKS[name], tmp_path)
    assert observed.peak_bytes < MEMORY_MIB << 20
