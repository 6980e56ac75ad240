"""Cost of a run, measured by the trial and corrected by later runs, and the thread that it selects. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ROWS, ModelManifest
from gateway.common.domain.verdict import Verdict

SAMPLE_SHIFT = 3
"""Shift of a new sample's weight, an eighth: eight runs are more reliable than one that was interrupted."""
SAMPLE_LIMITS = 4
"""Most multiples of the limit that a sample counts: one run preempted for long does not move its form to the worker."""
STACKING_BYTES_PER_NS = 5
"""Assumed speed of stacking rows, on the safe side (`tests/performance/engine.py --copies`)."""
COSTLY_LIMITS = 2
"""Multiple of the limit above which a run moves to the worker. It returns below the limit: that avoids oscillation."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one model on this device.

    `run_ns`, `row_ns`: duration of a run of one row, and of a row in a batch (0: not known). `limit_ns`: limit below
    which a run happens on the event loop (0: never). `worker_rows`, `loop_rows`: rows that one run may join on the
    worker and on the event loop.
    """

    run_ns: int = 0
    row_ns: int = 0
    limit_ns: int = 0
    worker_rows: int = 1
    loop_rows: int = 1

    def off_loop(self) -> Cost:
        """Return the cost of a model that runs on its worker only."""
        return replace(self, limit_ns=0)

    def apart(self) -> Cost:
        """Return the cost of a model whose requests are not joined."""
        return replace(self, worker_rows=1, loop_rows=1)

    def expected_ns(self, rows: int) -> int:
        """Return the expected duration of a run of `rows` rows."""
        return max(self.run_ns, rows * (self.row_ns or self.run_ns))

    def stacking_pays(self, row_bytes: int) -> bool:
        """Return True if copying a row of that many bytes into a batch costs less than the batch saves.

        The trial's batch was stacked before. Its gain alone would join camera frames at a loss.
        """
        return row_bytes < (self.run_ns - self.row_ns) * STACKING_BYTES_PER_NS

    def learned_ns(self, known_ns: int, ran_ns: int) -> int:
        """Return the known cost after one more run."""
        most_ns = SAMPLE_LIMITS * self.limit_ns
        return known_ns + ((min(most_ns, ran_ns)) - known_ns >> SAMPLE_SHIFT)

    def too_costly(self, known_ns: int, *, before: bool) -> bool:
        """Return True if such a run belongs on the worker. `before`: it did until now."""
        return known_ns > self.limit_ns * (1 if before else COSTLY_LIMITS)


def estimate_cost(
    verdict: Verdict | None,
    accelerator: str,
    *,
    joins: bool,
    inline_limit_us: int,
    batch_rows: int,
    batch_gain: float,
) -> Cost:
    """Return the cost of a variant from its trial.

    Requests are joined if `joins` and if the trial measured that it pays. They run on the event loop under two
    conditions: one row on the CPU was measured below the limit, and the duration of a run cannot grow beyond it.
    """
    measured = verdict.measured if verdict else None
    if verdict is None or measured is None:
        return Cost()
    run_ns, row_ns = int(measured.run_us * 1e3), int(measured.batch_row_us * 1e3)
    pays = joins and row_ns > 0 and run_ns >= row_ns * batch_gain
    bounded = accelerator == CPU and not verdict.unbounded and run_ns <= inline_limit_us * 1000
    limit_ns = inline_limit_us * 1000 if bounded else 0
    return Cost(
        run_ns=run_ns,
        row_ns=row_ns,
        limit_ns=limit_ns,
        worker_rows=batch_rows if pays else 1,
        loop_rows=max(1, min(batch_rows, limit_ns // row_ns)) if pays else 1,
    )


def of_one_shape(manifest: ModelManifest) -> bool:
    """Return True if requests differ in rows only, so that the trial has measured them all."""
    inner = (spec.shape[1:] if manifest.batched else spec.shape for spec in manifest.inputs)
    return all(ROWS not in shape for shape in inner)
