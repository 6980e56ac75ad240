"""State of an update in a reserved slot, as a fact of the journal and as the report of a slot.

The programs and the settings are not updated by `installer`, but by the software installer and by the daemon. The agent
keeps their progress here and reports it as that of any slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT
from gateway.common.domain.python310 import from_iso
from gateway.common.domain.release_paths import parse_path
from gateway.common.domain.update import ENDS, Failure, Step, Tried
from gateway.device.domain.software_update import Phase, SoftwareUpdate, environment_name
from gateway.device.store.journal import Journal
from gateway.device.store.journal_rows import Update

FACTS: Mapping[str, str] = {SOFTWARE_SLOT: "software", SETTINGS_SLOT: "settings"}
"""Name of the fact by slot."""
STEPS: Mapping[str, Mapping[str, Step]] = {
    SOFTWARE_SLOT: {
        "": Step.FETCH,
        Phase.BUILD.value: Step.LOAD,
        Phase.TEST.value: Step.LOAD,
        Phase.SWITCH.value: Step.PROBATION,
        Phase.PROBATION.value: Step.PROBATION,
        Phase.COMMIT.value: Step.COMMIT,
        Phase.DONE.value: Step.DONE,
        Phase.ROLL_BACK.value: Step.ROLL_BACK,
        Phase.ROLLED_BACK.value: Step.ROLLED_BACK,
    },
    SETTINGS_SLOT: {"": Step.LOAD, **{step.value: step for step in Step}},
}
"""Steps of the slot's update by its phases; "" is the phase before the software installer, or the daemon, was asked."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """The last release that was begun, and its progress. `committed`: path and digest of the last one that stayed.

    `phase`: a key of `STEPS[slot]`. `failed_in`: the phase that was given up.
    """

    slot: str
    target: str = ""
    release: str = ""
    evidence: tuple[str, ...] = ()
    root: int = 1
    attempt: int = 0
    assignment: int = 0
    began: str = ""
    changed: str = ""
    phase: str = ""
    failed_in: str = ""
    reason: str = ""
    committed: tuple[str, str] | None = None

    @property
    def step(self) -> Step:
        """Return the step of the update."""
        return STEPS[self.slot][self.phase]

    @property
    def wanted(self) -> bool:
        """Return whether an update is under way, which needs its files."""
        return bool(self.release) and self.step not in ENDS

    @property
    def asked(self) -> bool:
        """Return whether the software installer, or the daemon, was asked or refused it."""
        return bool(self.phase)

    @property
    def tried(self) -> Tried | None:
        """Return what was begun last."""
        return Tried(self.release, self.attempt) if self.release else None

    @property
    def activation(self) -> Activation:
        """Return the release as a slot's."""
        return Activation(self.slot, self.target, self.release, (), self.evidence, self.root)

    def update(self) -> Update | None:
        """Return the progress as the update of a slot; None if nothing was ever begun."""
        if not self.release:
            return None
        given_up = STEPS[self.slot][self.failed_in] if self.failed_in else self.step
        failure = Failure(given_up, self.reason, {}) if self.reason else None
        began, changed = from_iso(self.began), from_iso(self.changed)
        return Update(self.activation, self.step, self.assignment, began, changed, failure, self.attempt)


def begun(before: SlotState, activation: Activation, now: datetime, *, assignment: int, attempt: int) -> SlotState:
    """Return the state of a release that begins."""
    at = now.isoformat()
    return SlotState(
        activation.slot,
        activation.target,
        activation.release,
        activation.evidence,
        activation.root,
        attempt,
        assignment,
        at,
        at,
        committed=before.committed,
    )


def moved(state: SlotState, phase: str, now: datetime) -> SlotState:
    """Return the state in another phase; the release is committed with the phase that ends well."""
    committed = (state.target, state.release) if STEPS[state.slot][phase] is Step.DONE else state.committed
    return replace(state, phase=phase, changed=now.isoformat(), committed=committed)


def failed(state: SlotState, failed_in: str, reason: str, now: datetime) -> SlotState:
    """Return the state of a release that was taken back, or refused, in a phase."""
    phase = Step.ROLLED_BACK.value
    return replace(state, phase=phase, failed_in=failed_in, reason=reason, changed=now.isoformat())


def read_state(journal: Journal, slot: str) -> SlotState:
    """Return what the journal holds of a slot; nothing if it cannot be read. Raises StoreError."""
    try:
        document: dict[str, Any] = json.loads(journal.fact(FACTS[slot]) or "{}")
        committed = document.get("committed")
        texts = {name: str(document[name]) for name in ("target", "release", "began", "changed", "phase", "failed_in")}
        state = SlotState(
            slot,
            **texts,
            reason=str(document["reason"]),
            evidence=tuple(map(str, document["evidence"])),
            root=int(document["root"]),
            attempt=int(document["attempt"]),
            assignment=int(document["assignment"]),
            committed=(str(committed[0]), str(committed[1])) if committed else None,
        )
        state.update()
    except (ValueError, KeyError, TypeError, AttributeError):
        return SlotState(slot)
    return state


def keep_state(journal: Journal, state: SlotState) -> None:
    """Replace what the journal holds, if it changed. Raises StoreError."""
    text, name = json.dumps(asdict(state)), FACTS[state.slot]
    if journal.fact(name) != text:
        journal.keep_facts({name: text})


def followed(state: SlotState, record: SoftwareUpdate | None, now: datetime) -> SlotState:
    """Return the state by the installer's record; the same if that is of another release, or of an earlier request."""
    if record is None or record.release != state.release or state.phase in {"", record.phase.value}:
        return state
    failed_in = record.failed_in.value if record.failed_in else ""
    return replace(moved(state, record.phase.value, now), failed_in=failed_in, reason=record.reason)


def seen_running(state: SlotState, running: str, now: datetime) -> SlotState:
    """Return the state by the environment of this process: an operator may have put another version there."""
    if state.wanted or state.committed is None:
        return state
    target, release = state.committed
    if running == environment_name(parse_path(target).version, release):
        return state
    if release != state.release:
        return replace(state, committed=None)
    reason = "another version was put in its place by hand"
    return failed(replace(state, committed=None), Phase.PROBATION.value, reason, now)
