"""State of the programs' own update, as a fact of the journal and as the report of a slot.

The installer's record is the truth of what happens after the request; what the agent sees of it is copied here, so that
the fleet is told of it like of any slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from gateway.domain.activation import Activation
from gateway.domain.software_choice import Tried
from gateway.domain.software_release import SLOT
from gateway.domain.software_update import Phase, SoftwareUpdate
from gateway.domain.update import ENDS, Failure, Step
from gateway.store.journal import Journal
from gateway.store.journal_rows import Update

FACT = "software"
"""Name of the fact."""
STEPS: Mapping[str, Step] = {
    "": Step.FETCH,
    Phase.BUILD.value: Step.LOAD,
    Phase.TEST.value: Step.LOAD,
    Phase.SWITCH.value: Step.PROBATION,
    Phase.PROBATION.value: Step.PROBATION,
    Phase.COMMIT.value: Step.COMMIT,
    Phase.DONE.value: Step.DONE,
    Phase.ROLL_BACK.value: Step.ROLL_BACK,
    Phase.ROLLED_BACK.value: Step.ROLLED_BACK,
}
"""Steps of a slot's update, by the installer's phase; "" before it was asked."""


@dataclass(frozen=True, slots=True)
class SoftwareState:
    """The last release that was begun, and how far it is. `committed`: path and digest of the last one that stayed.

    `phase`: the installer's, "" before it was asked. `failed_in`: the phase that was given up.
    """

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
    def wanted(self) -> bool:
        """Return whether its wheels are still needed."""
        return bool(self.release) and STEPS[self.phase] not in ENDS

    @property
    def asked(self) -> bool:
        """Return whether the installer was asked, or refused it."""
        return bool(self.phase)

    @property
    def tried(self) -> Tried | None:
        """Return what was begun last."""
        return Tried(self.release, self.attempt) if self.release else None

    @property
    def activation(self) -> Activation:
        """Return the release as a slot's."""
        return Activation(SLOT, self.target, self.release, (), self.evidence, self.root)

    def update(self) -> Update | None:
        """Return how far it is as the update of a slot; None where nothing was ever begun."""
        if not self.release:
            return None
        step = STEPS[self.phase]
        given_up = STEPS[self.failed_in] if self.failed_in else step
        failure = Failure(given_up, self.reason, {}) if self.reason else None
        began, changed = datetime.fromisoformat(self.began), datetime.fromisoformat(self.changed)
        return Update(self.activation, step, self.assignment, began, changed, failure, self.attempt)


def begun(
    before: SoftwareState, activation: Activation, now: datetime, *, assignment: int, attempt: int
) -> SoftwareState:
    """Return the state of a release that begins."""
    at = now.isoformat()
    return SoftwareState(
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


def refused(state: SoftwareState, reason: str, now: datetime) -> SoftwareState:
    """Return the state of a release that the installer does not take."""
    phase = Phase.ROLLED_BACK.value
    return replace(state, phase=phase, failed_in=Phase.BUILD.value, reason=reason, changed=now.isoformat())


def taken(state: SoftwareState, record: SoftwareUpdate, now: datetime) -> SoftwareState:
    """Return the state once the installer has taken the request."""
    return replace(state, phase=record.phase.value, changed=now.isoformat())


def followed(state: SoftwareState, record: SoftwareUpdate | None, now: datetime) -> SoftwareState:
    """Return the state as the installer's record has it; the same where that is of another release, or of a request
    before."""
    if record is None or record.release != state.release or state.phase in {"", record.phase.value}:
        return state
    failed_in = record.failed_in.value if record.failed_in else ""
    committed = (record.target, record.release) if record.phase is Phase.DONE else state.committed
    return replace(
        state,
        phase=record.phase.value,
        failed_in=failed_in,
        reason=record.reason,
        changed=now.isoformat(),
        committed=committed,
    )


def read_state(journal: Journal) -> SoftwareState:
    """Return what the journal holds; nothing where it cannot be read. Raises StoreError."""
    try:
        document: dict[str, Any] = json.loads(journal.fact(FACT) or "{}")
        committed = document.get("committed")
        texts = {name: str(document[name]) for name in ("target", "release", "began", "changed", "phase", "failed_in")}
        state = SoftwareState(
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
        return SoftwareState()
    return state


def keep_state(journal: Journal, state: SoftwareState) -> None:
    """Replace what the journal holds, where it changed. Raises StoreError."""
    text = json.dumps(asdict(state))
    if journal.fact(FACT) != text:
        journal.keep_facts({FACT: text})
