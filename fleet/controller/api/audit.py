"""`/v1/audit`: the audit log, a chain of entries that shows whether it was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litestar import get

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.fields import ActorInQuery, NameInQuery
from fleet.controller.api.identity import Call, allow, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Number, Page, page
from fleet.controller.audit import Break, LogEntry
from fleet.controller.database import audit
from fleet.times import moment


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Entry of the audit log. `digest` covers `previous`, the digest of the entry before."""

    sequence: int
    at: str
    actor: str
    action: str
    subject: str
    details: Mapping[str, object]
    previous: str
    digest: str


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification.

    `sequence`, `digest`: end of the log; or, if `ok` is false, `broken_at` is the first entry that was changed.
    """

    ok: bool
    sequence: int
    digest: str
    broken_at: int | None = None
    problem: str = ""


@operation(get, "/v1/audit", Action.AUDIT_READ, "List the audit log, newest first")
def entries(
    request: Call,
    actor: ActorInQuery = "",
    subject: NameInQuery = "",
    before: Number = 0,
    limit: Limit = PAGE_ROWS,
) -> Page[AuditEntry]:
    """Return entries of the audit log. `before`: the `next` of the page before this one."""
    allow(request)
    control = control_of(request)
    with control.database.read() as connection:
        found = audit.page(
            connection, control.database.settings, actor=actor, subject=subject, before=before or None, limit_rows=limit
        )
    return page(found, limit, _entry, lambda entry: entry.sequence)


@operation(get, "/v1/audit/verify", Action.AUDIT_READ, "Verify the audit log")
def verify(request: Call) -> Verified:
    """Check every entry against its digest.

    Note the digest elsewhere: who can write to the database can write a new chain.
    """
    allow(request)
    control = control_of(request)
    with control.database.read() as connection:
        found = audit.verify(connection, control.database.settings)
    if isinstance(found, Break):
        return Verified(False, found.sequence - 1, "", found.sequence, found.problem)
    return Verified(True, found.sequence, found.digest)


def _entry(entry: LogEntry) -> AuditEntry:
    deed = entry.deed
    facts = (deed.actor, deed.action, deed.subject, deed.details)
    return AuditEntry(entry.sequence, moment(entry.at), *facts, entry.previous, entry.digest)


HANDLERS = (entries, verify)
