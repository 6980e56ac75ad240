"""Decision of an agent about the assigned programs, on values, at every poll."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gateway.domain.assignment import Target
from gateway.domain.software_update import REVOCABLE, SoftwareUpdate, environment_name


class Choice(enum.Enum):
    """Action of the agent."""

    NOTHING = "nothing"
    INSTALL = "install"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Tried:
    """Release (digest) of the last request to the installer, and its attempt number."""

    release: str
    attempt: int


def choose(
    assigned: Target | None, attempt: int, running: str, record: SoftwareUpdate | None, tried: Tried | None
) -> Choice:
    """Return the action.

    `running`: name of the environment of this process. `record`: the installer's last update. A release that was tried
    (rolled back, refused, or replaced by hand) is tried again only at a greater attempt. Nothing is ever removed:
    without an assignment the running version stays.
    """
    if record is not None and not record.ended:
        wanted = assigned is not None and record.release == assigned.sha256
        return Choice.NOTHING if wanted or record.phase not in REVOCABLE else Choice.GIVE_UP
    if assigned is None or running == environment_name(assigned.path.split("/")[-2], assigned.sha256):
        return Choice.NOTHING
    if tried is not None and tried.release == assigned.sha256 and attempt <= tried.attempt:
        return Choice.NOTHING
    return Choice.INSTALL
