"""Update of the programs on this device: recorded phases, each safe to repeat. Power may fail between any two.

Only the installer writes the record. Every user may read it: agents of any version report the update from it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gateway.common.domain.assignment import Target
from gateway.common.domain.manifest_toml import DIGEST_PATTERN, NAME_PATTERN
from gateway.common.domain.update import Tried

SCHEMA = 1
RECORD_LIMIT_BYTES = 65_536
"""Largest record that is read."""
REASON_LIMIT_CHARS = 1000


class Phase(enum.Enum):
    """Work in progress, recorded before it begins; DONE and ROLLED_BACK are ends."""

    BUILD = "build"
    """Build the new environment next to the running one."""
    TEST = "test"
    """Start the programs of the new environment."""
    SWITCH = "switch"
    """Point the link `current` to the new environment, and restart the units."""
    PROBATION = "probation"
    """Run the new programs; the agent must confirm before the deadline."""
    COMMIT = "commit"
    """Point the link `confirmed` to the new environment as well."""
    DONE = "done"
    ROLL_BACK = "roll-back"
    """Point the link `current` back to the confirmed environment, and restart the units."""
    ROLLED_BACK = "rolled-back"


_NEXT: Mapping[Phase, Phase] = {
    Phase.BUILD: Phase.TEST,
    Phase.TEST: Phase.SWITCH,
    Phase.SWITCH: Phase.PROBATION,
    Phase.PROBATION: Phase.COMMIT,
    Phase.COMMIT: Phase.DONE,
    Phase.ROLL_BACK: Phase.ROLLED_BACK,
}
ENDS = frozenset({Phase.DONE, Phase.ROLLED_BACK})
REVOCABLE = frozenset({Phase.BUILD, Phase.TEST, Phase.SWITCH, Phase.PROBATION})
"""Phases that may still end in a roll-back. From COMMIT on the new version stays."""
SWITCHED = frozenset({Phase.SWITCH, Phase.PROBATION})
"""Phases in which the new programs may be running: their roll-back restarts the units."""


@dataclass(frozen=True, slots=True)
class SoftwareUpdate:
    """Record of one update. `since_s`: begin of the probation in the boot that `boot` names (CLOCK_MONOTONIC).

    `release` is the digest of the signed document, `environment` the folder's name, `previous` that of the version
    before. `units` are those that have to run again after the switch. `resumed` counts how often the installer began
    again with the update under way. `reason` says why it was given up in phase `failed_in`.
    """

    target: str
    version: str
    floor: str
    release: str
    environment: str
    previous: str = ""
    phase: Phase = Phase.BUILD
    units: tuple[str, ...] = ()
    confirmed: bool = False
    resumed: int = 0
    boot: str = ""
    since_s: float = 0.0
    reason: str = ""
    failed_in: Phase | None = None

    @property
    def ended(self) -> bool:
        """Return whether nothing is left to do."""
        return self.phase in ENDS


@dataclass(frozen=True, slots=True)
class UnitState:
    """State of a systemd unit: `active` since `since_s` of this boot; `wanted`: it was started, however that ended."""

    active: bool
    wanted: bool
    since_s: float
    state: str


def environment_name(version: str, release: str) -> str:
    """Return the folder's name of an environment: unique for each signed document."""
    return f"{version}-{release[:8]}"


def advanced(update: SoftwareUpdate) -> SoftwareUpdate:
    """Return the record of the next phase. Raises KeyError at an end."""
    return replace(update, phase=_NEXT[update.phase])


def given_up(update: SoftwareUpdate, reason: str) -> SoftwareUpdate:
    """Return the record of the roll-back; the same where the update can no longer be given up."""
    if update.phase not in REVOCABLE:
        return update
    return replace(
        update, phase=Phase.ROLL_BACK, failed_in=update.phase, reason=reason[:REASON_LIMIT_CHARS], confirmed=False
    )


def resumed(update: SoftwareUpdate, limit: int) -> SoftwareUpdate:
    """Return the record for a starting installer; it is given up after too many interruptions."""
    if update.phase not in REVOCABLE:
        return update
    if update.resumed >= limit:
        return given_up(update, f"it was interrupted {limit + 1} times, at last in phase {update.phase.value}")
    return replace(update, resumed=update.resumed + 1)


def watched(update: SoftwareUpdate, boot: str, since_s: float) -> SoftwareUpdate:
    """Return the record of a probation that is watched from `since_s` on; in another boot, from its start."""
    if not update.boot:
        return replace(update, boot=boot, since_s=since_s)
    return update if update.boot == boot else replace(update, boot=boot, since_s=0.0)


def judged(
    update: SoftwareUpdate, units: Mapping[str, UnitState], now_s: float, *, within_s: float, steady_s: float
) -> SoftwareUpdate:
    """Decide on a probation: the next phase, the roll-back, or the same record if it continues.

    `within_s`: deadline in each boot. `steady_s`: how long every unit must have been active since the switch.
    """
    since_s = {unit: units[unit].since_s for unit in update.units if units[unit].active}
    steady = all(
        unit in since_s and since_s[unit] >= update.since_s and now_s - since_s[unit] >= steady_s
        for unit in update.units
    )
    if update.confirmed and steady:
        return advanced(update)
    if now_s - update.since_s > within_s:
        return given_up(update, f"not confirmed within {within_s:g} s: {_missing(update, units)}")
    return update


def _missing(update: SoftwareUpdate, units: Mapping[str, UnitState]) -> str:
    """Say what the probation still waited for."""
    waiting = [f"{unit} is {units[unit].state}" for unit in update.units if not units[unit].active]
    if not update.confirmed:
        waiting.append("the new agent did not complete a poll")
    return ", ".join(waiting) or "its units were restarted again and again"


def record_bytes(update: SoftwareUpdate) -> bytes:
    """Return the file's content: JSON, UTF-8, keys sorted, ended by a newline."""
    document = asdict(update)
    document["phase"] = update.phase.value
    document["failed_in"] = update.failed_in.value if update.failed_in else None
    return (json.dumps({"schema": SCHEMA, **document}, indent=1, sort_keys=True) + "\n").encode()


def read_record(content: bytes) -> SoftwareUpdate:
    """Return the inverse of `record_bytes`; unknown keys are ignored. Raises ValueError."""
    try:
        if len(content) > RECORD_LIMIT_BYTES:
            raise ValueError(f"it has more than {RECORD_LIMIT_BYTES} bytes")
        document = json.loads(content)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r:.40} is not known, {SCHEMA} is")
        return _read(document)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error!s:.200}") from None


def _read(document: Mapping[str, Any]) -> SoftwareUpdate:
    for key in ("version", "floor", "environment"):
        if not NAME_PATTERN.fullmatch(document[key]):
            raise ValueError(f"{key} is {document[key]!r:.80}, not a name")
    if not DIGEST_PATTERN.fullmatch(document["release"]):
        raise ValueError(f"release is {document['release']!r:.80}, not a SHA-256 digest")
    failed_in = document.get("failed_in")
    return SoftwareUpdate(
        target=str(document["target"]),
        version=document["version"],
        floor=document["floor"],
        release=document["release"],
        environment=document["environment"],
        previous=str(document["previous"]),
        phase=Phase(document["phase"]),
        units=tuple(str(unit) for unit in document["units"]),
        confirmed=document["confirmed"] is True,
        resumed=int(document["resumed"]),
        boot=str(document["boot"]),
        since_s=float(document["since_s"]),
        reason=str(document["reason"]),
        failed_in=Phase(failed_in) if failed_in else None,
    )


class Choice(enum.Enum):
    """Action of the agent."""

    NOTHING = "nothing"
    INSTALL = "install"
    GIVE_UP = "give up"


def choose(
    assigned: Target | None, attempt: int, running: str, record: SoftwareUpdate | None, tried: Tried | None
) -> Choice:
    """Return the action.

    `running`: name of the environment of this process. `record`: the installer's last update. A release that was tried
    (rolled back, refused, or replaced by hand) is tried again only at a greater attempt. Nothing is ever removed:
    without an assignment the running version stays.
    """
    if record is not None and not record.ended:
        wanted = assigned is not None and record.release == assigned.sha256
        return Choice.NOTHING if wanted or record.phase not in REVOCABLE else Choice.GIVE_UP
    if assigned is None or running == environment_name(assigned.path.split("/")[-2], assigned.sha256):
        return Choice.NOTHING
    if tried is not None and tried.excludes(assigned.sha256, attempt):
        return Choice.NOTHING
    return Choice.INSTALL
