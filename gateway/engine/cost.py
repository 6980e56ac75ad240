"""What a run costs, as the trial measured it and as runs since then showed, and where it runs therefore. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.domain.inventory import CPU
from gateway.domain.manifest import ROWS, ModelManifest
from gateway.domain.verdict import Verdict

SAMPLE_SHIFT = 3
"""A new sample counts for an eighth: eight runs tell more than one that was interrupted."""
SAMPLE_LIMITS = 4
"""A sample counts for at most four limits, so that one run preempted for long does not move its kind to the worker."""
STACKING_BYTES_PER_NS = 5
"""How fast rows are taken to be copied together, on the safe side (`tests/performance/engine.py --copies`)."""
COSTLY_LIMITS = 2
"""What costs more than two limits goes to the worker, and comes back below one: nothing flaps between the two."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One model on this device: a run of one row and a row in a batch (0: not known), the limit below which a run
    happens on the event loop (0: never), the rows that one run may join on the worker and on the loop."""

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
        """Return what a run of `rows` rows should take."""
        return max(self.run_ns, rows * (self.row_ns or self.run_ns))

    def stacking_pays(self, row_bytes: int) -> bool:
        """Whether copying a row of so many bytes beside others costs less than running it there saves. The trial's
        batch lay stacked already, so that its gain alone would join camera frames at a loss."""
        return row_bytes < (self.run_ns - self.row_ns) * STACKING_BYTES_PER_NS

    def learned_ns(self, known_ns: int, ran_ns: int) -> int:
        """What is known after one more run."""
        return known_ns + (min(ran_ns, SAMPLE_LIMITS * self.limit_ns) - known_ns >> SAMPLE_SHIFT)

    def too_costly(self, known_ns: int, *, before: bool) -> bool:
        """Whether such a run is the worker's; `before` is what it was so far."""
        return known_ns > self.limit_ns * (1 if before else COSTLY_LIMITS)


def judge(
    verdict: Verdict | None,
    accelerator: str,
    *,
    joins: bool,
    inline_limit_us: int,
    batch_rows: int,
    batch_gain: float,
) -> Cost:
    """Return the cost of a variant from its trial.

    Requests are joined where `joins` and the trial measured that it pays. They run on the event loop only where one row
    on the CPU was measured to stay below the limit and the time of a run cannot grow beyond it.
    """
    measured = verdict.measured if verdict else None
    if verdict is None or measured is None:
        return Cost()
    run_ns, row_ns = int(measured.p50_us * 1e3), int(measured.row_us * 1e3)
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
    """Return whether requests differ in rows only, so that the trial has measured them all."""
    inner = (spec.shape[1:] if manifest.batched else spec.shape for spec in manifest.inputs)
    return all(ROWS not in shape for shape in inner)
