"""Composition root of the controller: it builds the parts, starts them in order and stops them in reverse."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from securesystemslib.signer import Signer

from fleet import events
from fleet.controller.api.application import application
from fleet.controller.authority.ca import Authority
from fleet.controller.blobs.choice import open_blobs
from fleet.controller.blobs.files import files
from fleet.controller.blobs.places import BlobPlace, PublicFolder
from fleet.controller.config import FleetConfig
from fleet.controller.control.control import Clock, Control, utc_now
from fleet.controller.control.device_ca import AUTHORITY_FOLDER, open_device_ca
from fleet.controller.control.director import Director
from fleet.controller.control.director_published import Publications
from fleet.controller.control.drafts import Drafts
from fleet.controller.control.enrolling import Enrolling
from fleet.controller.control.idempotency import KeyedAnswers
from fleet.controller.control.ingestion import Intake
from fleet.controller.control.inventory import Inventories
from fleet.controller.control.maintenance import Maintenance
from fleet.controller.control.monotonic_clock import MonotonicClock
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.control.publication import Publisher
from fleet.controller.control.revocations import Revocations
from fleet.controller.control.rollouts import Rollouts
from fleet.controller.control.rollouts_record import States
from fleet.controller.control.scheduler import Scheduler
from fleet.controller.control.subscriptions import Subscriptions
from fleet.controller.control.uploads import Uploads
from fleet.controller.control.wake_hints import Hints
from fleet.controller.control.worker import PeriodicThread
from fleet.controller.database import migrate
from fleet.controller.database.audit import latest
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.place import read_place
from fleet.controller.database.seen import LastSeenBuffer
from fleet.controller.monitoring.monitoring import Monitoring, MonitoringSettings
from fleet.controller.monitoring.wake_hints import WakePublisher
from fleet.controller.serving.asgi import Application, Scope
from fleet.controller.serving.bodies import BodyBound
from fleet.controller.serving.identity import Recognition
from fleet.controller.serving.server import Server, mounted, stacked
from fleet.controller.serving.tls import CertificateSource, filed_certificate, own_certificate, server_context
from fleet.publisher.keys import Ask, refuse_to_ask
from fleet.publisher.repository import BLOBS
from fleet.publisher.workspace import Workspace
from gateway.common.domain.access import Address, read_address
from gateway.common.domain.errors import ConfigurationError, RequestError

REPOSITORY = "/repository/"
_log = logging.getLogger(__name__)
CERTIFICATE_EVERY_S = 60.0
"""Period at which the port checks whether it has another certificate to present."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Inputs of a replica. `ask` is called for passphrases of keys that are added later. `clock` is the system's."""

    folder: Path
    config: FleetConfig
    signers: Sequence[Signer] = ()
    clock: Clock = utc_now
    ask: Ask = refuse_to_ask


class Controller:
    """One replica. Call `start` and `stop` once each, in one event loop."""

    def __init__(self, origin: Origin) -> None:
        """Open and migrate the database. Raise ConfigurationError, OSError, AwayError; then nothing is open."""
        self._origin = origin
        database = open_database(read_place(origin.config.database.url, origin.folder), origin.config.database)
        self._renewing: asyncio.Task[None] | None = None
        with ExitStack() as undone:
            undone.callback(database.close)
            self._furnish(database)
            undone.pop_all()

    def _furnish(self, database: Database) -> None:
        origin, config = self._origin, self._origin.config
        migrate.upgrade(database)
        clock = _monotonic_clock(origin, database)
        folder, machine = origin.folder / AUTHORITY_FOLDER, socket.gethostname()
        authority = open_device_ca(database, folder, config.authority, machine, origin.clock())
        self.control = _control(origin, authority, database, clock)
        self._certificate = _certificate_source(origin, authority) if config.listen.tls else None
        self._pair = self._certificate(origin.clock()) if self._certificate else None
        context = server_context(*self._pair, authority.pem) if self._pair else None
        scheduler = Scheduler(self.control.rollouts, self.control.holder, self.control.clock)
        maintenance = Maintenance(self.control, lambda: scheduler.fence, clock)
        watching = MonitoringSettings(config.alerts, config.metrics, config.otlp)
        self._monitoring = Monitoring(
            self.control, watching, lambda: scheduler.fence, maintenance.done.copy, clock.believed
        )
        self._server = Server(self._application(), config.serve, self.control.counts, context)
        self._workers: tuple[PeriodicThread | WakePublisher, ...] = (
            *_workers(self.control, scheduler, maintenance),
            *self._monitoring.workers(),
            *_wakers(origin, self.control),
        )

    async def start(self) -> tuple[Address, ...]:
        """Start the controller. Return the addresses, with port 0 resolved.

        Raise ConfigurationError, UnreachableError; then nothing is open.
        """
        threads = ThreadPoolExecutor(self._origin.config.serve.threads, "request")
        asyncio.get_running_loop().set_default_executor(threads)
        with ExitStack() as undone:
            undone.callback(self.control.database.close)
            await asyncio.to_thread(self.control.revocations.refresh, self.control.clock())
            addresses = await self._server.start(addresses_of(self._origin.config))
            undone.pop_all()
        for worker in self._workers:
            worker.start()
        self._renewing = asyncio.create_task(self._renew())
        return addresses

    async def stop(self) -> None:
        """Let requests in progress finish within the grace time, then end the workers and close the database."""
        grace_s = self._origin.config.listen.stop_grace_s
        if self._renewing is not None:
            self._renewing.cancel()
        self.control.subscriptions.stop()  # streams have no end of their own
        await self._server.stop(grace_s)
        for worker in reversed(self._workers):
            await asyncio.to_thread(worker.stop, grace_s)
        self.control.database.close()

    def _application(self) -> Application:
        control, config = self.control, self._origin.config
        known = control.revocations
        recognition = Recognition(control.authority.trusted, known.serials, control.clock, known.token_name)
        piece_bytes = config.blobs.piece_bytes
        blobs = open_blobs(control.workspace.public / BLOBS, config.blobs)
        repository = {
            f"{REPOSITORY}blobs/": files(BlobPlace(blobs), piece_bytes),
            REPOSITORY: files(PublicFolder(control.workspace.public), piece_bytes),
        }
        app = mounted(application(control, self._monitoring.page), repository)
        return self._monitoring.timing.around(stacked(app, recognition, config.serve, control.counts, _bounds(config)))

    async def _renew(self) -> None:
        """Renew the certificate regularly.

        It runs in the event loop, because OpenSSL's contexts must not change while a handshake reads them.
        """
        while self._certificate:
            await asyncio.sleep(CERTIFICATE_EVERY_S)
            self.renew_certificate(self._certificate)

    def renew_certificate(self, source: CertificateSource) -> None:
        """Present another certificate if there is one. If it cannot be used, log that and keep the old one."""
        try:
            pair = source(self.control.clock())
            if pair != self._pair:
                self._server.renew(*pair)
                self._pair = pair
        except (ConfigurationError, RequestError) as error:
            _log.warning(events.SERVER_CERTIFICATE_NOT_RENEWED, error)


def _monotonic_clock(origin: Origin, database: Database) -> MonotonicClock:
    """Return the monotonic clock. Call it before this replica records anything by its own clock."""
    with database.read() as connection:
        return MonotonicClock(origin.config.maintenance, origin.clock(), latest(connection))


def _certificate_source(origin: Origin, authority: Authority) -> CertificateSource:
    listen = origin.config.listen
    if listen.certificate:
        return filed_certificate(origin.folder / listen.certificate, origin.folder / listen.key)
    return own_certificate(authority, listen.names)


def _control(origin: Origin, authority: Authority, database: Database, clock: MonotonicClock) -> Control:
    config = origin.config
    url = _url(config)
    workspace, seen, counts = (
        Workspace(origin.folder, config.publisher),
        LastSeenBuffer(config.database),
        Counter[str](),
    )
    states = States()
    publications = Publications(workspace, database, config.director.published_every_s)
    settings = (config.director, config.publisher)
    keys = OnlineKeys(workspace.keys, origin.signers, origin.ask, config.director.keys_every_s)
    drafts = Drafts(database, workspace, config.drafts)
    bucket = open_blobs(workspace.public / BLOBS, config.blobs) if config.blobs.s3.bucket else None
    return Control(
        database=database,
        authority=authority,
        workspace=workspace,
        keys=keys,
        url=url,
        repository_url=config.publisher.url or f"{url}{REPOSITORY}",
        holder=f"{socket.gethostname()}-{secrets.token_hex(4)}",
        settings=config.control,
        seen=seen,
        revocations=Revocations(database),
        rollouts=Rollouts(
            database, workspace, config.scheduler, states, hints=Hints() if config.wake.url else Hints(0)
        ),
        publications=publications,
        director=Director(database, publications, keys, settings, seen=seen, counts=counts),
        enrolling=Enrolling(database, authority, config.director, counts, clock.believed),
        intake=Intake(database, config.ingestion, states, counts),
        inventories=Inventories(database, config.ingestion),
        answers=KeyedAnswers(database, config.requests),
        subscriptions=Subscriptions(database, config.changes, counts),
        drafts=drafts,
        uploads=Uploads(database, workspace, config.drafts),
        publisher=Publisher(drafts, keys, bucket),
        counts=counts,
        clock=origin.clock,
    )


def _url(config: FleetConfig) -> str:
    """Return the URL for devices. Raise ConfigurationError if it is neither set nor can be derived."""
    listen = config.listen
    if listen.url:
        return listen.url.rstrip("/")
    ports = [address.port for address in addresses_of(config) if address.port]
    if not ports or not listen.names:
        raise ConfigurationError("set the address at which devices reach this controller", table="listen", key="url")
    return f"{'https' if listen.tls else 'http'}://{listen.names[0]}:{ports[0]}"


def _bounds(config: FleetConfig) -> Callable[[Scope], BodyBound]:
    """Return the bounds of request bodies: devices and publishers send larger ones than other callers."""
    serve, intake, drafts = config.serve, config.ingestion, config.drafts
    usual = BodyBound(serve.max_body_bytes, serve.body_timeout_s)
    large = {
        "/v1/self/telemetry": BodyBound(intake.telemetry_limit_bytes, serve.body_timeout_s),
        "/v1/self/inventory": BodyBound(intake.inventory_limit_bytes, serve.body_timeout_s),
        "/v1/self/diagnostics": BodyBound(intake.answer_limit_bytes, serve.body_timeout_s),
    }
    below = {
        ("PUT", "/v1/drafts/"): BodyBound(config.publisher.document_limit_bytes, serve.body_timeout_s),
        ("PATCH", "/v1/blobs/"): BodyBound(drafts.request_limit_bytes, drafts.request_timeout_s, streamed=True),
    }

    def bound(scope: Scope) -> BodyBound:
        method, path = scope["method"], str(scope["path"])
        found = (one for (asked, prefix), one in below.items() if method == asked and path.startswith(prefix))
        return next(found, large.get(path, usual))

    return bound


def _workers(control: Control, scheduler: Scheduler, maintenance: Maintenance) -> tuple[PeriodicThread, ...]:
    settings, subscriptions = control.settings.scheduler, control.subscriptions
    return (
        PeriodicThread("revocations", settings.revocations_every_s, control.revocations.refresh, control.clock),
        PeriodicThread(
            "scheduler", settings.tick_s, scheduler.tick, control.clock, due=control.rollouts.due, end=scheduler.resign
        ),
        PeriodicThread("changes", subscriptions.settings.read_every_s, subscriptions.tick, control.clock),
        PeriodicThread(
            "maintenance", control.settings.maintenance.tick_s, maintenance.tick, control.clock, end=maintenance.end
        ),
    )


def _wakers(origin: Origin, control: Control) -> tuple[WakePublisher, ...]:
    if not origin.config.wake.url:
        return ()
    return (WakePublisher(origin.config.wake, origin.folder, control.rollouts.hints, control.counts, control.holder),)


def addresses_of(config: FleetConfig) -> list[Address]:
    """Return the addresses to listen on. Raise ConfigurationError."""
    read = [read_address(text, "listen", "addresses") for text in config.listen.addresses]
    return [address for address in read if address is not None]
