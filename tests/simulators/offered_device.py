"""A truthful but late device of a rolled fleet: assignments, installed release, and reports in a network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fleet.controller.config import FleetConfig
from fleet.controller.control.director import Director
from fleet.controller.control.director_published import Publications
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.control.reports import slot_report
from fleet.controller.control.rollouts_record import add
from fleet.controller.control.slot_ownership import answered
from fleet.controller.database import certificates
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.seen import LastSeenBuffer
from fleet.controller.rollouts.state import DeviceState
from fleet.publisher.keys import refuse_to_ask
from fleet.publisher.roles import DIRECTOR
from gateway.common.domain.assignment import Assignment
from gateway.common.trust.assignment import verify_assignment
from tests.simulators.rolled_fleet import SLOT, RolledFleet

CERTIFICATE_LIFE = timedelta(days=3650)


def director(fleet: RolledFleet) -> Director:
    """Return the controller's director over the fleet's database and publisher."""
    config = FleetConfig()
    known = Publications(fleet.repository.workspace, fleet.database, 0.0)
    settings = (config.director, config.publisher)
    keys = OnlineKeys(fleet.repository.workspace.keys, fleet.repository.keys[DIRECTOR], refuse_to_ask, 0.0)
    return Director(fleet.database, known, keys, settings, seen=LastSeenBuffer(config.database), counts=Counter())


@dataclass
class OfferedDevice:
    """Device. `network`: reports in transit, which arrive in any order, twice, or never."""

    fleet: RolledFleet
    name: str
    signing: Director
    assignment: Assignment | None = None
    committed: str = ""
    rejected: set[tuple[str, int]] = field(default_factory=set)
    network: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self.fleet.database.write() as connection:
            expires = self.fleet.now + CERTIFICATE_LIFE
            certificates.add(connection, Certificate(f"serial-{self.name}", self.name, self.fleet.now, expires))

    def poll(self) -> None:
        """Accept the assignment."""
        answer = self.signing.assigned(f"serial-{self.name}", self.fleet.now)
        targets = self.fleet.repository.published.targets
        assert answer.content
        assert targets
        self.assignment = verify_assignment(answer.content, targets.signed, device=self.name, now=self.fleet.now)

    def carry_out(self, *, passes: bool) -> None:
        """Commit the assigned release or roll it back, once per attempt."""
        target = self.assignment.slots.get(SLOT) if self.assignment else None
        if self.assignment is None or target is None or self.committed == target.sha256:
            return
        key = (target.sha256, self.assignment.attempt(SLOT))
        if not passes:
            self.rejected.add(key)
        elif key not in self.rejected:
            self.committed = target.sha256

    def report(self) -> None:
        """Report the slot's state, as gateway/device/agent/report/telemetry.py does."""
        target = self.assignment.slots.get(SLOT) if self.assignment else None
        if self.assignment is None or target is None:
            return
        attempt = self.assignment.attempt(SLOT)
        failed = (target.sha256, attempt) in self.rejected
        state = "rolled_back" if failed else "committed" if self.committed == target.sha256 else "offered"
        self.network.append(
            {
                "slot": SLOT,
                "state": state,
                "release": target.sha256,
                "assignment": self.assignment.version,
                "attempt": attempt,
                "committed": {"release": self.committed} if self.committed else None,
            }
        )

    def deliver(self, number: int, rollouts: list[str]) -> None:
        """Deliver one report. It stays in the network and may arrive again."""
        if not self.network:
            return
        found = slot_report(self.name, self.network[number % len(self.network)], self.fleet.now)
        assert found
        for rollout in rollouts:
            self._hear(rollout, [found.made] if found.made else [])

    def _hear(self, rollout: str, made: list[Any]) -> None:
        settings = self.fleet.database.settings
        with self.fleet.database.write() as connection:
            known = self.fleet.rolling.states.read(connection, rollout, settings, lock=True)
            taken = answered(connection, known, made) if self.name in known.state.members else []
            add(connection, known, taken, self.fleet.now, settings)

    def state(self, rollout: str) -> DeviceState | None:
        """Return the device's state in the rollout."""
        member = self.fleet.known(rollout).state.members.get(self.name)
        return member.state if member else None
