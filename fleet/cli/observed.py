"""Facts for the checks of `edge-fleet serve` and `edge-fleet doctor`, read from the controller's folder."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from fleet.cli.common import now
from fleet.cli.local_database import opened_database, place_of
from fleet.controller.authority.folder import CERTIFICATE_FILE
from fleet.controller.config import FleetConfig
from fleet.controller.control.checks import BlobUrls, Clock, HeldRoleKeys, Lifetime, StartFacts, Tables
from fleet.controller.control.device_ca import AUTHORITY_FOLDER
from fleet.controller.database import migrate
from fleet.controller.database.audit import latest
from fleet.controller.database.engine import server_version
from fleet.controller.serving.tls import PEM_LIMIT_BYTES
from fleet.disk import read_bounded
from fleet.publisher.keys import PUBLIC_SUFFIX, has_secret, read_public
from fleet.publisher.repository import Published
from fleet.publisher.roles import DIRECTOR, ONLINE, Quorum, quorum
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.terminal.kernel_clock import clock_synchronised

PORT_NOTICE = timedelta(days=14)
"""Time before its end from which the owner is to renew the certificate of the port."""
NOTHING = "nothing is published yet"


def observe(folder: Path, config: FleetConfig) -> StartFacts:
    """Read everything. Raise ConfigurationError for what cannot be read at all, OSError."""
    tables, newest = _database(folder)
    published = Workspace(folder, config.publisher).published()
    here = _keys_here(folder / "keys")
    listen, s3 = config.listen, config.blobs.s3
    url = config.publisher.url or listen.url or ("https://" if listen.tls else "http://")
    return StartFacts(
        blobs=BlobUrls(url, (s3.public_endpoint or s3.endpoint) if s3.bucket else ""),
        clock=Clock(now(), clock_synchronised(), newest),
        tables=tables,
        certificates=tuple(_certificates(folder, config)),
        keys=tuple(
            HeldRoleKeys(name, wanted.threshold, len({key.keyid for key in wanted.keys} & here))
            for name, wanted in _online(published)
        ),
        unpublished="" if published.root and published.targets else NOTHING,
    )


def _database(folder: Path) -> tuple[Tables, datetime | None]:
    """Return the database's revision, and the time of its newest record."""
    file, newest = place_of(str(folder)).file, migrate.newest()
    if file is not None and not file.exists():
        return Tables("", newest), None
    try:
        with opened_database(str(folder)) as database:
            tables = Tables(migrate.known(database), newest, server=server_version(database))
            if tables.revision != newest:
                return tables, None
            with database.read() as connection:
                return tables, latest(connection)
    except (ConfigurationError, UnreachableError) as error:
        return Tables("", newest, str(error)), None


def _certificates(folder: Path, config: FleetConfig) -> Iterator[Lifetime]:
    """Yield the lifetimes of the CA and, if another authority signed it, of the port's certificate.

    A port certificate by the CA itself is renewed automatically.
    """
    authority = folder / AUTHORITY_FOLDER / CERTIFICATE_FILE
    if authority.exists():
        notice = timedelta(days=config.authority.validity_d)  # from then on it ends before those that it signs
        yield _lifetime(authority, notice, 'let another CA follow it: fleet/README.md, "The device CA"')
    if config.listen.tls and config.listen.certificate:
        yield _lifetime(folder / config.listen.certificate, PORT_NOTICE, "renew it; serve then uses the new one")


def _lifetime(file: Path, notice: timedelta, remedy: str) -> Lifetime:
    try:
        found = x509.load_pem_x509_certificate(read_bounded(file, PEM_LIMIT_BYTES))
    except ValueError as error:
        raise ConfigurationError(f"holds no PEM certificate ({error!s:.200})", file=str(file)) from None
    return Lifetime(str(file), found.not_valid_before_utc, found.not_valid_after_utc, notice, remedy)


def _keys_here(folder: Path) -> set[str]:
    """Return the ids of keys whose secret is in `folder` or in a token; none is opened."""
    return {read_public(file).key.keyid for file in folder.glob(f"*{PUBLIC_SUFFIX}") if has_secret(file)}


def _online(published: Published) -> Iterator[tuple[str, Quorum]]:
    if published.targets:
        yield DIRECTOR, quorum(published.targets.signed, DIRECTOR)
    if published.root:
        yield from ((role, quorum(published.root.signed, role)) for role in ONLINE)
