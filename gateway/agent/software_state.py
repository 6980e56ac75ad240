"""State of the programs' own update, as a fact of the journal and as the report of a slot.

After the request, the installer's record is the authority. The agent copies it here, so that the fleet gets a report as
for any slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from gateway.domain.activation import Activation
from gateway.domain.release_paths import parse_path
from gateway.domain.software_choice import Tried
from gateway.domain.software_release import SLOT
from gateway.domain.software_update import Phase, SoftwareUpdate, environment_name
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
"""Steps of a slot's update, by the installer's phase; "" before the request."""


@dataclass(frozen=True, slots=True)
class SoftwareState:
    """Last release that was begun, and its progress.

    `committed`: path and digest of the last release that stayed. `phase`: the installer's, "" before the request.
    `failed_in`: the phase that failed.
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
        """True if its wheels are still needed."""
        return bool(self.release) and STEPS[self.phase] not in ENDS

    @property
    def asked(self) -> bool:
        """True if the request was sent to the installer, or refused."""
        return bool(self.phase)

    @property
    def tried(self) -> Tried | None:
        """Release and attempt that were begun last."""
        return Tried(self.release, self.attempt) if self.release else None

    @property
    def activation(self) -> Activation:
        """Release as a slot's activation."""
        return Activation(SLOT, self.target, self.release, (), self.evidence, self.root)

    def update(self) -> Update | None:
        """Return the progress as the update of a slot; None if nothing was ever begun."""
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
    """Return the state of a release that the installer refuses."""
    phase = Phase.ROLLED_BACK.value
    return replace(state, phase=phase, failed_in=Phase.BUILD.value, reason=reason, changed=now.isoformat())


def taken(state: SoftwareState, record: SoftwareUpdate, now: datetime) -> SoftwareState:
    """Return the state after the installer took the request."""
    return replace(state, phase=record.phase.value, changed=now.isoformat())


def followed(state: SoftwareState, record: SoftwareUpdate | None, now: datetime) -> SoftwareState:
    """Return the state with the installer's record. Records of other releases or earlier requests change nothing."""
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


def seen_running(state: SoftwareState, running: str, now: datetime) -> SoftwareState:
    """Return the state after a look at this process's environment: an operator may have installed another version."""
    if state.wanted or state.committed is None:
        return state
    target, release = state.committed
    if running == environment_name(parse_path(target).version, release):
        return state
    if release != state.release:
        return replace(state, committed=None)
    reason, phase = "another version was put in its place by hand", Phase.PROBATION.value
    gone = replace(state, committed=None, phase=Phase.ROLLED_BACK.value, failed_in=phase, reason=reason)
    return replace(gone, changed=now.isoformat())


def read_state(journal: Journal) -> SoftwareState:
    """Return the state in the journal; an empty one if it is not readable. Raise StoreError."""
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
    """Write the state to the journal if it changed. Raise StoreError."""
    text = json.dumps(asdict(state))
    if journal.fact(FACT) != text:
        journal.keep_facts({FACT: text})
