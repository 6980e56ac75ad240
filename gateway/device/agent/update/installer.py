"""Execution of an update, one recorded step after the other. Every step may be repeated after an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.signed_release import SignedRelease
from gateway.common.domain.update import Failure, Step
from gateway.common.logs import get_logger
from gateway.common.store.active import committed
from gateway.common.store.errors import DamagedError, StoreAbsentError
from gateway.common.store.fetching import Progress
from gateway.common.transfer.source import RepositorySource
from gateway.device.agent import events
from gateway.device.agent.clock import system_now
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.control import DaemonClient, DaemonRefusedError, Document
from gateway.device.agent.fetch.fetch import fetch_blob
from gateway.device.agent.state.storage import Storage
from gateway.device.agent.update.committing import commit, tell
from gateway.device.agent.update.watch import ProbationWatch
from gateway.device.store.journal_rows import Update
from gateway.device.store.materialised import materialise


class StepFailedError(Exception):
    """A step showed that the release must not serve here. Holds the reason and the measurements."""

    def __init__(self, reason: str, evidence: Mapping[str, float | int | str] | None = None) -> None:
        super().__init__(reason)
        self.reason, self.evidence = reason, dict(evidence or {})


class Installer:
    """Execution of updates; `advance` does the next step of one.

    If a step cannot be done now (no network, no space, no daemon), it raises and the update stays at that step. If a
    step shows that the release is bad, the update is rolled back.
    """

    def __init__(
        self,
        storage: Storage,
        control: DaemonClient,
        source: RepositorySource,
        config: AgentConfig,
        *,
        progress: Progress | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._control, self._source, self._config = storage, control, source, config
        self._progress, self._monotonic = progress, monotonic
        self._watches: dict[str, ProbationWatch] = {}
        self._loaded: set[str] = set()
        """Slots whose release the daemon has loaded, as far as this process knows."""
        self._log = get_logger("installer")
        self._steps: Mapping[Step, Callable[[Update], float]] = {
            Step.FETCH: self._fetch,
            Step.LOAD: self._load,
            Step.SHIFT: self._shift,
            Step.PROBATION: self._probation,
            Step.TAKE_OVER: self._take_over,
            Step.COMMIT: self._commit,
            Step.RETIRE: self._retire,
            Step.ROLL_BACK: self._roll_back,
        }

    def advance(self, update: Update) -> float:
        """Do the recorded step. Return the seconds to wait before the next call.

        Raise FetchError, StoreError, UnreachableError: try again later.
        """
        try:
            return self._steps[update.step](update)
        except StepFailedError as error:
            self.fail(update, error.reason, error.evidence)
            return 0.0

    def fail(
        self,
        update: Update,
        reason: str,
        evidence: Mapping[str, float | int | str] | None = None,
        *,
        reject: bool = True,
    ) -> None:
        """Start the roll-back of the update. With `reject`, this assignment does not try the release again."""
        self._log.warning(events.UPDATE_FAILED, slot=update.slot, step=update.step.value, reason=reason)
        failure = Failure(update.step, reason, dict(evidence or {}))
        self._storage.journal.fail(update.slot, failure, system_now(), reject=reject)

    def give_up(self, update: Update, reason: str) -> None:
        """Roll back the update at once, so that its successor need not wait for another poll. Raise StoreError."""
        self._log.info(events.UPDATE_GIVEN_UP, slot=update.slot, step=update.step.value, reason=reason)
        self._storage.journal.fail(update.slot, Failure(update.step, reason, {}), system_now(), reject=False)
        self.advance(replace(update, step=Step.ROLL_BACK))

    def mend(self, activation: Activation) -> None:
        """Restore a committed release that was damaged. Raise FetchError, StoreError."""
        self._bring(self._storage.release(activation), activation)

    # ---- the steps --------------------------------------------------------------------------------------------------
    def _fetch(self, update: Update) -> float:
        activation = update.activation
        try:
            release = self._storage.release(activation)
        except (
            StoreAbsentError,
            DamagedError,
        ) as error:  # rolled back, so that the next poll fetches the document again
            self.fail(update, f"a signed document was lost on disk: {error}", reject=False)
            return 0.0
        if not activation.variants:
            activation = replace(activation, variants=(self._choose(activation),))
            self._record(update, Step.FETCH, activation)
        self._bring(release, activation)
        return self._record(update, Step.LOAD)

    def _load(self, update: Update) -> float:
        try:
            loaded = self._control.load(update.activation)
        except DaemonRefusedError as error:
            return self._try_another(update, error)
        self._loaded.add(update.slot)
        self._check_speed(update, loaded)
        return self._record(update, Step.COMMIT if self._stands_in(update) else Step.SHIFT)

    def _shift(self, update: Update) -> float:
        if update.slot not in self._loaded:  # after a power failure, for example: a restarted daemon has nothing loaded
            return self._record(update, Step.LOAD)
        watch = ProbationWatch(self._control, update.activation, self._config.probation, self._monotonic)
        try:
            watch.renew()
        except DaemonRefusedError as error:
            raise StepFailedError(f"the daemon refuses to give it a share: {error}") from None
        self._watches[update.slot] = watch
        return self._record(update, Step.PROBATION)

    def _probation(self, update: Update) -> float:
        watch = self._watches.get(update.slot)
        if watch is None:  # another process began the probation: the daemon's state is unknown
            return self._record(update, Step.LOAD)
        judged = watch.evaluate()
        if judged.passed is None:
            return self._config.probation.snapshot_every_s
        if not judged.passed:
            raise StepFailedError(judged.reason, judged.evidence)
        self._log.info(events.PROBATION_PASSED, slot=update.slot, reason=judged.reason, **judged.evidence)
        return self._record(update, Step.TAKE_OVER)

    def _take_over(self, update: Update) -> float:
        if update.slot not in self._loaded:
            return self._record(update, Step.LOAD)
        lease_s = self._config.control.load_timeout_s
        try:
            self._control.route(update.slot, {update.activation.version: 100}, lease_s=lease_s)
        except DaemonRefusedError as error:
            raise StepFailedError(f"the daemon refuses to give it all requests: {error}") from None
        return self._record(update, Step.COMMIT)

    def _commit(self, update: Update) -> float:
        commit(self._storage, committed(self._storage.active(), update.activation))
        tell(self._storage, self._control)
        return self._record(update, Step.RETIRE)

    def _retire(self, update: Update) -> float:
        """End the update after the daemon released the old version. Remove files that are no longer needed."""
        tell(self._storage, self._control)
        measured = self._storage.journal.fact(_speed(update.slot, coming=True))
        if measured is not None:
            self._storage.journal.keep_facts({_speed(update.slot): measured})
        self._end(update)
        self._storage.collect()
        return 0.0

    def _roll_back(self, update: Update) -> float:
        """Make the committed release answer again. A daemon that is down does so when it starts."""
        try:
            self._control.unload(update.slot, update.activation.version, self._config.agent.drain_s)
        except (UnreachableError, DaemonRefusedError) as error:
            self._log.warning(events.DAEMON_NOT_NOTIFIED, slot=update.slot, problem=str(error))
        self._end(update)
        self._storage.collect()
        return 0.0

    # ---- parts of the steps -----------------------------------------------------------------------------------------
    def _record(self, update: Update, step: Step, activation: Activation | None = None) -> float:
        self._log.info(events.UPDATE_STEP_BEGUN, slot=update.slot, target=update.activation.target, step=step.value)
        self._storage.journal.record(update.slot, step, system_now(), activation)
        return 0.0

    def _end(self, update: Update) -> None:
        self._watches.pop(update.slot, None)
        self._loaded.discard(update.slot)
        ended = self._storage.journal.finish(update.slot, system_now())
        self._log.info(events.UPDATE_ENDED, slot=update.slot, target=update.activation.target, outcome=ended.step.value)

    def _bring(self, release: SignedRelease, activation: Activation) -> None:
        """Fetch every file of the variants that is absent or damaged. Raise FetchError, StoreError."""
        blobs = self._storage.blobs
        for artifact in release.files(activation.variants):
            fetch_blob(self._source, blobs, artifact.sha256, artifact.size_bytes, self._progress)
        materialise(activation.release, release, activation.variants, blobs, self._storage.releases)

    def _choose(self, activation: Activation) -> str:
        """Return the best variant for this device that was not tried yet. Raise StepFailedError."""
        candidates = self._control.plan(replace(activation, variants=()))
        fitting = [c["variant"] for c in candidates if c["eligible"] and c["variant"] not in activation.variants]
        if not fitting:
            reasons = "; ".join(f"{c['variant']}: {c['reason']}" for c in candidates)
            raise StepFailedError(f"no variant fits this device: {reasons or 'the release has none'}")
        return str(fitting[0])

    def _try_another(self, update: Update, refusal: DaemonRefusedError) -> float:
        """Continue with the next best variant. Raise StepFailedError, with the daemon's reason, if there is none."""
        activation = update.activation
        try:
            another = self._choose(activation)
        except (StepFailedError, DaemonRefusedError):
            raise StepFailedError(f"the daemon refuses it: {refusal}") from None
        self._log.warning(events.VARIANT_REPLACED, slot=update.slot, variant=another, reason=str(refusal))
        return self._record(update, Step.FETCH, replace(activation, variants=(*activation.variants, another)))

    def _stands_in(self, update: Update) -> bool:
        """Return True if another release of the same version is served, either committed or loaded by hand.

        Shares of requests are given by version, so the two cannot be distinguished. The new release, which passed its
        golden set, then replaces the other at once. A release that has a share because a killed agent began its
        probation does not count as another one.
        """
        slot, version = update.slot, update.activation.version
        committed = self._storage.active().slots.get(slot)
        again = committed is not None and committed.version == version
        serving = [m for m in self._control.status()["models"] if (m["model"], m["version"]) == (slot, version)]
        return any(m["state"] == "READY" and (again or not m["signed"]) for m in serving)

    # ---- speed in the trial on this device --------------------------------------------------------------------------
    def _check_speed(self, update: Update, loaded: Document) -> None:
        """Compare the speed with that of the replaced release, measured on this device by the same trial."""
        measured: dict[str, Any] = loaded["measured"] or {}
        p50_us, before = measured.get("p50_us"), self._storage.journal.fact(_speed(update.slot))
        if p50_us is None:
            return
        self._storage.journal.keep_facts({_speed(update.slot, coming=True): repr(p50_us)})
        factor = self._config.probation.slower_factor
        replaces = update.slot in self._storage.active().slots  # a release that was withdrawn before is no reference
        if replaces and before is not None and p50_us > float(before) * factor:
            reason = f"a run takes {p50_us:.0f} µs here, the release before {float(before):.0f}"
            evidence = {"p50_us": p50_us, "old_p50_us": float(before)}
            raise StepFailedError(f"{reason}: more than {factor:g} times as long", evidence)


def _speed(slot: str, *, coming: bool = False) -> str:
    """Return the fact's name: median run time in the trial (µs) of what serves the slot, or is to serve it."""
    return f"p50_us:{slot}{':coming' if coming else ''}"
