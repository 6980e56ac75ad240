"""Credentials for outgoing connections and trusted authorities: files in the controller's folder."""

from __future__ import annotations

import ssl
from pathlib import Path

from fleet.disk import read_bounded
from gateway.common.domain.errors import ConfigurationError

LIMIT_BYTES = 65_536
OTHERS = 0o007
"""Mode bits of other users. The group may be the service's own."""


def secret_text(file: Path) -> str:
    """Read a file that other users cannot read. Raise ConfigurationError."""
    content = read_bounded(file, LIMIT_BYTES)
    if file.stat().st_mode & OTHERS:
        raise ConfigurationError("others may read it; chmod 600 it", file=str(file))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", file=str(file)) from None


def trusting(folder: Path, ca_file: str, table: str) -> ssl.SSLContext:
    """Return a TLS 1.2+ client context that trusts only the authorities in `ca_file` ("": the system's).

    Raise ConfigurationError that names the key of `table`.
    """
    try:
        context = ssl.create_default_context(cafile=str(folder / ca_file) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        problem = f"{folder / ca_file} cannot be used ({error}); name a PEM file of the authorities' certificates"
        raise ConfigurationError(problem, table=table, key="ca_file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
