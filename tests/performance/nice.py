"""Trade-off of a profile's `worker_nice`: a tiny and a costly model on one core, asked without a pause.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/performance/nice.py [NICE …]

Eight callers of the tiny model, each costing the loop 20 µs a request (what a socket and its framing take), and two of
a costly one on its worker. Prints the tiny requests' rate and p99, and the costly runs' rate and that when alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.common.domain.profile import Budget
from gateway.common.domain.tensor import Tensors
from tests.simulators.engine_rig import Rig, manifest, measured, request

SECONDS, FRAMING_S, PRODUCTS = 4.0, 20e-6, 4
MATRIX = np.random.default_rng(1).random((420, 420), np.float32)
CALLERS = {"tiny": 8, "costly": 2}


class Multiplying:
    """A session that computes without the interpreter's lock."""

    lends, in_parts, rows = False, False, None
    remarks = ()

    def __init__(self, *, costly: bool) -> None:
        self._matrix, self._products = (MATRIX, PRODUCTS) if costly else (MATRIX[:40, :40], 1)

    def run(self, inputs: Tensors) -> Tensors:
        for _ in range(self._products):
            self._matrix @ self._matrix
        return {"y": inputs["x"]}

    def close(self) -> None:
        pass


class Caller:
    """Caller that asks again as soon as it is answered."""

    def __init__(self, rig: Rig, model: str) -> None:
        self.rig, self.model = rig, model
        self.took_s: list[float] = []
        self.stopped = False

    def ask(self) -> None:
        until = time.perf_counter() + FRAMING_S
        while time.perf_counter() < until:
            pass
        if not self.stopped:
            self.rig.engine.submit(request(model=self.model), self, time.perf_counter())

    def answer(self, token: float, response: Any) -> None:
        self.took_s.append(time.perf_counter() - token)
        asyncio.get_running_loop().call_soon(self.ask)

    def refuse(self, token: float, error: Exception) -> None:
        raise error

    def flush(self) -> None:
        pass


def alone_per_s() -> float:
    session, began = Multiplying(costly=True), time.perf_counter()
    for _ in range(50):
        session.run({"x": MATRIX})
    return 50 / (time.perf_counter() - began)


async def measure(nice: int) -> None:
    rig = Rig(budget=Budget(threads=1, worker_nice=nice))
    rig.trials = {"a": measured(10.0, 1.0), "b": measured(8000.0, 7900.0)}
    opened = lambda _manifest, variant, *_: Multiplying(costly=variant.name == "b")  # noqa: E731
    object.__setattr__(rig.repository._loader, "open_session", opened)
    await rig.serve(manifest("tiny"), manifest("costly", variants=("b",)))
    callers = {model: [Caller(rig, model) for _ in range(count)] for model, count in CALLERS.items()}
    everybody = [caller for of_model in callers.values() for caller in of_model]
    for caller in everybody:
        caller.ask()
    await asyncio.sleep(SECONDS)
    for caller in everybody:
        caller.stopped = True
    tiny = sorted(took for caller in callers["tiny"] for took in caller.took_s)
    costly = sum(len(caller.took_s) for caller in callers["costly"])
    p99_ms = tiny[int(len(tiny) * 0.99)] * 1e3
    rates = f"tiny {len(tiny) / SECONDS / 1e3:5.1f}k/s, p99 {p99_ms:5.2f} ms; costly {costly / SECONDS:4.0f}/s"
    print(f"worker_nice {nice:2}: {rates} of {alone_per_s():.0f} alone")
    await rig.repository.close()


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for value in [int(text) for text in sys.argv[1:]] or [0, 2, 5, 10, 19]:
        asyncio.run(measure(value))
