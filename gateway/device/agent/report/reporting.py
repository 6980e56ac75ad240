"""Reports to the fleet from a thread of the cycle's process. An update never waits for a controller.

The thread also renews the device's certificate and answers requests for diagnostics. Records that could not be sent
wait in the spool; `edge-agent status` shows the problem.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.retry import longest_pause_s
from gateway.common.logs import get_logger
from gateway.common.store.errors import DamagedError, StoreError
from gateway.common.store.sqlite_file import set_aside
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.source import FetchError
from gateway.device.agent import events
from gateway.device.agent.clock import boot_name
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.control import DaemonClient
from gateway.device.agent.fetch.certificate import expiry_text, read_held, renew
from gateway.device.agent.fetch.controller import UNWELCOME, ControllerClient
from gateway.device.agent.report.diagnostics import REMEMBERED, diagnose
from gateway.device.agent.report.health_report import Subject
from gateway.device.agent.report.report import LINK, read_standing
from gateway.device.agent.report.sending import send
from gateway.device.agent.report.telemetry import MARKS, Document, ReportInput, digest, event, observe, telling
from gateway.device.agent.state.identity import DeviceIdentity
from gateway.device.agent.state.policy import present
from gateway.device.agent.state.polled import SUSPENDED, SUSPENDED_KIND
from gateway.device.agent.state.storage import Storage, opened_for_reading
from gateway.device.store.spool import NAME, Spool

EPOCH = "epoch"
"""Name of the fact: the spool's last epoch. The spool itself may be lost."""
INVENTORY, RETRY, ANSWERED, QUIET = "inventory", "retry", "answered", "quiet"
"""Marks in the spool.

`inventory`: digest of the inventory that the controller has. `retry`: failures in a row and time of the next try.
`answered`: answered requests for diagnostics. `quiet`: time until which no request is answered.
"""
INVENTORY_LIMIT_BYTES = 262_144
STOP_LOOK_S = 0.1
"""Interval at which a wait for the thread checks for a stop."""


class Reporter:
    """Reporting thread. Call `tell` at any time from any thread, `close` at the end of the cycle.

    Does nothing on a device without a controller.
    """

    def __init__(
        self, folder: Path, config: AgentConfig, identity: DeviceIdentity, connections: ConnectionPool
    ) -> None:
        self._report = partial(report, folder, config, identity, connections)
        self._due, self._closing = threading.Event(), False
        self._thread: threading.Thread | None = None
        if identity.controller and config.telemetry.enabled:
            self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
            self._thread.start()

    def tell(self) -> None:
        """Request a report because something may have changed."""
        self._due.set()

    def close(self, wait_s: float, stopping: Callable[[], bool] = lambda: False) -> None:
        """Report once more; wait at most `wait_s` or until `stopping`. The next cycle sends what is left."""
        if self._thread is None:
            return
        self._closing = True
        self._due.set()
        until_s = time.monotonic() + wait_s
        while self._thread.is_alive() and not stopping() and time.monotonic() < until_s:
            self._thread.join(STOP_LOOK_S)

    def _run(self) -> None:
        closing = False
        while not closing:
            self._due.wait()
            self._due.clear()
            closing = self._closing
            try:
                self._report()
            except (StoreError, ConfigurationError) as error:
                get_logger("telemetry").warning(events.REPORT_FAILED, problem=str(error))
            except Exception as error:  # noqa: BLE001  a thread's boundary: telemetry must not stop updates
                get_logger("telemetry").error(events.REPORT_CRASHED, problem=f"{type(error).__name__}: {error}")


def report(folder: Path, config: AgentConfig, identity: DeviceIdentity, connections: ConnectionPool) -> str:
    """Keep new records and send those that wait. Return why they could not be sent, or "".

    Raise StoreError, ConfigurationError.
    """
    with opened_for_reading(folder, config) as storage:
        now = present(storage.journal.time_floor()).now
        spool = _opened(storage, config, now)
        try:
            return _Report(storage, spool, config, identity, connections, now=now).run()
        except DamagedError as error:
            if Path(error.file).name == NAME:
                spool.close()
                set_aside(folder / NAME)
            raise
        finally:
            spool.close()


def boot_in(folder: Path) -> str:
    """Return the name of this boot for the spool in `folder`. A copy of the folder on this machine has another one."""
    place = folder.stat()
    return f"{boot_name()} {place.st_dev}.{place.st_ino}"


def _opened(storage: Storage, config: AgentConfig, now: datetime) -> Spool:
    """Open the spool. If the boot id is unknown, all boots share one stream of numbers and times."""
    last = int(storage.journal.fact(EPOCH) or 0)
    spool = Spool.open(storage.folder, boot_in(storage.folder), now, config.spool, last_epoch=last)
    if spool.epoch != last:  # before the first number of this epoch is used
        storage.journal.keep_facts({EPOCH: str(spool.epoch)})
    problem = spool.renewed or ("it was not there" if last and spool.mark(MARKS[0]) is None else "")
    if problem:
        spool.append([event("spool-begun-anew", now, problem=problem)], now)
    if not last and spool.mark(MARKS[0]) is not None:
        problem = "it was not there, or damaged; until this device asked again it had no floors"
        spool.append([event("journal-begun-anew", now, problem=problem)], now)
    return spool


class _Report:
    """One report, on the poll's connection if the controller has kept it open."""

    def __init__(
        self,
        storage: Storage,
        spool: Spool,
        config: AgentConfig,
        identity: DeviceIdentity,
        connections: ConnectionPool,
        *,
        now: datetime,
    ) -> None:
        self._storage, self._spool, self._config, self._identity = storage, spool, config, identity
        self._connections, self._now = connections, now
        self._controller = ControllerClient(identity.controller, connections, config.telemetry.deadline_s)

    def run(self) -> str:
        standing = read_standing(self._storage, self._identity)
        observed = observe(standing, DaemonClient(self._config.control))
        settings, spool = self._config.telemetry, self._spool
        marks = {name: spool.mark(name) for name in MARKS}
        limit_bytes = self._config.spool.record_limit_bytes
        report = telling(
            observed, marks, spool.usage(), self._now, refresh_s=settings.refresh_s, limit_bytes=limit_bytes
        )
        spool.append(report.records, self._now, report.marks)
        return self._exchange(observed, standing.polled.get("reason") == SUSPENDED) if self._is_due(RETRY) else ""

    def _exchange(self, observed: ReportInput, suspended: bool) -> str:
        """Renew, send and diagnose; a suspended device only renews, and its records wait.

        A step that fails does not prevent the next ones while the controller answers and accepts this device.
        """
        steps: list[Callable[[], None]] = [self._renew]
        if not suspended:
            steps += [partial(self._tell, observed.inventory), partial(self._diagnose, observed)]
        failed: list[FetchError] = []
        for step in steps:
            try:
                step()
            except FetchError as error:
                if error.kind == SUSPENDED_KIND:  # since the last poll; the next one finds it
                    break
                failed.append(error)
                if not error.status or error.status in UNWELCOME:
                    break
        problem = str(failed[0]) if failed else ""
        if failed and failed[-1].status in UNWELCOME:
            problem = f"the fleet refuses this device; enrol it again: {failed[-1]}"
        elif failed and not failed[-1].status:
            problem = expiry_text(self._config.fetch, self._storage.folder, self._now) + problem
        if problem:
            get_logger("telemetry").warning(events.REPORT_NOT_SENT, problem=problem)
        self._remember(problem, max((error.retry_after_s for error in failed), default=0.0))
        return problem

    def _renew(self) -> None:
        folder, held = self._storage.folder, read_held(self._storage.folder)
        if held and self._now >= held.renew_from and self._config.fetch.certificate_file is None:
            renew(folder, self._controller, self._identity.device)
            self._connections.renew()

    def _tell(self, inventory: Document | None) -> None:
        named = digest(inventory) if inventory else ""
        if inventory and named != self._spool.mark(INVENTORY):
            content = json.dumps(inventory).encode()
            if len(content) <= INVENTORY_LIMIT_BYTES:
                body = gzip.compress(content, mtime=0)
                self._controller.send("PUT", "/v1/self/inventory", body, "application/json", "gzip")
            self._spool.append([], self._now, {INVENTORY: named})
        send(self._spool, self._controller, self._config.telemetry)

    def _diagnose(self, observed: ReportInput) -> None:
        """Answer requests for diagnostics, only if the signed assignment announces one."""
        accepted = observed.standing.accepted
        if accepted is None or not accepted.assignment.diagnostics or not self._is_due(QUIET):
            return
        subject = Subject(observed, self._spool.usage(), self._storage.folder, self._config.store.keep_free_bytes)
        known, allowed = json.loads(self._spool.mark(ANSWERED) or "[]"), self._config.telemetry.diagnostics
        for named in diagnose(self._controller, tuple(known), subject, self._config.diagnostics, allowed=allowed):
            known = [*known, named][-REMEMBERED:]
            quiet = _until(self._config.diagnostics.least_pause_s)
            self._spool.append([], self._now, {ANSWERED: json.dumps(known), QUIET: json.dumps(quiet)})

    # ---- pauses ------------------------------------------------------------------------------------------------------
    def _is_due(self, mark: str) -> bool:
        """Return True if the pause of `mark` is over. Its times are of the monotonic clock, which processes share."""
        until = self._pause(mark)
        return not 0 < until.get("at_s", 0.0) - time.monotonic() <= until.get("pause_s", 0.0)

    def _remember(self, problem: str, retry_after_s: float) -> None:
        held = read_held(self._storage.folder)
        settings, failures = self._config.telemetry, int(self._pause(RETRY).get("failures", 0))
        if problem:
            pause_s = max(longest_pause_s(failures + 1, settings.retry_s, settings.retry_limit_s), retry_after_s)
            retry = {"failures": failures + 1, **_until(min(pause_s, self._config.fetch.retry_after_limit_s))}
            self._spool.append([], self._now, {RETRY: json.dumps(retry)})
        elif failures:
            self._spool.append([], self._now, {RETRY: "{}"})
        link = {"problem": problem, "certificate_expires": held.expires.isoformat() if held else None}
        journal, text = self._storage.journal, json.dumps(link)
        if journal.fact(LINK) != text:
            journal.keep_facts({LINK: text})

    def _pause(self, mark: str) -> Mapping[str, float]:
        found: Mapping[str, float] = json.loads(self._spool.mark(mark) or "{}")
        return found


def _until(pause_s: float) -> dict[str, float]:
    return {"at_s": time.monotonic() + pause_s, "pause_s": pause_s}
