"""One device CA for the whole fleet, however many replicas start at one time, and wherever their folders are."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fleet.controller.audit import Deed
from fleet.controller.authority.ca import Authority, name_of
from fleet.controller.authority.folder import CERTIFICATE_FILE, KEY_FILE, open_authority
from fleet.controller.authority.settings import AuthoritySettings
from fleet.controller.database import audit, authority, certificates
from fleet.controller.database.authority import KnownAuthority
from fleet.controller.database.engine import Database
from gateway.common.domain.errors import ConfigurationError

AUTHORITY_FOLDER = "authority"
"""Folder of the CA, within the publisher's folder."""
COPY = f"copy {KEY_FILE} and {CERTIFICATE_FILE} there"


def open_device_ca(database: Database, folder: Path, settings: AuthoritySettings, by: str, now: datetime) -> Authority:
    """Open the CA in `folder`; create it if the fleet has none yet. `by`: name of this machine, for people.

    Raise ConfigurationError if the fleet has another CA, or has one that is not in the folder; OSError, AwayError.
    """
    with database.write() as connection:
        known = authority.known(connection)
        if not (folder / CERTIFICATE_FILE).exists() and (known or certificates.any_known(connection)):
            which = f" ({_described(known)})" if known else ""
            problem = f"holds no {CERTIFICATE_FILE}, and the fleet has a device CA that is not here{which}"
            raise ConfigurationError(
                f"{problem}; {COPY}, from a backup or from where another replica runs", file=str(folder)
            )
        found = open_authority(folder, now, settings)
        mine = found.certificate_pem.decode()
        if known is None or known.certificate != mine:
            if known and not found.trusts(known.certificate):
                problem = f"is of another device CA ({name_of(mine)}) than the fleet's: {_described(known)}"
                remedy = f"{COPY}, from where another replica runs; where this CA is to follow that one"
                raise ConfigurationError(
                    f"{problem}; {remedy}, see fleet/README.md", file=str(folder / CERTIFICATE_FILE)
                )
            authority.put(connection, KnownAuthority(mine, now, by))
            if known:
                details = {"before": name_of(known.certificate)}
                audit.append(connection, Deed(by, "authority.follow", name_of(mine), details), now)
    return found


def _described(known: KnownAuthority) -> str:
    return f"{name_of(known.certificate)}, used by {known.by} since {known.since:%Y-%m-%d %H:%M} UTC"
