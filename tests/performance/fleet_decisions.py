"""Cost of decisions and reports, by how many devices a rollout has.

`python -m tests.performance.fleet_decisions [DEVICES …]`: the leader decides; any replica takes a report in. Pure: no
database, no network.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.decisions import Offer, OpenWave
from fleet.controller.rollouts.facts import Approved, Created, Decided, Event, Fact, Joined, Reported, Started
from fleet.controller.rollouts.fold import fold
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.spec_form import read_spec, spec_digest
from fleet.controller.rollouts.state import RolloutState

NOW = datetime(2027, 1, 1, tzinfo=UTC)
DIGEST = "ab" * 32
REPORTS = 20


def specification() -> Spec:
    """Return a spec with one wave of all devices."""
    document = {
        "name": "meter-reader-2",
        "slot": "meter-reader",
        "target": {"path": "models/acme/meter-reader/2/release", "size_bytes": 900, "sha256": DIGEST},
        "query": "all",
        "waves": [{"percent": 100}],
        "success": {"min_sample": 1, "min_percent": 90},
        "abort": {"min_sample": 100, "max_failed_percent": 5},
    }
    return read_spec(document, "the measurement")


def spent_ms(work: Callable[[], object]) -> float:
    """Return the processor time of `work`."""
    began = time.process_time()
    work()
    return 1000.0 * (time.process_time() - began)


def offered(spec: Spec, devices: int) -> RolloutState:
    """Return a state in which every device is in the wave, and was offered the release."""
    names = [f"device-{number:07}" for number in range(devices)]
    events: list[Event] = [Created("r", "ann"), Approved("ann", spec_digest(spec)), Started("ann")]
    events += [Joined(name, ("cpu",)) for name in names]
    events += [Decided(OpenWave(1)), *(Decided(Offer(name, 1, 1)) for name in names)]
    return fold(spec, (Fact(seq, NOW, event) for seq, event in enumerate(events, 1)))


def measured(devices: int) -> dict[str, float]:
    """Return milliseconds, and bytes a device takes in memory."""
    spec = specification()
    tracemalloc.start()
    state = offered(spec, devices)
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    def report() -> None:
        after, at = state, NOW + timedelta(seconds=1)
        for number in range(REPORTS):
            said = Reported(f"device-{number:07}", "downloading", DIGEST, 1)
            after = fold(spec, [Fact(after.seq + 1, at, said)], after)

    return {
        "all_facts_ms": spent_ms(lambda: offered(spec, devices)),
        "decide_ms": spent_ms(lambda: decide(spec, state, NOW + timedelta(seconds=2))),
        "report_ms": spent_ms(report) / REPORTS,
        "device_bytes": held_bytes / devices,
    }


def main(counts: Sequence[int]) -> None:
    """Print a line for each count."""
    for count in counts:
        found = measured(count)
        print(
            f"{count:9,} devices: a look at all {found['decide_ms']:8.1f} ms, a report {found['report_ms']:7.3f} ms, "
            f"all facts anew {found['all_facts_ms'] / 1000:6.2f} s, {found['device_bytes']:.0f} bytes a device",
            flush=True,
        )


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1_000, 10_000, 100_000])
