"""Data for a device's poll, read in one statement: most polls end with 304 and cost nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.assignments import BASE
from fleet.controller.database.devices import STATE, EnrolmentState
from fleet.controller.database.tables import assignments, certificates, desired_revisions, devices, diagnostics, numbers


@dataclass(frozen=True, slots=True)
class PollingDevice:
    """The device behind a certificate, and what there is for it. `version` 0: no valid assignment, sign one.

    `revision`: of the desired state. `signed_revision`: the one the assignment was signed from. Sign again if they
    differ, or if `basis` is not the present one. `asked`: a request for diagnostics waits.
    """

    device: str
    state: EnrolmentState
    certificate_expires: datetime
    certificate_revoked: datetime | None
    version: int
    digest: str
    issued: datetime | None
    expires: datetime | None
    signed_revision: int
    revision: int
    basis: str
    asked: bool


def polled(connection: Connection, serial: str, now: datetime) -> PollingDevice | None:
    """Return the data of the device with this certificate, or None if the certificate is unknown.

    The caller refuses revoked and expired certificates.
    """
    row = connection.execute(_POLLED, {"serial": serial, "now": now}).one_or_none()
    if row is None:
        return None
    device, state, until, revoked, base, version, digest, issued, expires, signed, basis, revision, asked = row
    if (version or 0) <= (base or 0):
        version, digest, issued, expires, signed, basis = 0, "", None, None, 0, ""
    there = (version, digest, issued, expires, signed, revision or 0, basis)
    return PollingDevice(device, EnrolmentState(state), until, revoked, *there, asked)


_OPEN = sa.exists().where(
    diagnostics.c.device == devices.c.id,
    diagnostics.c.answered.is_(None),
    diagnostics.c.expires > sa.bindparam("now", type_=diagnostics.c.expires.type),
)
_POLLED = (
    sa.select(
        devices.c.id,
        STATE,
        certificates.c.expires,
        certificates.c.revoked,
        sa.select(numbers.c.value).where(numbers.c.name == BASE).scalar_subquery(),
        assignments.c.version,
        assignments.c.digest,
        assignments.c.issued,
        assignments.c.expires,
        assignments.c.revision,
        assignments.c.basis,
        desired_revisions.c.revision,
        _OPEN,
    )
    .select_from(certificates)
    .join(devices, devices.c.id == certificates.c.device)
    .outerjoin(assignments, assignments.c.device == devices.c.id)
    .outerjoin(desired_revisions, desired_revisions.c.device == devices.c.id)
    .where(certificates.c.serial == sa.bindparam("serial", type_=certificates.c.serial.type))
)
