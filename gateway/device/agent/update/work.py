"""Reconciliation of one device with its assignment: poll, decide, carry out. One object per process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT, Assignment
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.update import REVOCABLE, SUPERSEDED, WITHDRAWN
from gateway.common.logs import get_logger
from gateway.common.store.active import Active, retired, without_stopped
from gateway.common.store.errors import SpaceError, StoreError
from gateway.common.store.fetching import Progress
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.source import FetchError, RepositorySource
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.targets import Withdrawal
from gateway.device.agent import events
from gateway.device.agent.answers import plain
from gateway.device.agent.clock import Clocks, read_clocks, system_now
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.control import DaemonClient, DaemonRefusedError
from gateway.device.agent.fetch.certificate import expiry_text, with_certificate
from gateway.device.agent.fetch.folder import FolderSource, open_source
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.identity import read_identity
from gateway.device.agent.state.policy import Pacing, present, unlisted
from gateway.device.agent.state.polled import POLLED, PROFILE, SUSPENDED, SUSPENDED_KIND, WAITING, PollResult
from gateway.device.agent.state.storage import Storage
from gateway.device.agent.update.committing import commit, tell, untold
from gateway.device.agent.update.installer import Installer
from gateway.device.agent.update.poll import Poll
from gateway.device.agent.update.reference import forget_attestation
from gateway.device.agent.update.settings_work import SettingsWork
from gateway.device.agent.update.software_work import SoftwareWork
from gateway.device.domain.reconcile import Change, Install, Supersede, UnderWay, Withdraw, changes


class Agent:
    """Agent of one device. Call `poll`, then `work` until nothing is left to do or can be done now.

    Other parts that contact the fleet share `connections`.
    """

    def __init__(
        self,
        storage: Storage,
        config: AgentConfig,
        *,
        carried: Path | None = None,
        progress: Progress | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clocks: Callable[[], Clocks] = read_clocks,
    ) -> None:
        """Open identity and sources. Raise ConfigurationError.

        `carried`: folder of a repository that was brought on a medium.
        """
        self._storage, self._config, self._monotonic, self._clocks = storage, config, monotonic, clocks
        self.identity = read_identity(storage.folder)
        self.connections = ConnectionPool(with_certificate(config.fetch, storage.folder))
        self._offline = carried is not None
        self._source = FolderSource(carried) if carried else open_source(self.identity.repository, self.connections)
        self._assigned_by = self._assigning()
        self._control = DaemonClient(config.control)
        self._installer = Installer(
            storage, self._control, self._source, config, progress=progress, monotonic=monotonic
        )
        self._software = SoftwareWork(storage, self._source, config.installer, progress=progress, monotonic=monotonic)
        self._settings = SettingsWork(storage, self._control, config.settings, monotonic)
        # In the order in which they continue: settings are for the version that runs
        self._reserved: Mapping[str, SettingsWork | SoftwareWork] = {
            SETTINGS_SLOT: self._settings,
            SOFTWARE_SLOT: self._software,
        }
        self._log = get_logger("agent")

    def poll(self, *, retry: bool = False, thorough: bool = False) -> PollResult:
        """Fetch the assignment and begin what it orders.

        `retry`: also try releases that failed here before. `thorough`: read every byte of what is committed, and fetch
        again what is damaged.
        """
        poll = Poll(
            self._storage,
            self.identity,
            self._source,
            self._control,
            self._config,
            assigned_by=self._assigned_by,
            offline=self._offline,
            clocks=self._clocks,
        )
        polled = self._ask(poll, retry=retry, thorough=thorough)
        if polled.reason == SUSPENDED:
            self._log.info(events.DEVICE_SUSPENDED)
        elif polled.problem:
            self._log.warning(events.POLL_FAILED, reason=polled.reason, problem=polled.problem)
        elif polled.assignment:
            self._log.info(events.POLL_COMPLETED, assignment=polled.assignment.version)
        fact = {"at": system_now().isoformat(), "reason": polled.reason, "problem": polled.problem}
        self._storage.journal.keep_facts({POLLED: json.dumps(fact)})
        return polled

    def work(self, stop: Alarm, until_s: float = float("inf")) -> Mapping[str, str]:
        """Carry out updates until none is left, `until_s` (monotonic) is reached, or `stop` is set.

        Return why the updates that are left cannot continue now, by slot.
        """
        waiting: dict[str, str] = {}
        # a trial in progress comes before updates of models
        self._work_on_reserved(SETTINGS_SLOT, stop, until_s, waiting)
        if not self._settings.on_trial:
            self._work_on_models(stop, until_s, waiting)
        for slot in self._reserved:
            self._work_on_reserved(slot, stop, until_s, waiting)
        self._storage.journal.keep_facts({WAITING: json.dumps(waiting)})
        return waiting

    def _work_on_models(self, stop: Alarm, until_s: float, waiting: dict[str, str]) -> None:
        due: dict[str, float] = {}
        while not stop.is_set():
            ready = [update for update in self._storage.journal.updates() if update.slot not in waiting]
            if not ready:
                break
            update = min(ready, key=lambda one: due.get(one.slot, 0.0))
            when_s = due.get(update.slot, 0.0)
            if when_s > until_s:
                break
            if stop.wait(max(0.0, when_s - self._monotonic())):
                break
            try:
                due[update.slot] = self._monotonic() + self._installer.advance(update)
            except (FetchError, StoreError, UnreachableError, DaemonRefusedError) as error:
                self._make_room(error)
                waiting[update.slot] = str(error)
                self._log.warning(events.UPDATE_POSTPONED, slot=update.slot, step=update.step.value, problem=str(error))

    def _work_on_reserved(self, slot: str, stop: Alarm, until_s: float, waiting: dict[str, str]) -> None:
        """Continue the update of a reserved slot. Add the reason to `waiting` if it cannot continue now."""
        if slot in waiting or (slot != SETTINGS_SLOT and self._settings.on_trial):
            return
        try:
            self._reserved[slot].work(stop, until_s)
        except (FetchError, StoreError, UnreachableError, DaemonRefusedError) as error:
            self._make_room(error)
            self._log.warning(events.UPDATE_POSTPONED, slot=slot, problem=str(error))
            waiting[slot] = str(error)

    def goes_on(self, waiting: Mapping[str, str]) -> bool:
        """Return True if an update is under way that is not in `waiting`."""
        updates = self._storage.journal.updates()
        going = any(update.slot not in waiting for update in updates)
        return going or any(work.goes_on(waiting) for work in self._reserved.values())

    def _assigning(self) -> tuple[RepositorySource, str]:
        """Return source and path of this device's assignment. Below the repository's URL it shares that source."""
        repository, assignment = f"{self.identity.repository.rstrip('/')}/", self.identity.assignment
        if self._offline:
            return self._source, f"assignments/{self.identity.device}.json"
        if assignment.startswith(repository):
            return self._source, assignment.removeprefix(repository)
        base, _, name = assignment.rpartition("/")
        return open_source(base, self.connections), name

    def _ask(self, poll: Poll, *, retry: bool, thorough: bool) -> PollResult:
        try:
            assignment = poll.ask()
            problems = self._begin(assignment, poll, retry=retry)
            self._software.confirm()  # a problem of a release is no fault of this version of the programs
            self._mend(poll, thorough=thorough)
            if problems:
                raise problems[0]
        except Distrust as error:
            if error.reason is Reason.EXPIRED:
                # an attested time that is too late must not make the next poll fail as well
                forget_attestation(self._storage.journal)
            return PollResult(None, error.reason.value, str(error))
        except FetchError as error:
            if error.kind == SUSPENDED_KIND:
                self._software.confirm()  # the fleet knew this device and answered; what has begun goes on (0073)
                problem = "the fleet suspended this device; it goes on with what it runs, and polls until it is resumed"
                return PollResult(None, SUSPENDED, problem)
            expired = "" if error.status else expiry_text(self._config.fetch, self._storage.folder, system_now())
            return PollResult(None, "unreachable", f"{expired}{error}", error.retry_after_s)
        except UnreachableError as error:
            return PollResult(None, "daemon", str(error))
        except DaemonRefusedError as error:
            return PollResult(None, "daemon-refuses", str(error))
        except StoreError as error:
            self._make_room(error)
            return PollResult(None, "store", str(error))
        return PollResult(assignment)

    def _begin(self, assignment: Assignment, poll: Poll, *, retry: bool) -> list[Exception]:
        """Begin the changes that are allowed now. Return why some slots could not be checked, in order."""
        if untold(self._storage):
            tell(self._storage, self._control)
            self._storage.collect()
        self._install_files(assignment, poll)
        self._obey_withdrawals(poll)
        for change in self._changes(assignment, retry=retry):
            if isinstance(change, Supersede):
                self._give_up(change.slot, SUPERSEDED)
        found = self._changes(assignment, retry=retry)  # some changes were blocked by updates that are now superseded
        pacing = Pacing(self._storage, self.identity.device, present(self._storage.journal.time_floor()))
        profile = self._profile() if pacing.asks_for_profile else ""
        running = self._storage.active().slots
        removals = [running[change.slot] for change in found if isinstance(change, Withdraw)]
        going = pacing.removable(removals, profile) if removals else []
        coming, problems = self._coming(found, poll, pacing, profile)
        for slot, work in self._reserved.items():
            try:  # an error here costs models nothing
                work.begin(assignment, poll, pacing, profile, retry=retry)
            except (Distrust, FetchError, UnreachableError, DaemonRefusedError) as error:
                self._log.warning(events.UPDATE_NOT_BEGUN, slot=slot, problem=str(error))
                problems.append(error)
        for slot, held in pacing.end(assignment.slots).items():
            self._log.info(events.CHANGE_HELD, slot=slot, change=held.change, reason=held.why)
        for activation in coming:  # before removals delete files that are no longer needed
            attempt = assignment.attempt(activation.slot)
            self._storage.journal.begin(activation, assignment.version, system_now(), attempt)
        for slot in going:
            self._log.info(events.REMOVAL_BEGUN, slot=slot)
            self._serve(retired(self._storage.active(), slot))
        return problems

    def _obey_withdrawals(self, poll: Poll) -> None:
        """Stop releases whose owner orders it, and give up updates to withdrawn releases. Raise as `_begin`."""
        for update in self._storage.journal.updates():
            if update.step in REVOCABLE and poll.withdrawal(update.activation.target):
                self._give_up(update.slot, WITHDRAWN)
        active = self._storage.active()
        left = without_stopped(active, lambda one: poll.withdrawal(one.target) is Withdrawal.REMOVE)
        if left != active:
            self._log.warning(events.STOP_ORDER_RECEIVED, slots=sorted(active.slots.keys() - left.slots.keys()))
            self._serve(left)

    def _coming(
        self, found: Iterable[Change], poll: Poll, pacing: Pacing, profile: str
    ) -> tuple[list[Activation], list[Exception]]:
        """Return what may be installed now, and why some slots could not be checked.

        A problem of one slot does not delay the others. An error of the store ends the search and is reported first.
        """
        coming: list[Activation] = []
        problems: list[Exception] = []
        for change in found:
            if not isinstance(change, Install):
                continue
            try:
                activation = poll.new(change.slot, change.target)
                if pacing.may_install(activation, profile):
                    coming.append(activation)
            except StoreError as error:
                return coming, [error, *problems]
            except (Distrust, FetchError, UnreachableError, DaemonRefusedError) as error:
                self._log.warning(events.UPDATE_NOT_BEGUN, slot=change.slot, problem=str(error))
                problems.append(error)
        return coming, problems

    def _profile(self) -> str:
        """Return the device profile; the last known one if the daemon cannot be asked now."""
        try:
            found = plain(self._control.status().get("profile") or "")
        except (UnreachableError, DaemonRefusedError):
            return self._storage.journal.fact(PROFILE) or ""
        if found != self._storage.journal.fact(PROFILE):
            self._storage.journal.keep_facts({PROFILE: found})
        return found

    def _make_room(self, error: Exception) -> None:
        """Free space for the next attempt: files of a refused assignment may still be here, for example."""
        if isinstance(error, SpaceError):
            with suppress(StoreError):  # the first error is the one to report
                self._storage.collect()

    def _changes(self, assignment: Assignment, *, retry: bool) -> tuple[Change, ...]:
        updates = self._storage.journal.updates()
        under_way = {one.slot: UnderWay(one.activation.release, one.step) for one in updates}
        committed = {slot: activation.release for slot, activation in self._storage.active().slots.items()}
        assigned = {(slot, target.sha256) for slot, target in assignment.models.items()}
        tried = self._storage.journal.rejected
        rejected = set() if retry else {pair for pair in assigned if tried(*pair, assignment.attempt(pair[0]))}
        return changes(assignment.models, committed, under_way, rejected, assignment.removed)

    def _give_up(self, slot: str, reason: str) -> None:
        update = self._storage.journal.update(slot)
        if update is not None:
            self._installer.give_up(update, reason)

    def _mend(self, poll: Poll, *, thorough: bool) -> None:
        """Fetch damaged committed releases again and serve them; also damaged previous releases."""
        active = before = self._storage.active()
        refused = self._refused(active)
        for slot, activation in active.slots.items():
            if not self._storage.whole(activation, thorough=thorough or slot in refused):
                active = self._mended(active, activation, poll)
        for activation in active.previous.values():
            if not self._storage.whole(activation, thorough=thorough):
                try:
                    active = self._mended(active, activation, poll)
                except (Distrust, FetchError, StoreError) as error:
                    self._log.warning(events.RELEASE_NOT_REPAIRED, target=activation.target, problem=str(error))
        if active != before:
            commit(self._storage, active)
        if active != before or refused:
            tell(self._storage, self._control)

    def _mended(self, active: Active, activation: Activation, poll: Poll) -> Active:
        self._log.warning(events.RELEASE_REPAIR_BEGUN, slot=activation.slot, target=activation.target)
        fresh = poll.recovered(activation)
        self._installer.mend(fresh)
        slots, previous = (
            {slot: fresh if one == activation else one for slot, one in part.items()}
            for part in (active.slots, active.previous)
        )
        return replace(active, slots=slots, previous=previous)

    def _refused(self, active: Active) -> set[str]:
        """Return slots whose committed release is not served; none if the daemon cannot be asked."""
        try:
            models = self._control.status()["models"]
        except (UnreachableError, DaemonRefusedError):
            return set()
        ready = {(one["model"], one["version"]) for one in models if one["state"] == "READY"}
        return {slot for slot, activation in active.slots.items() if (slot, activation.version) not in ready}

    def _serve(self, active: Active) -> None:
        """Make the daemon serve only `active`, and remove files that are no longer needed."""
        commit(self._storage, active)
        tell(self._storage, self._control)
        self._storage.collect()

    def _install_files(self, assignment: Assignment, poll: Poll) -> None:
        active = self._storage.active()
        known = {file.target: file for file in active.files if self._storage.blobs.verify(file.target.sha256)}
        files = tuple(known.get(target) or poll.installed(target) for target in assignment.files)
        kept = [poll.staying(file) for file in unlisted(active, (file.path for file in assignment.files))]
        files += tuple(file for file in kept if file)
        if files != active.files:
            commit(self._storage, replace(active, files=files))
            tell(self._storage, self._control)
