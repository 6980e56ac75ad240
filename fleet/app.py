"""The composition root of the controller: builds the rooms, starts them in order, stops them in reverse."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from securesystemslib.signer import Signer

from fleet.api.application import application
from fleet.authority.ca import Authority
from fleet.authority.folder import open_authority
from fleet.blobs.choice import open_blobs
from fleet.blobs.files import files
from fleet.blobs.places import BlobPlace, PublicFolder
from fleet.config import FleetConfig
from fleet.control.control import Clock, Control, utc_now
from fleet.control.revocations import Revocations
from fleet.control.worker import Worker
from fleet.database import migrate
from fleet.database.engine import Database, open_database
from fleet.database.place import read_place
from fleet.database.seen import Seen
from fleet.disk import read_bounded
from fleet.repository import BLOBS
from fleet.serving.asgi import Application, Scope
from fleet.serving.bodies import BodyBound
from fleet.serving.identity import Recognition
from fleet.serving.server import Server
from fleet.serving.stack import mounted, stacked
from fleet.serving.tls import server_context
from fleet.workspace import Workspace
from gateway.domain.access import Address, read_address
from gateway.domain.errors import ConfigurationError

AUTHORITY_FOLDER = "authority"
REPOSITORY = "/repository/"
PEM_LIMIT_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class Origin:
    """What a replica is made of. `clock` is the system's; tests bring another."""

    folder: Path
    config: FleetConfig
    signers: Sequence[Signer] = ()
    clock: Clock = utc_now


class Controller:
    """One replica. `start` and `stop` once each, in one event loop."""

    def __init__(self, origin: Origin) -> None:
        """Opens and migrates the database. Raises ConfigurationError, OSError, AwayError."""
        self._origin, config = origin, origin.config
        authority = open_authority(origin.folder / AUTHORITY_FOLDER, origin.clock(), config.authority)
        database = open_database(read_place(config.database.url, origin.folder), config.database)
        migrate.upgrade(database)
        self.control = _control(origin, authority, database)
        self._server = Server(self._application(), config.serve, self.control.counts, self._context(authority))
        self._workers = _workers(self.control)

    async def start(self) -> tuple[Address, ...]:
        """Where it listens, port 0 resolved. Raises ConfigurationError, UnreachableError."""
        await asyncio.to_thread(self.control.revocations.refresh, self.control.clock())
        addresses = await self._server.start(addresses_of(self._origin.config))
        for worker in self._workers:
            worker.start()
        return addresses

    async def stop(self) -> None:
        """Requests in progress get their grace; then the workers end, and the database is closed."""
        grace_s = self._origin.config.listen.stop_grace_s
        await self._server.stop(grace_s)
        for worker in reversed(self._workers):
            await asyncio.to_thread(worker.stop, grace_s)
        self.control.database.close()

    def _application(self) -> Application:
        control, config = self.control, self._origin.config
        recognition = Recognition(control.authority.trusted, control.revocations.serials, control.clock)
        piece_bytes = config.blobs.piece_bytes
        blobs = open_blobs(control.workspace.public / BLOBS, config.blobs)
        repository = {
            f"{REPOSITORY}blobs/": files(BlobPlace(blobs), piece_bytes),
            REPOSITORY: files(PublicFolder(control.workspace.public), piece_bytes),
        }
        app = mounted(application(control), repository)
        return stacked(app, recognition, config.serve, control.counts, _bounds(config))

    def _context(self, authority: Authority) -> ssl.SSLContext | None:
        """TLS of the port; None behind a proxy."""
        listen = self._origin.config.listen
        if not listen.tls:
            return None
        if listen.certificate:
            pair = [
                read_bounded(self._origin.folder / name, PEM_LIMIT_BYTES) for name in (listen.certificate, listen.key)
            ]
            return server_context(pair[0], pair[1], authority.pem)
        return server_context(*authority.issue_server(listen.names, self._origin.clock()), authority.pem)


def _control(origin: Origin, authority: Authority, database: Database) -> Control:
    config = origin.config
    url = _url(config)
    return Control(
        database=database,
        authority=authority,
        workspace=Workspace(origin.folder, config.publisher),
        signers=tuple(origin.signers),
        url=url,
        repository_url=config.publisher.url or f"{url}{REPOSITORY}",
        holder=f"{socket.gethostname()}-{secrets.token_hex(4)}",
        settings=config.control,
        seen=Seen(config.database),
        revocations=Revocations(database),
        clock=origin.clock,
    )


def _url(config: FleetConfig) -> str:
    """As devices are told. Raises ConfigurationError where a UNIX socket is all there is and nobody says."""
    listen = config.listen
    if listen.url:
        return listen.url.rstrip("/")
    ports = [address.port for address in addresses_of(config) if not address.path]
    if not ports or not listen.names:
        raise ConfigurationError("say how devices reach this controller", table="listen", key="url")
    return f"{'https' if listen.tls else 'http'}://{listen.names[0]}:{ports[0]}"


def _bounds(config: FleetConfig) -> Callable[[Scope], BodyBound]:
    """Devices send more at a time than anybody else."""
    serve, intake = config.serve, config.intake
    usual = BodyBound(serve.max_body_bytes, serve.body_timeout_s)
    large = {
        "/v1/self/telemetry": BodyBound(intake.telemetry_limit_bytes, serve.body_timeout_s),
        "/v1/self/inventory": BodyBound(intake.inventory_limit_bytes, serve.body_timeout_s),
        "/v1/self/diagnostics": BodyBound(intake.answer_limit_bytes, serve.body_timeout_s),
    }
    return lambda scope: large.get(str(scope["path"]), usual)


def _workers(control: Control) -> tuple[Worker, ...]:
    scheduler = control.settings.scheduler
    return (Worker("revocations", scheduler.revocations_every_s, control.revocations.refresh, control.clock),)


def addresses_of(config: FleetConfig) -> list[Address]:
    """Where it is to listen. Raises ConfigurationError."""
    read = [read_address(text, "listen", "addresses") for text in config.listen.addresses]
    return [address for address in read if address is not None]
