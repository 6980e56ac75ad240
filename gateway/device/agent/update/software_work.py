"""Updates of the programs themselves: fetch the assigned release, pass it to the installer, follow its record.

The new version may stop this agent at any time. The version that polls next continues from the journal and the
installer's record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gateway.common.domain.assignment import SOFTWARE_SLOT, Assignment
from gateway.common.domain.software_release import SOFTWARE_LIMIT_BYTES, fitting, read_software
from gateway.common.domain.update import SUPERSEDED, Step
from gateway.common.logs import get_logger
from gateway.common.store.fetching import Progress
from gateway.common.transfer.source import RepositorySource
from gateway.device.agent import events
from gateway.device.agent.clock import system_now
from gateway.device.agent.fetch.fetch import fetch_blob
from gateway.device.agent.settings import InstallerSettings
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.policy import Pacing
from gateway.device.agent.state.slot_state import (
    SlotState,
    begun,
    failed,
    followed,
    keep_state,
    moved,
    read_state,
    seen_running,
)
from gateway.device.agent.state.storage import Storage
from gateway.device.agent.update.poll import Poll
from gateway.device.agent.update.software import InstallerRefusedError, ask, confirm, own_environment, record
from gateway.device.domain.software_request import GiveUp, InstallRequest
from gateway.device.domain.software_update import Choice, Phase, choose, environment_name
from gateway.device.store.this_machine import this_machine

LOOK_S = 0.5
"""Interval of reads of the installer's record."""


class SoftwareWork:
    """Updates of the programs: call `begin` at each poll, then `work`. Both raise as the store and the source do."""

    def __init__(
        self,
        storage: Storage,
        source: RepositorySource,
        settings: InstallerSettings,
        *,
        progress: Progress | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._source, self._settings = storage, source, settings
        self._progress, self._monotonic = progress, monotonic
        self._log = get_logger("agent")

    def begin(self, assignment: Assignment, poll: Poll, pacing: Pacing, profile: str, *, retry: bool) -> None:
        """Begin or give up what the assignment orders. Raise Distrust, FetchError, StoreError, UnreachableError."""
        state, target = self._follow(), assignment.slots.get(SOFTWARE_SLOT)
        attempt = assignment.attempt(SOFTWARE_SLOT)
        tried = None if retry else state.tried
        choice = choose(target, attempt, own_environment(), record(self._settings), tried)
        if state.wanted and not state.asked and (target is None or target.sha256 != state.release):
            # the installer was not asked yet
            state = failed(state, Phase.BUILD.value, SUPERSEDED, system_now())
            keep_state(self._storage.journal, state)
        if choice is Choice.GIVE_UP:
            try:
                update = ask(self._settings, GiveUp("another version is assigned, or none"))
                self._log.info(events.SOFTWARE_UPDATE_GIVEN_UP, version=update.version)
            except InstallerRefusedError as error:  # it ended meanwhile
                self._log.info(events.SOFTWARE_GIVE_UP_REFUSED, reason=str(error))
        elif choice is Choice.INSTALL and target is not None:
            activation = poll.software(target)
            if pacing.may_install(activation, profile):
                now = system_now()
                state = begun(state, activation, now, assignment=assignment.version, attempt=attempt)
                keep_state(self._storage.journal, state)

    def work(self, stop: Alarm, until_s: float) -> None:
        """Fetch the wheels, send the request, and follow it until it ends, `until_s` or `stop`.

        Raise FetchError, StoreError, UnreachableError: try again later.
        """
        state = self._follow()
        if state.wanted and not state.asked:
            release = read_software(self._storage.blobs.read(state.release, SOFTWARE_LIMIT_BYTES))
            for wheel in fitting(release, this_machine()).wheels:
                fetch_blob(self._source, self._storage.blobs, wheel.sha256, wheel.size_bytes, self._progress)
            state = self._ask(state)
        while _is_ours(state) and self._monotonic() < until_s and not stop.wait(LOOK_S):
            state = self._follow()

    def goes_on(self, waiting: Mapping[str, str]) -> bool:
        """Return whether an update is under way that does not wait."""
        return SOFTWARE_SLOT not in waiting and _is_ours(read_state(self._storage.journal, SOFTWARE_SLOT))

    def confirm(self) -> None:
        """Confirm to the installer that this version completed a poll."""
        confirm(self._settings)

    def _follow(self) -> SlotState:
        """Copy the installer's record, and what runs, into the journal."""
        now = system_now()
        state = followed(read_state(self._storage.journal, SOFTWARE_SLOT), record(self._settings), now)
        state = seen_running(state, own_environment(), now)
        keep_state(self._storage.journal, state)
        return state

    def _ask(self, state: SlotState) -> SlotState:
        now = system_now()
        try:
            update = ask(self._settings, InstallRequest(state.target, state.release, state.evidence))
        except InstallerRefusedError as error:
            self._log.warning(events.SOFTWARE_UPDATE_REFUSED, target=state.target, reason=str(error))
            state = failed(state, Phase.BUILD.value, f"the installer refuses it: {error}", now)
        else:
            self._log.info(events.SOFTWARE_UPDATE_REQUESTED, target=state.target)
            state = moved(state, update.phase.value, now)
        keep_state(self._storage.journal, state)
        return state


def _is_ours(state: SlotState) -> bool:
    """Return whether this process has to follow the update: from the switch on that is for the new version."""
    new = environment_name(state.activation.version, state.release) if state.wanted else ""
    return state.wanted and (state.step is not Step.PROBATION or own_environment() == new)
