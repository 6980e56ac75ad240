"""The software installer's record, copied into the state of the slot `@software`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gateway.agent.state.slot_state import SlotState, failed, moved
from gateway.domain.release_paths import parse_path
from gateway.domain.software_update import Phase, SoftwareUpdate, environment_name


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
