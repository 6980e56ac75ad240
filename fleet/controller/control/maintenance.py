"""Periodic maintenance jobs, each with its own period. A job that fails is retried, and stops no other.

One of them renews timestamp and snapshot before they expire, as `edge-fleet publish` does, with the online keys here.
It leaves drafts alone: people decide what is released.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fleet import events
from fleet.controller.control.archiving import ACTOR, archive_before
from fleet.controller.control.control import Control
from fleet.controller.control.device_ca import AUTHORITY_FOLDER
from fleet.controller.control.monotonic_clock import MonotonicClock
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.control.revocations import write_revocations
from fleet.controller.control.uploads import named_files
from fleet.controller.database import certificates, changes, devices, enrolment, idempotency, sweep, tokens
from fleet.controller.database import events as device_events
from fleet.controller.database.engine import Connection
from fleet.controller.database.leader import guard
from fleet.controller.database.rows import chunks
from fleet.publisher.publish import online_roots, plan_publication
from fleet.publisher.repository import Published
from fleet.publisher.roles import TIMESTAMP
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError

TOUCHED_AT_ONCE = 5_000
"""Devices whose last polls are written in one transaction; a bound, because others want to write too."""
FAILED = "maintenance_failed_"


def renew_published(workspace: Workspace, keys: OnlineKeys, now: datetime, share: float) -> bool:
    """Sign timestamp and snapshot if less than `share` of either's life is left. Return whether it is done.

    An operator who works in the folder goes first. If none of the keys is here, they are renewed elsewhere. Raise
    ConfigurationError if only some of the keys are here, or the folder is damaged; OSError.
    """
    published = workspace.published()
    if not is_due(workspace, published, now, share) or not _has_key(published, keys):
        return True
    with ExitStack() as stack:
        try:
            stack.enter_context(workspace.locked())
        except UnreachableError as error:
            _log.info(events.PUBLICATION_RENEWAL_POSTPONED, error)
            return False
        published = workspace.published()
        if is_due(workspace, published, now, share):
            signers = keys.of_roots(online_roots(published, {}))
            workspace.write(plan_publication(published, [], signers, now, workspace.settings))
            _log.info(events.PUBLICATION_RENEWED)
    return True


def is_due(workspace: Workspace, published: Published, now: datetime, share: float) -> bool:
    """Return whether timestamp or snapshot is to be signed; False if nothing is published yet."""
    timestamp, snapshot = published.timestamp, published.snapshot
    if published.root is None or timestamp is None or snapshot is None:
        return False
    lives = ((timestamp, workspace.settings.timestamp_expiry_d), (snapshot, workspace.settings.snapshot_expiry_d))
    return any(document.signed.expires - now < timedelta(days=life_d) * share for document, life_d in lives)


def _has_key(published: Published, keys: OnlineKeys) -> bool:
    """Return whether a key of the timestamp is here."""
    named = [root.roles[TIMESTAMP] for root in online_roots(published, {})]
    return any(keys.signers(TIMESTAMP, one.keyids, one.threshold) for one in named)


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceJob:
    """Maintenance job. `work(fence, now)` returns whether it is done; if not, it is due again in the next tick.

    `everywhere`: every replica does it, with fence 0; otherwise only the leader. `destroys`: it deletes by age, so its
    `now` comes from the `MonotonicClock`.
    """

    name: str
    every_s: float
    work: Callable[[int, datetime], bool]
    everywhere: bool = False
    destroys: bool = False


@dataclass(slots=True)
class Maintenance:
    """Maintenance jobs of one process, used by one thread.

    `fence`: returns this replica's fencing token, None if it does not lead.
    """

    control: Control
    fence: Callable[[], int | None]
    clock: MonotonicClock
    jobs: Sequence[MaintenanceJob] = ()
    done: dict[str, datetime] = field(default_factory=dict)
    _due: dict[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add all maintenance jobs of a controller, unless others are given."""
        self.jobs = self.jobs or all_jobs(self.control)

    def tick(self, now: datetime) -> None:
        """Do the jobs that are due."""
        believed = self.clock.read(now)
        for job in self.jobs:
            fence = 0 if job.everywhere else self.fence()
            if fence is not None and self._is_due(job, now):
                self._attempt(job, fence, now, believed)

    def end(self) -> None:
        """Write what is buffered in memory, before the process ends."""
        flush_seen(self.control, self.control.clock())

    def _is_due(self, job: MaintenanceJob, now: datetime) -> bool:
        """Return whether the job is due. A clock that was set back makes it due."""
        due = self._due.get(job.name)
        return due is None or not due - timedelta(seconds=job.every_s) <= now < due

    def _attempt(self, job: MaintenanceJob, fence: int, now: datetime, believed: datetime) -> None:
        retry = timedelta(seconds=min(job.every_s, self.control.settings.maintenance.retry_s))
        self._due[job.name] = now + retry
        try:
            if job.work(fence, believed if job.destroys else now):
                self._due[job.name] = now + timedelta(seconds=job.every_s)
                self.done[job.name] = now
            else:
                del self._due[job.name]
        except (RequestError, ConfigurationError, OSError) as error:
            self._failed(job)
            _log.warning(events.MAINTENANCE_JOB_FAILED, job.name, error)
        except Exception:  # noqa: BLE001  a job's boundary: a defect in one must not stop the others
            self._failed(job)
            _log.exception(events.MAINTENANCE_JOB_CRASHED, job.name)

    def _failed(self, job: MaintenanceJob) -> None:
        self.control.counts[f"{FAILED}{job.name}"] += 1


def all_jobs(control: Control) -> tuple[MaintenanceJob, ...]:
    """Return all maintenance jobs of a controller."""
    settings = control.settings.maintenance
    folder = control.workspace.folder / AUTHORITY_FOLDER
    validity = timedelta(hours=settings.revocation_list_h)
    return (
        MaintenanceJob("seen", settings.seen_every_s, lambda _, now: flush_seen(control, now), everywhere=True),
        MaintenanceJob(
            "revocations",
            settings.revocation_list_every_s,
            lambda _, now: write_revocations(control.database, control.authority, folder, now, validity),
            everywhere=True,
        ),
        MaintenanceJob(
            "sweep", settings.sweep_every_s, lambda fence, now: sweep_records(control, fence, now), destroys=True
        ),
        MaintenanceJob(
            "forget", settings.forget_every_s, lambda fence, now: forget_expired(control, fence, now), destroys=True
        ),
        MaintenanceJob(
            "archive",
            settings.archive_every_s,
            lambda fence, now: archive_ended(control, fence, now),
            destroys=True,
        ),
        MaintenanceJob(
            "uploads",
            control.settings.drafts.expire_every_s,
            lambda _, now: expire_uploads(control, now),
            everywhere=True,  # the leader may be a replica that takes none
            destroys=True,
        ),
        MaintenanceJob(
            "publish",
            settings.publish_every_s,
            lambda _, now: renew_published(control.workspace, control.keys, now, settings.publish_share),
        ),
    )


def expire_uploads(control: Control, now: datetime) -> bool:
    """Remove uploads that were not continued and staged files that no draft names; False while the folder is in use."""
    work = control.workspace
    if not control.settings.drafts.accepted:
        return True
    with ExitStack() as stack:
        try:
            stack.enter_context(work.locked())
        except UnreachableError:
            return False
        if removed := control.uploads.expire(now, named_files(work, work.drafts().values())):
            _log.info(events.UPLOADS_EXPIRED, removed)
    return True


def flush_seen(control: Control, now: datetime) -> bool:
    """Write when devices were last seen.

    Raise AwayError; the times lost by that are written after the devices' next polls.
    """
    due = control.seen.due(now)
    for names in chunks(sorted(due), TOUCHED_AT_ONCE):
        with control.database.write() as connection:
            devices.touch(connection, {name: due[name] for name in names})
    return True


def sweep_records(control: Control, fence: int, now: datetime) -> bool:
    """Delete telemetry, events and changes beyond their bounds, in small steps. Return whether none are left.

    Raise AwayError, FencedError.
    """
    settings, began_s = control.database.settings, time.monotonic()
    while time.monotonic() - began_s < control.settings.maintenance.sweep_limit_s:
        with control.database.read() as connection:
            due = sweep.due(connection, now, settings.telemetry)
        with control.database.write() as connection:
            guard(connection, fence)
            swept = sweep.sweep(connection, now, settings.telemetry) if due else 0
            swept = swept or device_events.sweep(connection, now, settings) or changes.sweep(connection, now, settings)
        if not swept:
            return True
    return False


def forget_expired(control: Control, fence: int, now: datetime) -> bool:
    """Delete tokens and certificates that expired some time ago, and old answers to idempotency keys.

    The audit log still names the tokens and certificates. Raise AwayError, FencedError.
    """
    expired = now - timedelta(days=control.settings.maintenance.forget_after_d)
    answered = now - timedelta(hours=control.settings.requests.idempotency_kept_h)
    forgetting: tuple[tuple[Callable[[Connection, datetime], int], datetime], ...]
    forgetting = (
        (enrolment.forget, expired),
        (tokens.forget, expired),
        (certificates.forget, expired),
        (idempotency.forget, answered),
    )
    for forget, before in forgetting:
        with control.database.write() as connection:
            guard(connection, fence)
            forget(connection, before)
    return True


def archive_ended(control: Control, fence: int, now: datetime) -> bool:
    """Archive rollouts that ended `archive_rollouts_d` days ago. Return whether none are left.

    Raise AwayError, FencedError.
    """
    days = control.settings.maintenance.archive_rollouts_d
    if not days:
        return True
    return not archive_before(control.database, now - timedelta(days=days), ACTOR, now, fence=fence).more
