"""Cost of a peer's bytes in the gRPC server, by class, and what the server charges for them.

    python -m tests.performance.work [CLASS …]

Prints, for each class of `tests.simulators.http2_work`, processor time per 256 KiB read, the charge for them, and their
ratio. The constants of `gateway/serving/frontends/grpc_v2/http2/work.py` come from here.
"""

from __future__ import annotations

import asyncio
import sys

from tests.simulators.http2_work import CLASSES, Measured, measured

READ_BYTES = 256 * 1024
PASSES = 3


async def main() -> None:
    """Measure and print."""
    print(f"{'class':<34} {'ms per 256 KiB':>15} {'charged ms':>11} {'charge/cost':>12}")
    for name in sys.argv[1:] or CLASSES:
        passes: list[Measured] = [await measured(CLASSES[name]) for _ in range(PASSES)]
        found = min(passes, key=lambda each: each.cost_ns)
        scale = READ_BYTES / found.size
        cost_ms, charge_ms = found.cost_ns * scale / 1e6, found.charge_ns * scale / 1e6
        print(f"{name:<34} {cost_ms:>15.1f} {charge_ms:>11.1f} {charge_ms / cost_ms:>12.2f}")


if __name__ == "__main__":
    asyncio.run(main())
