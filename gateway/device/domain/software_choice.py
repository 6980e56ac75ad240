"""Decision of an agent about the assigned programs, on values, at every poll."""

from __future__ import annotations

import enum

from gateway.common.domain.assignment import Target
from gateway.common.domain.update import Tried
from gateway.device.domain.software_update import REVOCABLE, SoftwareUpdate, environment_name


class Choice(enum.Enum):
    """Action of the agent."""

    NOTHING = "nothing"
    INSTALL = "install"
    GIVE_UP = "give up"


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
    if tried is not None and tried.excludes(assigned.sha256, attempt):
        return Choice.NOTHING
    return Choice.INSTALL
