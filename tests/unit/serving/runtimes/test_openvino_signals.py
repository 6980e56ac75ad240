"""Signals that come at once, in a process that has loaded OpenVINO's CPU plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
PROGRAM = """
import os, signal, sys
import numpy as np
import openvino
from openvino import opset13 as op
from gateway.serving.runtimes.openvino import signal_stack_kept

given = op.parameter([64, 256], np.float32)
model = openvino.Model([op.matmul(given, op.constant(np.ones((256, 256), np.float32)), False, False)], [given])
with signal_stack_kept():
    options = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": "1"}
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
heard = []
wanted = [signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD]
for number in wanted:
    signal.signal(number, lambda number, _: heard.append(number))
for _ in range(2_000):
    request.infer({0: np.ones((64, 256), np.float32)})
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    for number in wanted:
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)
print(len(set(heard)))
"""


OPENING = """
import ctypes, sys
from pathlib import Path
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.openvino import OpenVinoRuntime
from gateway.serving.runtimes.openvino import SignalStack
from tests.simulators import models

def stack():
    now = SignalStack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(now))
    return now.ss_sp, now.ss_flags, now.ss_size

folder, before = Path(sys.argv[1]), stack()
manifest = models.write_variant(folder, models.dense(), "openvino")
runtime = OpenVinoRuntime()
runtime.devices()
session = runtime.open(manifest, manifest.variants[0], folder, SessionBudget())
print(stack() == before)
"""


def run(program: str, *arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=50)
    return done.returncode, done.stdout.strip()


def test_signals_that_come_at_once_are_all_heard() -> None:
    assert run(PROGRAM) == (0, "5")


def test_opening_a_model_leaves_the_stack_for_signals_as_it_was(tmp_path: Path) -> None:
    assert run(OPENING, tmp_path) == (0, "True")
