"""State of a simulated device: what it runs, what it was offered, and what it reports. No I/O.

Reports have the form of `edge-agent`'s telemetry. A lying device reports a commit with a release that was not assigned
to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway import __version__
from gateway.common.domain.assignment import RESERVED_SLOTS, Assignment, Target
from gateway.common.trust.paths import release_path
from tests.load.casting import Behaviour, Character, inventory
from tests.load.spool import SimulatedSpool

EVIDENCE: Mapping[str, float | int | str] = {"failed_runs": 3, "requests": 40}
REASON = "3 of 40 runs failed"
UNDER_WAY = frozenset({"offered", "downloading", "probation"})
ELSE = hashlib.sha256(b"not assigned").hexdigest()
"""Digest of what a lying device runs."""


@dataclass(slots=True)
class SimulatedSlot:
    """A model on the device.

    `state` in the fleet's terms; `attempt`: of the current offer; `began`: when `target` was offered; `rejected`: what
    was rolled back here.
    """

    target: Target
    began: datetime
    state: str = "offered"
    attempt: int = 0
    committed: Target | None = None
    previous: Target | None = None
    rejected: Target | None = None


class SimulatedDevice:
    """State of one device. `name` is the controller's name of it, "" before enrolment."""

    def __init__(self, character: Character, boot_epoch: int) -> None:
        self.character, self.part = character, character.part
        self.name = ""
        self.spool = SimulatedSpool(boot_epoch)
        self.slots: dict[str, SimulatedSlot] = {}
        self.assignment: Assignment | None = None
        self.etag, self.digest = "", ""
        self.polls = 0
        self._told: dict[str, str] = {}

    # ---- assignments -------------------------------------------------------------------------------------------------
    def believe(self, assignment: Assignment, content: bytes, etag: str, now: datetime) -> None:
        """Apply a verified assignment: a changed release becomes an offer, a removed model goes at once."""
        self.assignment, self.digest, self.etag = assignment, hashlib.sha256(content).hexdigest(), etag
        attempts = assignment.extra.get("attempts")
        numbers: Mapping[str, Any] = attempts if isinstance(attempts, dict) else {}
        for name, target in assignment.slots.items():
            attempt = int(numbers.get(name, 0))
            if name in self.slots:
                self._offer(self.slots[name], target, attempt, now)
            else:
                self.slots[name] = SimulatedSlot(target, now, attempt=attempt)
        for name in [name for name in self.slots if name not in assignment.slots]:
            committed = self.slots[name].committed
            if committed is None or name in assignment.removed:
                del self.slots[name]
                self._keep_state(f"slot {name}", "slot", {"slot": name, "state": "gone"}, now)
            else:
                self._offer(self.slots[name], committed, 0, now)

    def _offer(self, slot: SimulatedSlot, target: Target, attempt: int, now: datetime) -> None:
        again = slot.rejected == target and attempt > slot.attempt
        slot.attempt = attempt
        if slot.target != target or again:
            slot.target, slot.began, slot.rejected = target, now, None
            slot.state = "committed" if slot.committed == target else "offered"

    def due(self) -> tuple[str, ...]:
        """Return the slots whose update has not ended."""
        return tuple(name for name, slot in self.slots.items() if slot.state in UNDER_WAY)

    def restore(self, committed: Mapping[str, Sequence[Any]], now: datetime) -> None:
        """Restore what it ran in an earlier simulation: path, size and digest by slot."""
        for name, (path, size_bytes, digest) in committed.items():
            target = Target(path, size_bytes, digest)
            self.slots[name] = SimulatedSlot(target, now, "committed", committed=target)

    @property
    def offered(self) -> bool:
        """Return whether anything was ever assigned to it."""
        return bool(self.slots)

    def step(self, name: str, state: str, now: datetime) -> None:
        """Advance an update: `downloading`, `probation`, then `committed` or `rolled_back`."""
        slot = self.slots[name]
        slot.state = state
        if state == "committed":
            slot.previous, slot.committed = slot.committed, slot.target
        if state == "rolled_back":
            slot.rejected = slot.target
        if state in {"committed", "rolled_back"}:
            self._end(name, slot, now)
        self.tell_state(now)

    @property
    def verdict(self) -> str:
        """The outcome of every update on this device."""
        return "rolled_back" if self.part is Behaviour.FAILING else "committed"

    def _end(self, name: str, slot: SimulatedSlot, now: datetime) -> None:
        failed = slot.state == "rolled_back"
        failure = {"step": "probation", "reason": REASON, "evidence": dict(EVIDENCE)}
        document = {
            "key": hashlib.sha256(f"{self.name} {name} {slot.target.sha256} {slot.began}".encode()).hexdigest(),
            "slot": name,
            "target": slot.target.path,
            "version": release_path(slot.target.path).version,
            "step": "rolled-back" if failed else "done",
            "state": slot.state,
            "assignment": self.assignment.version if self.assignment else None,
            "attempt": slot.attempt,
            "began": slot.began.isoformat(),
            "changed": now.isoformat(),
            "failure": failure if failed else None,
            "release": self._runs(slot.target),
        }
        self.spool.keep("updates", "update", "evidence", now, document)

    # ---- reports -----------------------------------------------------------------------------------------------------
    def tell_state(self, now: datetime) -> None:
        """Report the device and its slots, if they changed since the last report."""
        self._keep_state("device", "device", self._device(), now)
        for name, slot in self.slots.items():
            self._keep_state(f"slot {name}", "slot", self._slot(name, slot), now)

    def tell_numbers(self, now: datetime) -> None:
        """Report vitals and the statistics of each slot."""
        for name, slot in self.slots.items():
            if slot.committed and name not in RESERVED_SLOTS:
                self.spool.keep("statistics", "model", "statistics", now, self._statistics(name, slot.committed))
        self.spool.keep("vitals", "vitals", "vitals", now, self._vitals())

    def _keep_state(self, name: str, kind: str, document: Mapping[str, Any], now: datetime) -> None:
        text = json.dumps({**document, "assignment": None}, sort_keys=True)  # a new version alone is no change
        if self._told.get(name) != text:
            self._told[name] = text
            self.spool.keep("state", kind, "state", now, document)

    def _runs(self, target: Target) -> str:
        return ELSE if self.part is Behaviour.LYING else target.sha256

    def _slot(self, name: str, slot: SimulatedSlot) -> dict[str, Any]:
        return {
            "slot": name,
            "state": slot.state,
            "target": slot.target.path,
            "release": slot.target.sha256,
            "assignment": self.assignment.version if self.assignment else None,
            "attempt": slot.attempt,
            "committed": self._activation(slot.committed),
            "previous": self._activation(slot.previous),
            "waits_for": None,
            "rejected": REASON if slot.rejected else None,
            "held": None,
            "step": {"downloading": "fetch", "probation": "probation"}.get(slot.state),
            "serving": [self._serving(slot.committed)] if slot.committed and name not in RESERVED_SLOTS else [],
        }

    def _activation(self, target: Target | None) -> dict[str, Any] | None:
        if target is None:
            return None
        version = release_path(target.path).version
        return {"target": target.path, "version": version, "release": self._runs(target), "variants": ["only"]}

    def _serving(self, target: Target) -> dict[str, Any]:
        kinds = self.character.hardware.accelerators
        return {
            "version": release_path(target.path).version,
            "variant": "only",
            "accelerator": kinds[0] if kinds else "cpu",
            "state": "ready",
            "signed": True,
            "weight": 100,
        }

    def _device(self) -> dict[str, Any]:
        behind = [name for name, slot in self.slots.items() if slot.state == "rolled_back"]
        return {
            "state": "behind" if behind else "in-step",
            "why": f"{behind[0]} does not run what is assigned: {REASON}" if behind else "",
            "profile": self.character.hardware.profile,
            "versions": {"agent": __version__, "gateway": __version__, "python": "3.11.2", "kernel": "6.1.0"},
            "inventory": inventory_digest(self.character),
            "problem": None,
            "files": [],
        }

    def _statistics(self, name: str, target: Target) -> dict[str, Any]:
        asked = 3000 * self.polls
        return {
            "model": name,
            "version": release_path(target.path).version,
            "signed": True,
            "weight": 100,
            "requests": asked,
            "executions": asked,
            "failed_runs": 0,
            "latency_ns": asked * 4_000_000,
            "latency_counts": [0, asked // 2, asked - asked // 2, 0],
            "latency_bounds_ns": [1_000_000, 4_000_000, 16_000_000],
            "infer_ns": asked * 3_500_000,
            "compared": 0,
            "disagreed": 0,
        }

    def _vitals(self) -> dict[str, Any]:
        warm = 45.0 + (self.character.number * 7 + self.polls) % 20
        return {
            "temperatures_c": {"cpu": warm},
            "power_watts": {"board": 5.5},
            "throttled": False,
            "memory_available_bytes": self.character.hardware.memory_bytes // 2,
            "gateway": self.name,
            "rss_bytes": 150_000_000,
            "store_bytes": 20_000_000,
            "spool": {"records": len(self.spool), "gaps": 0, "size_bytes": 400 * len(self.spool)},
        }


def inventory_digest(character: Character) -> str:
    """Return the inventory's digest as the agent computes it."""
    return hashlib.sha256(json.dumps(inventory(character), sort_keys=True).encode()).hexdigest()
