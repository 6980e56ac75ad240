"""Account of the service: that of the installed unit, of `--user`, or the caller's."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.store.text import read_text
from gateway.serving.domain.permissions import UserAccount

UNIT = "edge-gateway.service"
UNIT_FOLDERS = tuple(f"{place}/systemd/system" for place in ("/etc", "/run", "/usr/local/lib", "/usr/lib"))
"""Folders in which systemd finds a unit; the first that holds it counts (systemd.unit(5), "Unit File Load Path")."""

HIDING = {"ProtectHome": ("/home", "/root", "/run/user"), "PrivateTmp": ("/tmp", "/var/tmp")}  # noqa: S108  compared
"""Folders that a setting hides from the unit's processes (systemd.exec(5))."""
YES = frozenset({"yes", "true", "on", "1"})


@dataclass(frozen=True, slots=True)
class UnitAccount:
    """Account settings of an installed unit; `groups` are its SupplementaryGroups=.

    `state`: the folder of StateDirectory=. `hidden`: folders that ProtectHome= and PrivateTmp= hide.
    """

    user: str = "root"
    group: str = ""
    groups: tuple[str, ...] = ()
    state: str = ""
    hidden: tuple[str, ...] = ()


def read_unit(texts: Iterable[str]) -> UnitAccount:
    """Read a unit and its drop-ins in systemd's order: the last setting counts; lists are appended, "" clears them."""
    single: dict[str, str] = {}
    groups: list[str] = []
    for line in (line.strip() for text in texts for line in text.splitlines()):
        key, found, value = line.partition("=")
        if found and key == "SupplementaryGroups":
            groups = [*groups, *value.split()] if value.strip() else []
        elif found:
            single[key] = value.strip()
    state = single.get("StateDirectory", "").partition(" ")[0]
    folder = f"/var/lib/{state}" if state else ""
    hidden = tuple(path for key, paths in HIDING.items() if single.get(key) in YES for path in paths)
    return UnitAccount(single.get("User") or "root", single.get("Group", ""), tuple(groups), folder, hidden)


def installed_unit(root: Path = Path("/")) -> UnitAccount | None:
    """Return the installed unit below `root`, or None. Raises ConfigurationError if it cannot be read."""
    folders = [root / folder.lstrip("/") for folder in UNIT_FOLDERS]
    main = next((folder / UNIT for folder in folders if (folder / UNIT).is_file()), None)
    if main is None:
        return None
    drop_ins = {file.name: file for folder in reversed(folders) for file in (folder / f"{UNIT}.d").glob("*.conf")}
    return read_unit(read_text(file) for file in (main, *(drop_ins[name] for name in sorted(drop_ins))))


def service_account(user: str | None) -> tuple[UserAccount, UnitAccount | None]:
    """Return the account to check, and its unit: `user`, else the installed unit's, else the caller's.

    Raises ConfigurationError for a user or group that this system does not have.
    """
    unit = installed_unit()
    if unit is not None and user in {None, unit.user}:
        return account_of(unit.user, unit.group, unit.groups), unit
    return (account_of(user) if user else caller()), None


def account_of(user: str, group: str = "", groups: Iterable[str] = ()) -> UserAccount:
    """Look up an account with all its groups. Raises ConfigurationError for an unknown name."""
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        primary = _gid(group) if group else entry.pw_gid
        others = {_gid(name) for name in groups}
    except KeyError as error:
        raise ConfigurationError(
            f"this system has no such user or group ({error.args[0]}); make the service's: sudo "
            "systemd-sysusers; edge-gateway config check takes another one by --user (EG-203)",
            file=user,
        ) from None
    member = os.getgrouplist(entry.pw_name, primary)
    return UserAccount(entry.pw_name, entry.pw_uid, frozenset({primary, *member, *others}), _group_name(primary))


def caller() -> UserAccount:
    """Return the account of this process."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return UserAccount(name, uid, frozenset({gid, *os.getgroups()}), _group_name(gid))


def _gid(group: str) -> int:
    return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
