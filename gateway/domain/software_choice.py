"""What an agent does about the programs that it is assigned: a decision on values, asked at every poll."""

from __future__ import annotations

import enum

from gateway.domain.assignment import Target
from gateway.domain.software_update import REVOCABLE, SoftwareUpdate, environment_name
from gateway.domain.update import Tried


class Choice(enum.Enum):
    """What to do now."""

    NOTHING = "nothing"
    INSTALL = "install"
    GIVE_UP = "give up"


def choose(
    assigned: Target | None, attempt: int, running: str, record: SoftwareUpdate | None, tried: Tried | None
) -> Choice:
    """Decide. `running`: name of the environment of this process; `record`: the installer's last update.

    A release that was tried (it was rolled back, refused, or replaced by hand) is tried again only at a greater
    attempt. Nothing is ever removed: without an assignment what runs goes on.
    """
    if record is not None and not record.ended:
        wanted = assigned is not None and record.release == assigned.sha256
        return Choice.NOTHING if wanted or record.phase not in REVOCABLE else Choice.GIVE_UP
    if assigned is None or running == environment_name(assigned.path.split("/")[-2], assigned.sha256):
        return Choice.NOTHING
    if tried is not None and tried.excludes(assigned.sha256, attempt):
        return Choice.NOTHING
    return Choice.INSTALL
