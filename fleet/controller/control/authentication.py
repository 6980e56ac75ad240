"""Check of device certificates against the database, which learns of a revocation first."""

from __future__ import annotations

from datetime import datetime

from fleet.controller.database import polling
from fleet.controller.database.devices import EnrolmentState
from fleet.controller.database.engine import Connection
from fleet.controller.database.polling import PollingDevice
from fleet.controller.problems import ProblemError
from fleet.problem_types import DEVICE_SUSPENDED
from gateway.common.domain.errors import Fault, RequestError

AGAIN = "enrol the device again"


def admitted(connection: Connection, serial: str, now: datetime, *, suspended: bool = False) -> PollingDevice:
    """Return what the database holds for the device with this certificate, for one poll.

    `suspended`: the device may be. Raise RequestError UNAUTHENTICATED if the certificate is unknown, revoked or
    expired, or its device is not enrolled; what `refuse_suspended` raises.
    """
    found = polling.polled(connection, serial, now)
    problem = _problem(found, now)
    if found is None or problem:
        raise RequestError(Fault.UNAUTHENTICATED, f"the certificate {serial:.80} {problem}; {AGAIN}")
    if not suspended:
        refuse_suspended(found)
    return found


def refuse_suspended(found: PollingDevice) -> None:
    """Raise ProblemError for a device that is suspended."""
    if found.state is EnrolmentState.SUSPENDED:
        problem = f"{found.device} is suspended; it continues with what it runs until an operator resumes it"
        raise ProblemError(DEVICE_SUSPENDED.status, problem, kind=DEVICE_SUSPENDED)


def _problem(found: PollingDevice | None, now: datetime) -> str:
    if found is None:
        return "is not known here"
    if found.certificate_revoked is not None:
        return "was revoked"
    if found.certificate_expires <= now:
        return f"has expired at {found.certificate_expires:%Y-%m-%d %H:%M} UTC"
    is_enrolled = found.state in {EnrolmentState.ENROLLED, EnrolmentState.SUSPENDED}
    return "" if is_enrolled else f"is that of a device that is {found.state}"
