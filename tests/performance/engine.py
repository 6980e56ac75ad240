"""Cost of the engine itself per tiny request: submit → plan → gather → (no run) → scatter → answer.

    python tests/performance/engine.py [REQUESTS_PER_TURN …]

The session answers at once from arrays made before. Building the request and the loop's own turn are measured apart and
subtracted. With --profile, the functions that take longest are listed. With --copies, the cost of stacking inputs is
measured, into a new array and into a slab that is kept.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor, Tensors
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Session
from tests.simulators.engine_rig import Rig, manifest, measured

COLUMNS, TURNS, PASSES = 64, 2000, 7
ROW = np.zeros((1, COLUMNS), np.float32)
INPUTS = (TensorSpec("x", Datatype.FP32, (-1, COLUMNS)),)
OUTPUTS = (TensorSpec("y", Datatype.FP32, (-1, 4)),)


class Instant:
    """A session that costs nothing."""

    lends, rows = False, None
    remarks = ()
    _answers = tuple({"y": np.zeros((rows, 4), np.float32)} for rows in range(65))

    def run(self, inputs: Tensors) -> Tensors:
        return self._answers[len(inputs["x"])]

    def close(self) -> None:
        pass


class InstantRuntime:
    """Runtime that opens such sessions."""

    def open(self, *_: object) -> Session:
        return Instant()


class Discard:
    """A connection that writes nothing."""

    def answer(self, token: Any, response: object) -> None:
        pass

    def refuse(self, token: Any, error: Exception) -> None:
        raise error

    def flush(self) -> None:
        pass


def build() -> InferRequest:
    return InferRequest("m", {"x": Tensor(Datatype.FP32, ROW)})


async def timed(turn: Callable[[], object]) -> float:
    """Return microseconds per turn of the loop, the quickest of a few passes."""
    best = float("inf")
    for _ in range(PASSES):
        began = time.perf_counter()
        for _ in range(TURNS):
            turn()
            await asyncio.sleep(0)
        best = min(best, time.perf_counter() - began)
    return best / TURNS * 1e6


async def measure(per_turn: int, *, profile: bool) -> None:
    rig = Rig()
    rig.trials["a"] = measured(10.0, row_us=1.0)
    object.__setattr__(rig.repository._loader, "open_session", InstantRuntime().open)
    await rig.serve(manifest(inputs=INPUTS, outputs=OUTPUTS))
    submit, sinks = rig.engine.submit, [Discard() for _ in range(per_turn)]
    idle = await timed(lambda: None)
    building = await timed(lambda: [build() for _ in sinks]) - idle
    whole = await timed(lambda: [submit(build(), sink, 0) for sink in sinks])
    engine = (whole - building - idle) / per_turn
    print(f"{per_turn:3} requests a turn: {engine:5.2f} µs each (request {building / per_turn:.2f}, turn {idle:.2f})")
    if profile:
        profiler = cProfile.Profile()
        profiler.enable()
        await timed(lambda: [submit(build(), sink, 0) for sink in sinks])
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    await rig.repository.close()


def copies(frame_bytes: int, frames: int = 8) -> None:
    """Measure frames joined into a new array each time, or into one that stays."""
    parts, slab = (
        [np.ones((1, frame_bytes), np.uint8) for _ in range(frames)],
        np.empty((frames, frame_bytes), np.uint8),
    )
    new, kept = (
        min(timeit.repeat(lambda out=out: np.concatenate(parts, out=out), number=20, repeat=PASSES)) / 20 * 1e6
        for out in (None, slab)
    )
    print(f"{frames} frames of {frame_bytes / 1e6:.2f} MB: {new:.0f} µs into a new array, {kept:.0f} µs into a slab")


if __name__ == "__main__":
    if "--copies" in sys.argv:
        for size in (150_528, 1_000_000, 2_764_800):
            copies(size)
        sys.exit()
    sizes = [int(text) for text in sys.argv[1:] if text.isdecimal()] or [1, 8, 32]
    for size in sizes:
        asyncio.run(measure(size, profile="--profile" in sys.argv))
