"""Files of secrets by path, or by name in systemd's folder of credentials (`credential:NAME`).

Source: systemd.exec(5), LoadCredential= and $CREDENTIALS_DIRECTORY.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError

PREFIX = "credential:"
DIRECTORY = "CREDENTIALS_DIRECTORY"
"""Environment variable with the folder of a service's credentials; systemd sets it."""
RUN_SECRETS = Path("/run/secrets")
"""Folder of secrets in a container (Docker, Podman)."""
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._@-]{1,255}")
"""Names that are one file in that folder."""


def is_credential(named: str) -> bool:
    """Return True if a setting names a credential, not a path."""
    return named.startswith(PREFIX)


def secret_path(named: str, table: str, key: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file that a setting names. Raises ConfigurationError for a credential that cannot be found."""
    if not is_credential(named):
        return Path(named)
    name = named.removeprefix(PREFIX)
    if not _NAME.fullmatch(name):
        problem = f"{named!r:.150}: the name of a credential has letters, digits, '.', '_', '-' or '@', and no '/'"
        raise ConfigurationError(f"{problem}; write {PREFIX}NAME as in the unit", table=table, key=key)
    folder = environ.get(DIRECTORY, "")
    path = Path(folder) / name
    if not folder or not path.is_file():
        raise ConfigurationError(_absent(name, folder), table=table, key=key)
    return path


def read_secret(path: Path, *, name: str) -> bytes:
    """Return a secret file's content. Raises OSError, and ConfigurationError if group or others may write the file.

    `name`: the setting's value. Credentials and `/run/secrets` are not refused: their manager sets the modes.
    """
    with path.open("rb") as file:
        if not _is_managed(name) and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o022:
            problem = f"{name}: its group or others may write it, and could replace the secret"
            raise ConfigurationError(f"{problem}; run: chmod go-w {shlex.quote(name)}")
        return file.read()


def is_exposed(named: str | None) -> bool:
    """Return True if all users may read a secret file that no manager of secrets wrote."""
    if not named or _is_managed(named):
        return False
    try:
        return bool(Path(named).stat().st_mode & 0o004)
    except OSError:
        return False


def _is_managed(named: str) -> bool:
    return is_credential(named) or Path(named).is_relative_to(RUN_SECRETS)


def _absent(name: str, folder: str) -> str:
    """Return why a credential cannot be found, and what to do."""
    line = f"write LoadCredential={name}:/path/of/file into [Service] (systemctl edit edge-gateway)"
    if folder:
        return f"'{PREFIX}{name}': {folder} has no file '{name}'; {line}"
    by_hand = f"for a command by hand, set {DIRECTORY}=/run/credentials/edge-gateway.service"
    return f"'{PREFIX}{name}' needs ${DIRECTORY}, which systemd sets for a unit with credentials; {line}; {by_hand}"
