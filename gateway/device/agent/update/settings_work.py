"""Updates of the gateway's settings: the daemon runs them on trial, the agent watches and confirms (decision 0043).

The agent may end at any moment: the next one continues from the journal and the daemon's report. The daemon takes a
trial back by itself unless an agent confirms it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT, Assignment
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.settings_trial import (
    DaemonHealth,
    SettingsTrialSettings,
    evaluate_trial,
    health_document,
    missing,
    read_health,
    wants_trial,
)
from gateway.common.domain.update import SUPERSEDED, Step
from gateway.common.logs import get_logger
from gateway.device.agent import events
from gateway.device.agent.clock import system_now
from gateway.device.agent.control import DaemonClient, DaemonRefusedError, Document
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.policy import Pacing
from gateway.device.agent.state.slot_state import SlotState, begun, failed, keep_state, moved, read_state
from gateway.device.agent.state.storage import Storage
from gateway.device.agent.update.poll import Poll

BEFORE = "settings_before"
"""Name of the fact: the daemon's health before the trial."""
LOAD, PROBATION, COMMIT, DONE = (one.value for one in (Step.LOAD, Step.PROBATION, Step.COMMIT, Step.DONE))


class SettingsWork:
    """Updates of the settings: call `begin` at each poll, then `work`. Both raise as the store and the source do."""

    def __init__(
        self,
        storage: Storage,
        control: DaemonClient,
        settings: SettingsTrialSettings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._control, self._settings, self._monotonic = storage, control, settings, monotonic
        self._watched = _TrialTimes(monotonic())
        self._log = get_logger("agent")

    def begin(self, assignment: Assignment, poll: Poll, pacing: Pacing, profile: str, *, retry: bool) -> None:
        """Begin the assigned settings, or give up others. Raise Distrust, FetchError, StoreError, UnreachableError."""
        state, target = self._state(), assignment.slots.get(SETTINGS_SLOT)
        if state.wanted and (target is None or target.sha256 != state.release):
            state = self._given_up(state, SUPERSEDED)
        if state.wanted or target is None:
            return
        state = self._compared(state)
        attempt, committed = assignment.attempt(SETTINGS_SLOT), state.committed[1] if state.committed else ""
        failed_before = None if retry or state.step is Step.DONE else state.tried
        if not wants_trial(target, attempt, committed, failed_before):
            return
        activation = poll.settings(target)
        if pacing.may_install(activation, profile):
            self._keep(begun(state, activation, system_now(), assignment=assignment.version, attempt=attempt))

    def work(self, stop: Alarm, until_s: float) -> None:
        """Continue a trial until it ends, `until_s` or `stop`. It does not begin during an update of something else.

        Raises RefusedError, StoreError, UnreachableError: try again later.
        """
        while (state := self._state()).wanted and self._monotonic() < until_s:
            if self._is_blocked(state):
                return
            self._keep(_STEPS[state.step](self, state))
            if self._state().step is Step.PROBATION and stop.wait(self._settings.snapshot_every_s):
                return

    @property
    def on_trial(self) -> bool:
        """Return whether the daemon may restart at any time to take settings back."""
        return self._state().step in {Step.PROBATION, Step.COMMIT}

    def goes_on(self, waiting: Mapping[str, str]) -> bool:
        """Return whether an update is under way that does not wait."""
        state = self._state()
        return SETTINGS_SLOT not in waiting and state.wanted and not self._is_blocked(state)

    # ---- steps -------------------------------------------------------------------------------------------------------
    def _try(self, state: SlotState) -> SlotState:
        """Ask the daemon for a trial of the release, unless it has the release in force already."""
        now, standing = system_now(), self._standing()
        if standing["sha256"] == state.release:
            self._watched = _TrialTimes(self._monotonic())  # the answer to an earlier request was lost
            phase = PROBATION if standing["trial_ends_in_s"] is not None else DONE
            return moved(state, phase, now)
        before = self._health()
        self._storage.journal.keep_facts({BEFORE: json.dumps(health_document(before))})
        try:
            self._control.try_settings(state.activation, self._settings.within_s)
        except DaemonRefusedError as error:
            return self._failed(state, LOAD, f"the gateway refuses them: {error}")
        self._log.info(events.SETTINGS_TRIAL_BEGUN, target=state.target)
        self._watched = _TrialTimes(self._monotonic())
        return moved(state, PROBATION, now)

    def _watch(self, state: SlotState) -> SlotState:
        """Evaluate one snapshot. A daemon that does not answer is restarting, or it takes the trial back by itself."""
        before = self._before()
        try:
            standing, health = self._standing(), self._health()
        except UnreachableError:
            if self._monotonic() - self._watched.began_s > self._settings.within_s:
                raise
            return state
        restarted = health.instance != before.instance
        if restarted and standing["sha256"] != state.release:
            reason = standing["reason"] if standing["failed_sha256"] == state.release else ""
            return self._failed(state, PROBATION, reason or "the gateway came back without them")
        now_s = self._monotonic()
        self._watched.see(now_s, complete=restarted and not missing(before, health))
        ready_for_s, elapsed_s = self._watched.ready_for_s(now_s), now_s - self._watched.began_s
        judged = evaluate_trial(before, health, ready_for_s, elapsed_s, self._settings)
        if judged.passed is None:
            return state
        if judged.passed:
            self._log.info(events.SETTINGS_TRIAL_PASSED, target=state.target, reason=judged.reason)
            return moved(state, COMMIT, system_now())
        return self._given_up(state, judged.reason)

    def _confirm(self, state: SlotState) -> SlotState:
        try:
            self._control.confirm_settings(state.release)
        except DaemonRefusedError as error:
            return self._failed(state, COMMIT, f"they could not be committed: {error}")
        self._log.info(events.SETTINGS_COMMITTED, target=state.target)
        return moved(state, DONE, system_now())

    def _given_up(self, state: SlotState, reason: str) -> SlotState:
        """Ask the daemon to take a trial back, if it was begun, and record the failure."""
        if state.step in {Step.PROBATION, Step.COMMIT}:
            try:
                self._control.revert_settings(state.release, reason)
            except DaemonRefusedError as error:  # it took them back by itself
                self._log.info(events.SETTINGS_REVERT_REFUSED, reason=str(error))
        state = self._failed(state, state.phase or LOAD, reason)
        self._keep(state)
        return state

    # ---- the daemon and the journal ----------------------------------------------------------------------------------
    def _compared(self, state: SlotState) -> SlotState:
        """Return the state whose committed release is the one that the daemon reports as in force.

        The daemon may have lost its record, or this version of the program may refuse the settings.
        """
        try:
            standing = self._standing()
        except (UnreachableError, DaemonRefusedError):
            return state
        if standing["trial_ends_in_s"] is None:
            in_force = (str(standing["target"]), str(standing["sha256"])) if standing["sha256"] else None
            state = replace(state, committed=in_force)
            self._keep(state)
        return state

    def _is_blocked(self, state: SlotState) -> bool:
        """Return whether the trial must wait: a restart would look like a failure to another update under way."""
        journal = self._storage.journal
        software = read_state(journal, SOFTWARE_SLOT)
        return state.step is Step.LOAD and bool(journal.updates() or (software.wanted and software.asked))

    def _standing(self) -> Document:
        return self._control.settings()

    def _health(self) -> DaemonHealth:
        status, counted = self._control.status(), self._control.all_statistics()
        return DaemonHealth(
            str(status["instance"]),
            frozenset(f"{one['model']}/{one['version']}" for one in status["models"] if one["state"] == "READY"),
            status.get("broker"),
            sum(int(one["requests"]) for one in counted),
            sum(int(one.get("failed", 0)) for one in counted),
        )

    def _before(self) -> DaemonHealth:
        try:
            return read_health(json.loads(self._storage.journal.fact(BEFORE) or "{}"))
        except (ValueError, KeyError, TypeError):
            return DaemonHealth()

    def _failed(self, state: SlotState, phase: str, reason: str) -> SlotState:
        self._log.warning(events.SETTINGS_UPDATE_FAILED, target=state.target, phase=phase, reason=reason)
        return failed(state, phase, reason, system_now())

    def _state(self) -> SlotState:
        return read_state(self._storage.journal, SETTINGS_SLOT)

    def _keep(self, state: SlotState) -> None:
        keep_state(self._storage.journal, state)


_STEPS: Mapping[Step, Callable[[SettingsWork, SlotState], SlotState]] = {
    Step.LOAD: SettingsWork._try,
    Step.PROBATION: SettingsWork._watch,
    Step.COMMIT: SettingsWork._confirm,
}


class _TrialTimes:
    """Times of a trial (monotonic): its begin, and the begin of the period in which everything is ready again."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._ready_s: float | None = None

    def see(self, now_s: float, *, complete: bool) -> None:
        """Record whether everything is ready in a snapshot."""
        if not complete:
            self._ready_s = None
        elif self._ready_s is None:
            self._ready_s = now_s

    def ready_for_s(self, now_s: float) -> float | None:
        """Return how long everything has been ready; None if it is not."""
        return None if self._ready_s is None else now_s - self._ready_s
