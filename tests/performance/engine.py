"""Cost of the engine itself per tiny request: submit → plan → gather → (no run) → scatter → answer.

    python tests/performance/engine.py [REQUESTS_PER_TURN …] [--pipelines]

The session answers at once from arrays made before. Building the request and the loop's own turn are measured apart
and subtracted. With --pipelines, the same requests go through pipelines of that model. With --profile, the functions
that take longest are listed. With --copies, the cost of stacking inputs is measured, into a new array and into a slab
that is kept.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
import timeit
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Datatype, Tensor, Tensors
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from gateway.serving.domain.ports import Session
from tests.simulators.engine_rig import Rig, manifest, measured, release

COLUMNS, TURNS, PASSES = 64, 2000, 7
STEPS = (1, 2, 4, 8)
ROW = np.zeros((1, COLUMNS), np.float32)
INPUTS = (TensorSpec("x", Datatype.FP32, (-1, COLUMNS)),)
OUTPUTS = (TensorSpec("y", Datatype.FP32, (-1, 4)),)


class Instant:
    """A session that costs nothing."""

    lends, in_parts, rows = False, False, None
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


async def chains(per_turn: int) -> None:
    """Measure requests through pipelines, with the request itself and the turns of the loop."""
    rig = Rig()
    rig.trials["a"] = measured(10.0, row_us=1.0)
    object.__setattr__(rig.repository._loader, "open_session", InstantRuntime().open)
    head = f'schema = 1\nversion = "1"\nname = "{{}}"\n[input]\nx = "FP32[{COLUMNS}]"\n'
    releases = [release(manifest(inputs=INPUTS, outputs=OUTPUTS))]
    for kind, count in product("pc", STEPS):
        steps = ""
        for n in range(count):
            steps += f'[[step]]\nname = "s{n}"\nmodel = "m"\nof = "x"\n'
            steps += f'when = "s{n - 1}.y[0] < 1"\nelse = "s{n - 1}"\n' if n and kind == "c" else ""
        text = f'{head.format(f"{kind}{count}")}{steps}[output]\ny = "s{count - 1}.y"\n'
        declared = read_pipeline(text, "pipeline.toml")
        releases.append(Release(declared.name, "1", Path("/p"), declared.name, pipeline=declared))
    await rig.repository.synchronise(releases)
    answered, all_there = 0, asyncio.Event()

    class Counted(Discard):
        def answer(self, token: Any, response: object) -> None:
            nonlocal answered
            answered += 1
            if answered == per_turn:
                all_there.set()

    sink, found = Counted(), dict[str, float]()
    for name in ("m", *(f"{kind}{count}" for kind, count in product("pc", STEPS))):
        best = float("inf")
        for _ in range(PASSES):
            began = time.thread_time()
            for _ in range(TURNS // 10):
                answered = 0
                all_there.clear()
                for _ in range(per_turn):
                    request = InferRequest(name, {"x": Tensor(Datatype.FP32, ROW)}, outputs=(RequestedOutput("y"),))
                    rig.engine.submit(request, sink, 0)
                await all_there.wait()
            best = min(best, (time.thread_time() - began) / (TURNS // 10) / per_turn * 1e6)
        found[name] = best
    print(f"{per_turn:3} requests a turn, CPU µs each: direct {found['m']:.1f}")
    for kind, words in (("p", "steps side by side"), ("c", "steps in a row, each with a condition")):
        print(f"    {words}: " + ", ".join(f"{count}: {found[f'{kind}{count}']:.1f}" for count in STEPS))
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
        asyncio.run(chains(size) if "--pipelines" in sys.argv else measure(size, profile="--profile" in sys.argv))
