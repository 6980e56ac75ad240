"""Whether the certificate that a device showed still opens anything: by the database, which hears of it first."""

from __future__ import annotations

from datetime import datetime

from fleet.database import polling
from fleet.database.devices import State
from fleet.database.engine import Connection
from fleet.database.polling import Polled
from gateway.domain.errors import Fault, RequestError

AGAIN = "enrol the device anew"


def admitted(connection: Connection, serial: str, now: datetime) -> Polled:
    """What there is for the device whose certificate has this serial. Raises RequestError UNAUTHENTICATED."""
    found = polling.polled(connection, serial, now)
    problem = _problem(found, now)
    if found is None or problem:
        raise RequestError(Fault.UNAUTHENTICATED, f"the certificate {serial:.80} {problem}; {AGAIN}")
    return found


def _problem(found: Polled | None, now: datetime) -> str:
    if found is None:
        return "is not known here"
    if found.certificate_revoked is not None:
        return "was revoked"
    if found.certificate_expires <= now:
        return f"has expired at {found.certificate_expires:%Y-%m-%d %H:%M} UTC"
    return "" if found.state is State.ENROLLED else f"is that of a device that is {found.state}"
