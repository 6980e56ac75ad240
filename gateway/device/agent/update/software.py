"""Client of the installer of new versions: a socket for requests, and a record that every user may read."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.installation import HERE
from gateway.common.logs import get_logger
from gateway.common.store.errors import StoreError
from gateway.common.store.roots import read_bounded
from gateway.device.agent import events
from gateway.device.agent.settings import InstallerSettings
from gateway.device.domain.software_request import PACKAGES_OWN, Confirm, Request, request_line
from gateway.device.domain.software_update import RECORD_LIMIT_BYTES, Phase, SoftwareUpdate, read_record

LOOK_S = 0.2
"""Interval of reads of the record while the installer starts this version."""


class InstallerRefusedError(Exception):
    """Refusal by the installer, with its reason."""


def record(settings: InstallerSettings) -> SoftwareUpdate | None:
    """Return the record of the last update of the programs; None before the first. Raise UnreachableError."""
    file = Path(settings.record)
    if not file.exists():
        return None
    try:
        return read_record(read_bounded(file, RECORD_LIMIT_BYTES))
    except (StoreError, ValueError) as error:
        problem = f"the record of software updates cannot be read: {error}; ask edge-software status"
        raise UnreachableError(problem, file=settings.record) from error


def ask(settings: InstallerSettings, request: Request) -> SoftwareUpdate:
    """Send a request. Return the record after it. Raise UnreachableError, InstallerRefusedError."""
    if HERE.is_packaged:
        raise InstallerRefusedError(PACKAGES_OWN)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(settings.timeout_s)
            connection.connect(settings.socket)
            connection.sendall(request_line(request))
            answer = b""
            while (piece := connection.recv(RECORD_LIMIT_BYTES)) and len(answer) <= RECORD_LIMIT_BYTES:
                answer += piece
        return _read(answer)
    except (OSError, ValueError) as error:
        problem = f"the installer does not answer on {settings.socket}: {error}; systemctl status edge-software.socket"
        raise UnreachableError(problem, table="installer", key="socket") from error


def confirm(settings: InstallerSettings) -> None:
    """Confirm to the installer that this version works, if it waits for that. Failures are logged and retried."""
    try:
        update = _settled(settings)
        if update and update.phase is Phase.PROBATION and not update.confirmed:
            ask(settings, Confirm(update.environment))
            get_logger("agent").info(events.SOFTWARE_CONFIRMED, version=update.version)
    except (UnreachableError, InstallerRefusedError) as error:
        get_logger("agent").warning(events.SOFTWARE_NOT_CONFIRMED, problem=str(error))


def _settled(settings: InstallerSettings) -> SoftwareUpdate | None:
    """Return the record if it is of this version. Wait while the installer still starts its units."""
    environment, deadline_s = own_environment(), time.monotonic() + settings.timeout_s
    while (update := record(settings)) and update.environment == environment:
        if update.phase is not Phase.SWITCH or time.monotonic() > deadline_s:
            return update
        time.sleep(LOOK_S)
    return None


def own_environment() -> str:
    """Return the name of the installed version that this process runs from; "" for another layout."""
    place = Path(sys.prefix).resolve()
    return place.name if place.parent.name == "versions" else ""


def _read(answer: bytes) -> SoftwareUpdate:
    document = json.loads(answer)
    if isinstance(document, dict) and "error" in document:
        raise InstallerRefusedError(str(document["error"])[:1000])
    return read_record(answer)
