"""A complete controller in this process on a free port, over a signed repository, with clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx

from fleet.controller.access import Role
from fleet.controller.app import Controller, Origin
from fleet.controller.authority.ca import Authority
from fleet.controller.config import FleetConfig
from fleet.controller.control.control import Control
from fleet.controller.control.settings import DirectorSettings, SchedulerSettings
from fleet.controller.database import certificates, devices, tokens
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.credentials import new_credential
from fleet.controller.serving.settings import RateSettings
from fleet.publisher.roles import DIRECTOR, SNAPSHOT, TIMESTAMP
from tests.simulators.constants import settings_with
from tests.simulators.fleet_http import Device, device
from tests.simulators.fleet_repository import FleetRepository

SOON = FleetConfig(
    director=settings_with(DirectorSettings(), published_every_s=0.0), scheduler=SchedulerSettings(tick_s=0.05)
)
"""Configuration of a controller that does not wait before it acts."""


class Clock:
    """The system clock, shifted by `ahead`."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(timezone.utc) + self.ahead


class RunningController:
    """A running controller. `replica.control` gives access to its parts; `client` returns clients of any role."""

    def __init__(self, replica: Controller, repository: FleetRepository, clock: Clock, folder: Path) -> None:
        self.replica, self.repository, self.clock, self.folder = replica, repository, clock, folder
        self.ca_file = folder / "authority" / "ca.pem"

    @property
    def control(self) -> Control:
        return self.replica.control

    @property
    def authority(self) -> Authority:
        return self.control.authority

    @property
    def url(self) -> str:
        """The URL without a trailing slash."""
        return self.control.url

    def token(self, role: Role = Role.ADMIN, *, tags: Sequence[str] = (), name: str = "") -> str:
        """Create an API token."""
        credential, now = new_credential("eft_"), self.clock()
        with self.control.database.write() as connection:
            tokens.create(
                connection,
                credential,
                self.control.database.settings,
                name=name or f"a {role}",
                role=role,
                expires=now + timedelta(days=365),
                now=now,
                by="the test",
                tags=tags,
            )
        return credential.text

    def enrolled(self, name: str, *, tags: Sequence[str] = (), site: str = "") -> Device:
        """Add a device as if it had enrolled."""
        now = self.clock()
        made = device(name, self.authority, when=now)
        shown = made.certificate
        with self.control.database.write() as connection:
            devices.enrol(connection, name, now)
            devices.label(connection, name, tags, site)
            certificates.add(connection, Certificate(shown.serial, name, shown.issued, shown.expires))
        return made

    def client(self, role: Role | None = Role.ADMIN, *, token: str = "", tags: Sequence[str] = ()) -> httpx.Client:
        """Return an operator's client; `role` None: without a token."""
        token = token or (self.token(role, tags=tags) if role else "")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, verify=self._context(), headers=headers, trust_env=False, timeout=20)

    def device_client(self, made: Device) -> httpx.Client:
        """Return a device's client."""
        context = self._context()
        context.load_cert_chain(made.write(self.folder))
        return httpx.Client(base_url=self.url, verify=context, trust_env=False, timeout=20)

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))


@contextmanager
def controlling(
    folder: Path, config: FleetConfig | None = None, repository: FleetRepository | None = None, *, port: int = 0
) -> Iterator[RunningController]:
    """Run a controller of a new repository in `folder`. `port` 0: a free one. Without rates in `config` it has none."""
    repository = repository or FleetRepository(folder)
    config, clock = config or FleetConfig(), Clock()
    listen = replace(config.listen, addresses=(f"127.0.0.1:{port or free_port()}",))
    none = RateSettings(device_per_s=0, address_per_s=0, handshake_per_s=0)
    rates = none if config.serve.rates == RateSettings() else config.serve.rates
    config = replace(config, listen=listen, serve=replace(config.serve, rates=rates))
    signers = [key for role in (DIRECTOR, SNAPSHOT, TIMESTAMP) for key in repository.keys[role]]
    replica = Controller(Origin(repository.workspace.folder, config, signers, clock))
    with _loop() as loop:
        asyncio.run_coroutine_threadsafe(replica.start(), loop).result(20)
        try:
            yield RunningController(replica, repository, clock, repository.workspace.folder)
        finally:
            asyncio.run_coroutine_threadsafe(replica.stop(), loop).result(20)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
