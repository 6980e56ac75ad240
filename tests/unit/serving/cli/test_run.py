"""`edge-gateway run`: its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ABANDONED = """
import argparse, sys, threading, time
import numpy, onnxruntime
from gateway.serving.cli import run
from gateway.serving.runtimes.onnx_arena import IDENTITY

def serve(*_):
    session, inputs = onnxruntime.InferenceSession(IDENTITY), {"x": numpy.zeros(1, numpy.float32)}
    threading.Thread(target=lambda: [session.run(None, inputs) for _ in iter(int, 1)], daemon=True).start()
    time.sleep(0.2)
    print("drained")

run._serve = serve
sys.exit(run.command(argparse.Namespace(state=sys.argv[1])))
"""


def test_a_run_that_was_abandoned_does_not_abort_the_end(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", ABANDONED, tmp_path], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "drained\n"), ended.stderr
