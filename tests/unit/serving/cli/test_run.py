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


HANGING = """
import argparse, asyncio, sys, threading
from gateway.serving import daemon
from gateway.serving.cli import run

class Daemon:
    restart = None
    async def run(self):
        reading = asyncio.create_task(asyncio.to_thread(threading.Event().wait))  # as on a disk that hangs
        await asyncio.sleep(0.2)
        print("drained")

run.THREADS_END_S = 0.1
run._configured = lambda *_: (None, None)
run._allow_files = lambda _: None
daemon.Daemon = lambda *_: Daemon()
sys.exit(run.command(argparse.Namespace(state=sys.argv[1])))
"""


def test_a_thread_on_a_disk_that_hangs_does_not_delay_the_end(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING, tmp_path], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "drained\n"), ended.stderr
