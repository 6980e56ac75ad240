"""Check of device certificates against the database, which learns of a revocation first."""

from __future__ import annotations

from datetime import datetime

from fleet.controller.database import polling
from fleet.controller.database.devices import EnrolmentState
from fleet.controller.database.engine import Connection
from fleet.controller.database.polling import PollingDevice
from gateway.domain.errors import Fault, RequestError

AGAIN = "enrol the device again"


def admitted(connection: Connection, serial: str, now: datetime) -> PollingDevice:
    """Return what the database holds for the device with this certificate, for one poll.

    Raise RequestError UNAUTHENTICATED if the certificate is unknown, revoked or expired, or its device is not enrolled.
    """
    found = polling.polled(connection, serial, now)
    problem = _problem(found, now)
    if found is None or problem:
        raise RequestError(Fault.UNAUTHENTICATED, f"the certificate {serial:.80} {problem}; {AGAIN}")
    return found


def _problem(found: PollingDevice | None, now: datetime) -> str:
    if found is None:
        return "is not known here"
    if found.certificate_revoked is not None:
        return "was revoked"
    if found.certificate_expires <= now:
        return f"has expired at {found.certificate_expires:%Y-%m-%d %H:%M} UTC"
    return "" if found.state is EnrolmentState.ENROLLED else f"is that of a device that is {found.state}"
