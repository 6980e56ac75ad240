"""Overload: many equal callers ask for more than the gateway can do: `python -m tests.attack.overload`.

Measures the capacity (16 callers, one after the other each), then lets 256 callers ask at four times that rate, each
with a connection of its own, then 16 again. The load runs in this process, the gateway in another.

examples:
  python -m tests.attack.overload
  python -m tests.attack.overload --callers 64 --factor 2 --seconds 3 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.attack.rig import Attack, target_of, victim

GRAPH = """(float[1,256] x) => (float[256,256] y)
    <int64[2] shape = {256, 256}, int64[2] square = {256, 256}> {
    a = Expand(x, shape) w = ConstantOfShape(square)
    b = MatMul(a, w) c = MatMul(b, w) d = MatMul(c, w) e = MatMul(d, w) y = Add(a, e)
}"""
QUEUE_REQUESTS = 64
CONFIG = f"[limits]\nqueue_requests = {QUEUE_REQUESTS}\n"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
REQUEST = pb.ModelInferRequest(
    model_name="work",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 256]}],
    raw_input_contents=[np.ones(256, np.float32).tobytes()],
).SerializeToString()
CALLERS_OF_CAPACITY = 16
DEADLINE_S = 30.0
PERCENTILE = 98


@dataclass(slots=True)
class Seen:
    """Answers of each caller, times of answered calls, refusals by status; seconds that it took."""

    answered: Counter[int] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answered.total() / self.seconds

    @property
    def p99_ms(self) -> float:
        """99th percentile of an answered call's time."""
        return quantiles(self.took_s, n=100)[PERCENTILE] * 1e3 if len(self.took_s) > 1 else 0.0

    def fairness(self, callers: int) -> float:
        """Jain's index of the answers that each caller got: 1 where all got as many (Jain, Chiu, Hawe 1984)."""
        counts = [self.answered[caller] for caller in range(callers)]
        return sum(counts) ** 2 / (callers * sum(count**2 for count in counts)) if any(counts) else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The three phases, and how many callers the second had."""

    before: Seen
    during: Seen
    after: Seen
    callers: int

    def figures(self) -> dict[str, Any]:
        """What the table shows."""
        return {
            "capacity_per_s": round(self.before.rate, 1),
            "answered_per_s": round(self.during.rate, 1),
            "share_of_capacity": round(self.during.rate / self.before.rate, 3),
            "p99_ms": round(self.during.p99_ms, 1),
            "p99_bound_ms": round(1e3 * (QUEUE_REQUESTS + 1) / self.before.rate, 1),
            "fairness": round(self.during.fairness(self.callers), 4),
            "refused": dict(self.during.refused),
            "recovered_share": round(self.after.rate / self.before.rate, 3),
        }


async def overload(address: str, callers: int, factor: float, seconds: float) -> Outcome:
    """Ask within capacity, beyond it, and within it again at once."""
    async with AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options)) for _ in range(callers)
        ]
        calls = [channel.unary_unary(METHOD) for channel in channels]
        few = calls[:CALLERS_OF_CAPACITY]
        await _phase(few, 0.0, 0.5)
        before = await _phase(few, 0.0, seconds)
        during = await _phase(calls, callers / (factor * before.rate), seconds)
        after = await _phase(few, 0.0, 1.0)
    return Outcome(before, during, after, callers)


async def _phase(calls: Sequence[Any], every_s: float, seconds: float) -> Seen:
    """Each caller asks once in `every_s`, whatever became of its other calls; 0: as soon as it was answered."""
    seen, began_s = Seen(), time.monotonic()
    ends_s = began_s + seconds
    asking = _one_by_one if not every_s else _at_a_rate
    await asyncio.gather(*(asking(index, call, every_s, ends_s, seen) for index, call in enumerate(calls)))
    seen.seconds = time.monotonic() - began_s
    return seen


async def _one_by_one(index: int, call: Any, every_s: float, ends_s: float, seen: Seen) -> None:
    while time.monotonic() < ends_s:
        await _ask(index, call, seen)


async def _at_a_rate(index: int, call: Any, every_s: float, ends_s: float, seen: Seen) -> None:
    next_s = time.monotonic() + every_s * (index * 0.618 % 1.0)
    async with asyncio.TaskGroup() as asked:
        while next_s < ends_s:
            await asyncio.sleep(next_s - time.monotonic())
            asked.create_task(_ask(index, call, seen))
            next_s += every_s


async def _ask(index: int, call: Any, seen: Seen) -> None:
    began_s = time.monotonic()
    try:
        await call(REQUEST, timeout=DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        seen.refused[error.code().name] += 1
    else:
        seen.answered[index] += 1
        seen.took_s.append(time.monotonic() - began_s)


def measured(folder: Path, callers: int, factor: float, seconds: float) -> Outcome:
    """Overload a daemon of its own."""
    with victim(Attack("", graphs={"work": GRAPH}, config=CONFIG), folder) as daemon:
        return asyncio.run(overload(target_of(daemon).grpc, callers, factor, seconds))


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=256, help="callers, a connection each")
    parser.add_argument("--factor", type=float, default=4.0, help="rate of all together, in multiples of the capacity")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a phase")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overload-") as folder:
        outcome = measured(Path(folder), arguments.callers, arguments.factor, arguments.seconds).figures()
    print(json.dumps(outcome) if arguments.json else "\n".join(f"{key:18} {value}" for key, value in outcome.items()))


if __name__ == "__main__":
    main()
