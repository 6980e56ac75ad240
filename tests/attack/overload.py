"""Overload by many equal callers: `python -m tests.attack.overload`.

Measures the capacity with 16 callers that send one request after another. Then 256 callers, each with a token and a
connection of its own, ask at four times that rate; then 16 again. The gateway has one processor core, the load another.

examples:
  python -m tests.attack.overload
  python -m tests.attack.overload --callers 64 --factor 2 --seconds 3 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.attack.callers import Caller, Seen, connect
from tests.attack.rig import Attack, target_of, victim

GRAPH = """(float[1,256] x) => (float[1,256] y)
    <int64[2] shape = {256, 256}, int64[2] square = {256, 256}> {
    a = Expand(x, shape) w = ConstantOfShape(square)
    b = MatMul(a, w) c = MatMul(b, w) d = MatMul(c, w) e = MatMul(d, w) f = Add(a, e)
    y = ReduceMean <axes = [0]> (f)
}"""
QUEUE_REQUESTS = 64
CONFIG = "[limits]\nqueue_requests = {queue}\n[auth]\ntokens_file = '{tokens}'\n"
REQUEST = pb.ModelInferRequest(
    model_name="work",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 256]}],
    raw_input_contents=[np.ones(256, np.float32).tobytes()],
).SerializeToString()
CALLERS_OF_CAPACITY = 16
WARM_UP_S, AFTER_S = 1.0, 1.0
PERCENTILE = 98
SPREAD = 0.618
"""Golden ratio: its multiples, modulo 1, spread the callers' first requests evenly over a period."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Calls of one phase: answers per caller, their durations in seconds, refusals, and the length of the phase."""

    answered: Sequence[int]
    took_s: Sequence[float]
    refused: int
    seconds: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return sum(self.answered) / self.seconds

    @property
    def p99_ms(self) -> float:
        """99th percentile of the duration of answered calls."""
        return quantiles(self.took_s, n=100)[PERCENTILE] * 1e3 if len(self.took_s) > 1 else 0.0

    @property
    def fairness(self) -> float:
        """Jain's index of the answers per caller: 1 if all are equal (Jain, Chiu, Hawe 1984)."""
        total, squares = sum(self.answered), sum(count**2 for count in self.answered)
        return total**2 / (len(self.answered) * squares) if total else 0.0

    @property
    def fairness_by_chance(self) -> float:
        """The expected index if every request is answered with the same probability (binomial counts)."""
        total = sum(self.answered)
        return 1 / (1 + self.refused / (total + self.refused) / (total / len(self.answered)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The three phases."""

    before: Phase
    during: Phase
    after: Phase

    def figures(self) -> dict[str, Any]:
        """Return the figures of the table."""
        return {
            "capacity_per_s": round(self.before.rate, 1),
            "answered_per_s": round(self.during.rate, 1),
            "share_of_capacity": round(self.during.rate / self.before.rate, 3),
            "p99_ms": round(self.during.p99_ms, 1),
            "p99_bound_ms": round(1e3 * (QUEUE_REQUESTS + 1) / self.before.rate, 1),
            "fairness": round(self.during.fairness, 4),
            "fairness_by_chance": round(self.during.fairness_by_chance, 4),
            "refused_per_s": round(self.during.refused / self.during.seconds, 1),
            "recovered_share": round(self.after.rate / self.before.rate, 3),
        }


async def overload(address: str, callers: int, factor: float, seconds: float) -> Outcome:
    """Send requests within capacity, above it, and within it again immediately."""
    everyone = await connect(address, REQUEST, [_secret(index) for index in range(callers)])
    few = everyone[:CALLERS_OF_CAPACITY]
    try:
        await _phase(few, 0.0, WARM_UP_S)
        before = await _phase(few, 0.0, seconds)
        during = await _phase(everyone, callers / (factor * before.rate), seconds)
        after = await _phase(few, 0.0, AFTER_S)
    finally:
        for caller in everyone:
            caller.close()
    return Outcome(before, during, after)


async def _phase(callers: Sequence[Caller], every_s: float, seconds: float) -> Phase:
    """Let each caller send one request per `every_s`, independent of its other calls; 0: after each answer."""
    for caller in callers:
        caller.seen = Seen()
    began_s = time.monotonic()
    asking = [_ask(index, caller, every_s, began_s + seconds) for index, caller in enumerate(callers)]
    await asyncio.gather(*asking)
    seen, took_s = [caller.seen for caller in callers], time.monotonic() - began_s
    times_s = [one for each in seen for one in each.took_s]
    return Phase([each.answered for each in seen], times_s, sum(each.refused for each in seen), took_s)


async def _ask(index: int, caller: Caller, every_s: float, ends_s: float) -> None:
    next_s = time.monotonic() + every_s * (index * SPREAD % 1.0)
    while next_s < ends_s:
        await asyncio.sleep(next_s - time.monotonic())
        caller.ask()
        if not every_s:
            await caller.free.wait()
        next_s = next_s + every_s if every_s else time.monotonic()
    await caller.free.wait()


def measured(folder: Path, callers: int, factor: float, seconds: float) -> Outcome:
    """Overload a separate daemon."""
    (folder / "tokens").write_text("".join(f"caller-{index} {_secret(index)}\n" for index in range(callers)))
    config = CONFIG.format(queue=QUEUE_REQUESTS, tokens=folder / "tokens")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])  # the daemon inherits it
    with victim(Attack("", graphs={"work": GRAPH}, config=config), folder) as daemon:
        os.sched_setaffinity(0, cores[-1:])
        return asyncio.run(overload(target_of(daemon).grpc, callers, factor, seconds))


def _secret(index: int) -> str:
    return f"secret-of-caller-{index}"


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=256, help="callers, a connection each")
    parser.add_argument("--factor", type=float, default=4.0, help="rate of all together, in multiples of the capacity")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a phase")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overload-") as folder:
        outcome = measured(Path(folder), arguments.callers, arguments.factor, arguments.seconds).figures()
    print(json.dumps(outcome) if arguments.json else "\n".join(f"{key:18} {value}" for key, value in outcome.items()))


if __name__ == "__main__":
    main()
