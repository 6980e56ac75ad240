"""Settings of the fleet: those in force in this process, and trials of others. Implements the port SettingsTrials.

A trial is one life of the process: the daemon verifies and checks the new settings, drains, and executes itself with
them. A process that ends in a trial, in whichever way, is followed by one with the committed settings (decision 0043).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from gateway.common.domain.activation import Activation
from gateway.common.domain.document import parse_toml
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.common.domain.settings import constants
from gateway.common.domain.settings_layer import SettingsLayer, refused_keys
from gateway.common.domain.settings_trial import TRIAL_LIMIT_S
from gateway.common.store.errors import StoreError
from gateway.serving.assembly import matching_profile
from gateway.serving.committed.store import CommittedStore
from gateway.serving.config import SECTIONS, Config, check_listeners, read_security
from gateway.serving.domain.ports import SettingsStanding
from gateway.serving.store.settings_record import SettingsRecord, StoredSettings, read_record, write_record

TRIAL = "EDGE_GATEWAY_SETTINGS_TRIAL"
"""Environment variable of a process on trial: the digest of its settings, and after how many seconds it ends."""
WITHOUT = "without"
"""Value of TRIAL, followed by the reason, for a process that leaves the committed settings out."""
ENDED = "the gateway ended during the trial"
EXPIRED = "they were not confirmed in time"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Life:
    """Start of a process: its record in `folder` and the settings in force. `ends_in_s`: time left of a trial, or None.

    `problem`: why committed settings are not in force, or the record cannot be written ("": neither).
    """

    folder: Path
    record: SettingsRecord = field(default_factory=SettingsRecord)
    in_force: StoredSettings | None = None
    ends_in_s: float | None = None
    problem: str = ""

    @property
    def layer(self) -> SettingsLayer | None:
        """Return the settings in force as a layer over the configuration."""
        return self.in_force.layer if self.in_force else None

    def without(self, problem: str) -> Life:
        """Return a life with the device's own settings alone, for a reason."""
        return replace(self, in_force=None, ends_in_s=None, problem=problem)


def begin(folder: Path, environ: MutableMapping[str, str] = os.environ) -> Life:
    """Return which settings this process begins with; a trial that no process is on is ended. Never raises."""
    number = environ.pop(TRIAL, "")
    digest, ends_in_s = _trial(number)
    try:
        record = read_record(folder)
    except StoreError as error:
        return Life(folder, problem=str(error))
    if record.trial and record.trial.sha256 == digest:
        return Life(folder, record, record.trial, ends_in_s)
    life = Life(folder, record.taken_back(ENDED), record.committed)
    if number.startswith(f"{WITHOUT} "):
        life = life.without(number.partition(" ")[2])
    if record.trial:  # it has ended
        try:
            write_record(folder, life.record)
        except StoreError as error:
            return replace(life, problem=str(error))
    return life


def _trial(text: str) -> tuple[str, float]:
    """Return digest and seconds of a trial; a value that is not ours is no trial."""
    digest, _, seconds = text.partition(" ")
    try:
        ends_in_s = float(seconds)
    except ValueError:
        return "", 0.0
    return (digest, ends_in_s) if 0 < ends_in_s <= TRIAL_LIMIT_S else ("", 0.0)


def is_on_trial(life: Life) -> bool:
    """Return whether this process began with a trial that is neither confirmed nor taken back."""
    if life.ends_in_s is None or life.in_force is None:
        return False
    try:
        trial = read_record(life.folder).trial
    except StoreError:
        return True
    return trial is not None and trial.sha256 == life.in_force.sha256


def take_back(life: Life, reason: str) -> None:
    """Record that the trial of this process failed."""
    _log.error("the fleet's settings %s are taken back: %s", life.layer.written if life.layer else "", reason)
    try:
        write_record(life.folder, read_record(life.folder).taken_back(reason))
    except StoreError as error:  # the next life takes them back, without the reason
        _log.warning("the reason is not recorded: %s", error)


def execute_again(trial: str = "") -> NoReturn:
    """Replace this process by a new one of the same command and process id, with its listening sockets.

    `trial`: value of TRIAL. Raises OSError.
    """
    from gateway.common.notify import Notifier
    from gateway.common.wire.kept_listeners import KEPT

    Notifier.from_environment(os.environ).watchdog()  # so that the new one has its whole time to start
    sys.stdout.flush()
    sys.stderr.flush()
    environ = {**os.environ, **KEPT.pass_on()}  # `begin` took the earlier ones out
    if trial:
        environ[TRIAL] = trial
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606


async def check_startable(config: Config) -> None:
    """Check a configuration with settings of the fleet, as `config check` does. Raises ConfigurationError."""
    if not config.fleet.settings:
        problem = "this device takes no settings from its fleet"
        raise config.error(problem, "fleet", "settings")
    check_listeners(config, await asyncio.to_thread(read_security, config))
    await matching_profile(config)


class SettingsControl:
    """The settings of one process. `restart` ends the process orderly; `trial` is what `execute_again` then takes.

    `check` raises ConfigurationError for a layer with which the gateway could not start. `is_stopping` returns whether
    the process ends already; `restart` then changes nothing.
    """

    def __init__(
        self,
        life: Life,
        store: CommittedStore,
        check: Callable[[SettingsLayer], Awaitable[None]],
        restart: Callable[[str], None],
        is_stopping: Callable[[], bool],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._life, self._record, self._store = life, life.record, store
        self._check, self._restart, self._is_stopping, self._monotonic = check, restart, is_stopping, monotonic
        self._ends_s = None if life.ends_in_s is None else monotonic() + life.ends_in_s
        self._taken_back = False

    def standing(self) -> SettingsStanding:
        """Implement `SettingsTrials.standing`."""
        force, committed, failed = self._life.in_force, self._record.committed, self._record.failed
        return SettingsStanding(
            target=force.target if force else "",
            sha256=force.sha256 if force else "",
            trial_ends_in_s=None if self._ends_s is None else max(0.0, self._ends_s - self._monotonic()),
            committed=committed.target if committed else "",
            failed=failed.target if failed else "",
            failed_sha256=failed.sha256 if failed else "",
            reason=failed.reason if failed else "",
            problem=self._life.problem,
        )

    async def try_out(self, activation: Activation, within_s: float) -> None:
        """Implement `SettingsTrials.try_out`."""
        if not 0 < within_s <= TRIAL_LIMIT_S:
            raise RequestError(Fault.INVALID, f"within_s must be above 0 and at most {TRIAL_LIMIT_S:g}")
        self._check_idle()
        stored = StoredSettings(activation.target, activation.release, await self._verified(activation))
        try:
            await self._check(stored.layer)
        except ConfigurationError as error:
            raise VariantError(str(error)) from error
        self._check_idle()  # another trial or a stop may have begun meanwhile
        self._write(self._record.begun(stored))
        _log.info("trial of the fleet's settings %s", stored.layer.written)
        self._restart(f"{stored.sha256} {within_s:g}")

    async def confirm(self, sha256: str) -> None:
        """Implement `SettingsTrials.confirm`."""
        self._check_in_force(sha256)
        if self._ends_s is not None:
            self._write(self._record.confirmed())
            self._ends_s = None
            _log.info("the fleet's settings %s are committed", self._life.layer and self._life.layer.written)

    async def revert(self, sha256: str, reason: str) -> None:
        """Implement `SettingsTrials.revert`."""
        if self._ends_s is not None:
            self._check_in_force(sha256)
            self.end_trial(reason)

    def end_trial(self, reason: str = EXPIRED) -> None:
        """Restart with the committed settings, unless what was on trial is committed by now."""
        if self._ends_s is None or self._taken_back:
            return
        self._taken_back = True
        self._record = self._record.taken_back(reason)
        take_back(self._life, reason)
        self._restart("")

    async def _verified(self, activation: Activation) -> str:
        """Return the TOML text of a release that verifies and sets what it may set. Raises VariantError."""
        judged = await self._store.settings(activation)
        if judged.problem:
            raise VariantError(judged.problem)
        document = await asyncio.to_thread(parse_toml, judged.toml, activation.target)
        # The check of the whole configuration, which follows, refuses constants by their names.
        fixed = [f"{table}.{name}" for table, kind in SECTIONS.items() for name in constants(kind)]
        if refused := refused_keys(document, [*judged.permitted, *fixed]):
            raise VariantError(
                f"{activation.target} sets {', '.join(refused):.300}, which no policy of this device permits; "
                'let a signed policy list them under "settings" (EG-809)'
            )
        return judged.toml

    def _check_idle(self) -> None:
        if self._ends_s is not None:
            raise RequestError(Fault.UNAVAILABLE, f"a trial goes on: {self.standing().target}")
        if self._is_stopping():
            raise RequestError(Fault.UNAVAILABLE, "the gateway tries no settings now: it restarts or stops")

    def _check_in_force(self, sha256: str) -> None:
        force = self._life.in_force
        if force is None or force.sha256 != sha256 or self._taken_back:
            current = force.target if force and not self._taken_back else "the committed ones"
            why = f"; {self._record.failed.reason}" if self._record.failed else ""
            raise VariantError(f"other settings are in force: {current}{why}")

    def _write(self, record: SettingsRecord) -> None:
        try:
            write_record(self._life.folder, record)
        except StoreError as error:
            raise RequestError(Fault.UNAVAILABLE, f"the settings cannot be kept: {error}") from error
        self._record = record
