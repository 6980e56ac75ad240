"""Work of the installer: one recorded phase after the other. Every phase may be repeated after an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.software_release import SOFTWARE_LIMIT_BYTES, fitting, read_software
from gateway.common.logs import get_logger
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import StoreError
from gateway.common.store.roots import read_roots
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.settings import DEFAULTS
from gateway.device.domain.software_request import GiveUp, InstallRequest, Request
from gateway.device.domain.software_update import (
    SWITCHED,
    Phase,
    SoftwareUpdate,
    advanced,
    environment_name,
    given_up,
    judged,
    resumed,
    watched,
)
from gateway.device.installer import events
from gateway.device.installer.building import build, check_size, self_test
from gateway.device.installer.commands import CommandError, Units
from gateway.device.installer.places import CONFIRMED, CURRENT, VersionFolder
from gateway.device.installer.record import InstallRecords
from gateway.device.installer.settings import SoftwareSettings
from gateway.device.installer.verification import VerifiedSoftware, verify
from gateway.device.store.this_machine import this_machine

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RequestRefusedError(Exception):
    """A request cannot be carried out; the message has the reason."""


class InstallerWorker:
    """Worker of the installer: `take` requests, and call `advance` until nothing is left to do."""

    def __init__(
        self,
        home: VersionFolder,
        records: InstallRecords,
        units: Units,
        settings: SoftwareSettings,
        *,
        alive: Callable[[], object] = bool,
        boot: Callable[[], tuple[str, float]] | None = None,
    ) -> None:
        """Set up the worker.

        `alive` is called repeatedly during long phases. `boot` returns the boot id and the seconds since the boot.
        """
        self._home, self._records, self._units, self._settings = home, records, units, settings
        self._alive, self._boot = alive, boot or boot_now
        self._log = get_logger("software")
        self._phases: Mapping[Phase, Callable[[SoftwareUpdate], SoftwareUpdate]] = {
            Phase.BUILD: self._build,
            Phase.TEST: self._test,
            Phase.SWITCH: self._switch,
            Phase.PROBATION: self._probation,
            Phase.COMMIT: self._commit,
            Phase.ROLL_BACK: self._roll_back,
        }

    def resume(self) -> None:
        """Count that this process continues an interrupted update. Raise StoreError."""
        update = self._records.update()
        if update is not None and not update.ended:
            self._record(update, resumed(update, self._settings.resumptions))

    def take(self, request: Request) -> SoftwareUpdate:
        """Record a request. Return the record. Raise RequestRefusedError, StoreError."""
        update = self._records.update()
        if isinstance(request, InstallRequest):
            return self._begin(request, update)
        if update is None or update.ended:
            raise RequestRefusedError("no update is under way")
        if isinstance(request, GiveUp):
            return self._record(update, given_up(update, f"given up by the agent: {request.reason}"))
        if update.phase is not Phase.PROBATION or request.environment != update.environment:
            text = f"{update.environment} is in phase {update.phase.value}"
            raise RequestRefusedError(f"{request.environment} is not in its probation: {text}")
        return self._record(update, replace(update, confirmed=True))

    def advance(self) -> float | None:
        """Do the recorded phase. Return the pause before the next call in seconds, None at the end.

        Raise StoreError if the record cannot be written.
        """
        update = self._records.update()
        if update is None or update.ended:
            return None
        try:
            after = self._phases[update.phase](update)
        except (CommandError, VariantError, Distrust, StoreError, OSError, ValueError) as error:
            after = given_up(update, f"{update.phase.value}: {error}")
            if after is update:  # too late to give up: repeat the phase
                self._log.error(events.SOFTWARE_PHASE_FAILED, phase=update.phase.value, problem=str(error))
                return self._settings.check_every_s
        if after == update:
            return self._settings.check_every_s
        return None if self._record(update, after).ended else 0.0

    # ---- requests ---------------------------------------------------------------------------------------------------
    def _begin(self, request: InstallRequest, update: SoftwareUpdate | None) -> SoftwareUpdate:
        if update is not None and not update.ended:
            if update.release == request.release:
                return update
            raise RequestRefusedError(f"version {update.version} is under way ({update.phase.value}); wait for its end")
        try:
            verified = self._verified(request)
        except Distrust as error:
            raise RequestRefusedError(str(error)) from error
        release = verified.release
        name = environment_name(release.version, request.release)
        if name == self._home.leads_to(CURRENT):
            raise RequestRefusedError(f"version {release.version} runs already, from the environment {name}")
        self._records.keep_root(verified.root)
        previous = self._home.leads_to(CONFIRMED)
        begun = SoftwareUpdate(request.target, release.version, verified.floor, request.release, name, previous)
        self._log.info(events.SOFTWARE_UPDATE_BEGUN, version=begun.version, environment=name)
        self._records.keep_update(begun)
        return begun

    def _verified(self, request: InstallRequest) -> VerifiedSoftware:
        limit_bytes = DEFAULTS.metadata_limit_bytes
        pinned = self._records.root(limit_bytes)
        if pinned is None:
            place = self._records.folder
            raise RequestRefusedError(f"{place} holds no root of trust; run: sudo edge-software trust ROOT.json")
        roots = read_roots(Path(self._settings.store), limit_bytes, DEFAULTS.roots_limit)
        read, floor = self._blobs().read, self._records.floor()
        return verify(request, pinned, roots, read, machine=this_machine(), floor=floor)

    # ---- phases -----------------------------------------------------------------------------------------------------
    def _build(self, update: SoftwareUpdate) -> SoftwareUpdate:
        self._home.keep(set())
        self._records.sweep()
        # the document is read again by its verified digest
        variant = fitting(read_software(self._blobs().read(update.release, SOFTWARE_LIMIT_BYTES)), this_machine())
        check_size(variant, self._home, self._settings)
        private = self._records.folder
        build(variant, update.environment, self._home, self._settings, private=private, alive=self._alive)
        return advanced(update)

    def _test(self, update: SoftwareUpdate) -> SoftwareUpdate:
        self_test(update.environment, update.version, self._home, self._settings, self._alive)
        wanted = tuple(unit for unit, state in self._units.states().items() if state.wanted)
        return advanced(replace(update, units=wanted))

    def _switch(self, update: SoftwareUpdate) -> SoftwareUpdate:
        boot, now_s = self._boot()
        self._home.point(CURRENT, update.environment)
        self._units.restart(update.units)
        return watched(advanced(update), boot, now_s)

    def _probation(self, update: SoftwareUpdate) -> SoftwareUpdate:
        if self._home.leads_to(CURRENT) != update.environment:
            return given_up(update, "another version was put in its place by hand")
        boot, now_s = self._boot()
        settings, seen = self._settings, watched(update, boot, now_s)
        states = self._units.states()
        return judged(seen, states, now_s, within_s=settings.confirm_within_s, steady_s=settings.steady_s)

    def _commit(self, update: SoftwareUpdate) -> SoftwareUpdate:
        self._home.point(CONFIRMED, update.environment)
        self._records.keep_floor(update.floor)
        self._home.keep({update.previous})
        return advanced(update)

    def _roll_back(self, update: SoftwareUpdate) -> SoftwareUpdate:
        """Point `current` to the confirmed version, unless an operator installed another one."""
        if self._home.leads_to(CURRENT) in {update.environment, ""}:
            self._home.point(CURRENT, self._home.leads_to(CONFIRMED))
        if update.failed_in in SWITCHED:
            self._units.restart(update.units)
        self._home.keep(set())
        return advanced(update)

    # ---- parts of the phases ----------------------------------------------------------------------------------------
    def _blobs(self) -> LocalBlobs:
        return LocalBlobs(Path(self._settings.store) / "blobs")

    def _record(self, before: SoftwareUpdate, after: SoftwareUpdate) -> SoftwareUpdate:
        if after != before:
            self._records.keep_update(after)
        version, phase, left = after.version, after.phase, before.phase
        if phase is left:
            return after
        if after.ended:
            self._log.info(events.SOFTWARE_UPDATE_ENDED, version=version, outcome=phase.value)
        elif phase is Phase.ROLL_BACK:
            self._log.warning(events.SOFTWARE_UPDATE_FAILED, version=version, phase=left.value, reason=after.reason)
        else:
            self._log.info(events.SOFTWARE_PHASE_BEGUN, version=version, phase=phase.value)
        return after


def boot_now() -> tuple[str, float]:
    """Return the boot id, and the seconds since the boot by the clock of systemd's timestamps."""
    return BOOT_ID.read_text().strip(), time.monotonic()
