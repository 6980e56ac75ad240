"""A rollout's record without a database: facts in a list, a manual clock, the scheduler's tick."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.decisions import Decision, Offer, Retry
from fleet.controller.rollouts.facts import Approved, Created, Decided, Event, Fact, Joined, Reported, Started
from fleet.controller.rollouts.fold import fold
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.spec_form import read_spec, spec_digest
from fleet.controller.rollouts.state import Member, RolloutState

DIGEST, OTHER = "a" * 64, "b" * 64
MONDAY = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


def document(**changes: Any) -> dict[str, Any]:
    """Return a valid specification: no canary, 10 % and then all, no soak time."""
    return {
        "name": "readers-2",
        "slot": "meter-reader",
        "target": {"path": "models/acme/meter-reader/2/release", "size_bytes": 900, "sha256": DIGEST},
        "query": "all",
        "waves": [{"percent": 10}, {"percent": 100}],
        "soak_s": 0,
        "success": {"min_sample": 1, "min_percent": 90},
        "abort": {"min_sample": 5, "max_failed_percent": 10},
        "silence_s": 3600,
        "deadline_s": 86_400,
        **changes,
    }


def spec_of(**changes: Any) -> Spec:
    """Return the specification of `document`."""
    return read_spec(document(**changes))


class Record:
    """Record of a rollout. `facts` as in a database, `state` folded batch by batch, `now`: the controller's clock."""

    def __init__(self, spec: Spec, now: datetime = MONDAY) -> None:
        self.spec = spec
        self.now = now
        self.facts: list[Fact] = []
        self.state = RolloutState()

    def add(self, *events: Event) -> None:
        """Record events as the next facts."""
        first = len(self.facts) + 1
        facts = [Fact(seq, self.now, event) for seq, event in enumerate(events, first)]
        self.facts += facts
        self.state = fold(self.spec, facts, self.state)

    def start(self, devices: int | Iterable[Joined]) -> Record:
        """Approve and start the rollout with these devices."""
        self.add(Created("r-1", "ann"), Approved("ann", spec_digest(self.spec)), Started("ann"))
        self.join(devices)
        return self

    def join(self, devices: int | Iterable[Joined]) -> None:
        """Add devices; a number stands for generated names."""
        named = (Joined(f"d-{n}") for n in range(devices)) if isinstance(devices, int) else devices
        self.add(*named)

    def tick(self, seconds: float = 0) -> tuple[Decision, ...]:
        """Advance the clock, decide and record."""
        self.now += timedelta(seconds=seconds)
        decisions = decide(self.spec, self.state, self.now)
        self.add(*(Decided(decision) for decision in decisions))
        return decisions

    def report(self, device: str, state: str, release: str = DIGEST, attempt: int | None = None) -> None:
        """Record a device's report, by default for its present attempt."""
        number = self.member(device).attempt if attempt is None else attempt
        reason = "golden set failed" if state in {"rolled_back", "failed"} else ""
        self.add(Reported(device, state, release, number, reason))

    def member(self, device: str) -> Member:
        """Return the state of a device."""
        return self.state.members[device]


def offered(decisions: Iterable[Decision]) -> list[str]:
    """Return the devices that these decisions offer the release to."""
    return [decision.device for decision in decisions if isinstance(decision, (Offer, Retry))]
