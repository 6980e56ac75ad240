"""`edge-fleet serve` as processes: replicas over a signed repository and one database."""

from __future__ import annotations

import json
import os
import select
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx

from fleet.controller.access import Role
from fleet.controller.config import SECTIONS, FleetConfig
from fleet.controller.database import enrolment, migrate, tokens
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.place import read_place
from fleet.publisher.settings import FleetSettings
from tests.load.machine import read
from tests.simulators import constants
from tests.simulators.controller import free_port
from tests.simulators.fleet_repository import FleetRepository

ROOT = Path(__file__).parents[2]
START_S, STOP_S = 60.0, 30.0
SHARED = ("public", "keys", "authority")
"""Folders that replicas share in addition to the database."""
Tables = Mapping[str, Mapping[str, Any]]


@dataclass
class Replica:
    """One process. `url` has no trailing slash."""

    folder: Path
    url: str
    words: Sequence[str]
    process: subprocess.Popen[str] | None = None
    ended_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        """Processor time of this process and its predecessors."""
        return self.ended_s + (read([self.pid], None).controller_s if self.process else 0.0)

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def start(self) -> None:
        """Start it. Return once it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.words, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "TZ": "UTC"}
            )
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        if not ready or "serving" not in self.process.stdout.readline():
            raise RuntimeError(f"the controller does not serve: {self.said()}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it and return its exit code."""
        if self.process is None:
            return 0
        self.ended_s = self.cpu_s
        self.process.send_signal(number)
        code = self.process.wait(STOP_S)
        if self.process.stdout:
            self.process.stdout.close()
        self.process = None
        return code

    def said(self) -> str:
        """Return the end of its log."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]


@dataclass
class ServedFleet:
    """Controller with replicas. `replicas[0]` serves from the publisher's folder; start each one."""

    repository: FleetRepository
    replicas: list[Replica]
    database: Database
    token: str
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def sqlite(self) -> bool:
        """Return whether the database is a file."""
        return self.database.place.file is not None

    @property
    def cpu_s(self) -> float:
        """Processor time of all replicas so far, including those that ended."""
        return sum(replica.cpu_s for replica in self.replicas)

    @property
    def database_bytes(self) -> int:
        """Size of the database; for SQLite including the files of its log."""
        with self.database.read() as connection:
            if not self.sqlite:
                return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
            pages, size = (
                connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size")
            )
            return int(pages) * int(size)

    @property
    def ca_file(self) -> Path:
        """Authority that devices and operators trust; it exists once a replica was started."""
        return self.repository.workspace.folder / "authority" / "ca.pem"

    def tokens(self, count: int) -> list[str]:
        """Create enrolment tokens in one transaction."""
        made, now = [new_credential("efe_") for _ in range(count)], datetime.now(timezone.utc)
        settings, expires = self.database.settings, now + timedelta(days=1)
        with self.database.write() as connection:
            for credential in made:
                enrolment.create(connection, credential, settings, expires=expires, now=now, by="the test")
        return [credential.text for credential in made]

    def operator(self, replica: int = 0) -> httpx.Client:
        """Return a client with all rights of an API token. It is closed with the fleet."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        headers = {"authorization": f"Bearer {self.token}"}
        url = self.replicas[replica].url
        client = httpx.Client(base_url=url, verify=context, headers=headers, trust_env=False, timeout=60)
        self.clients.append(client)
        return client


def answered(response: httpx.Response) -> Any:
    """Return the JSON of a successful response."""
    assert response.is_success, f"{response.status_code} {response.text}"
    return response.json() if response.content else None


def roll_out(operator: httpx.Client, spec: Mapping[str, Any]) -> str:
    """Create, approve and start a rollout. Return its id."""
    made = answered(operator.post("/v1/rollouts", json=spec))
    rollout = str(made["id"])
    answered(operator.post(f"/v1/rollouts/{rollout}/approve", json={"spec": made["spec_digest"]}))
    answered(operator.post(f"/v1/rollouts/{rollout}/start"))
    return rollout


@contextmanager
def served_fleet(
    folder: Path, *, database: str = "", replicas: int = 1, tables: Tables | None = None, core: int | None = None
) -> Iterator[ServedFleet]:
    """Yield a fleet. `database`: a URL, "" for SQLite in the folder; `core`: CPU that the processes are bound to."""
    repository = FleetRepository(folder)
    repository.keep_keys()
    repository.add_owner("acme")
    place, settings = read_place(database, folder), FleetConfig().database
    place.make_file()
    with closing(open_database(place, settings)) as opened:
        migrate.upgrade(opened)
        made = [_replica(folder, number, database, tables or {}, core) for number in range(replicas)]
        fleet = ServedFleet(repository, made, opened, _admin(opened))
        try:
            yield fleet
        finally:
            for client in fleet.clients:
                client.close()
            for replica in made:
                replica.end()


def wait_until(happened: Any, limit_s: float, every_s: float = 0.2) -> None:
    """Poll until `happened`. Raise TimeoutError."""
    end = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(every_s)


def _replica(folder: Path, number: int, database: str, tables: Tables, core: int | None) -> Replica:
    own = folder if number == 0 else folder.with_name(f"{folder.name}-{number}")
    own.mkdir(exist_ok=True)
    for name in SHARED if number else ():
        (own / name).symlink_to(folder / name)
    port = free_port()
    given: dict[str, dict[str, Any]] = {"listen": {"addresses": [f"127.0.0.1:{port}"]}, "database": {"url": database}}
    for name, table in tables.items():
        given[name] = {**given.get(name, {}), **table}
    settings, fixed = constants.take("\n".join(_toml(given)), {"": FleetSettings, **SECTIONS})
    (own / "fleet.toml").write_text(settings)
    pinned = () if core is None else ("taskset", "--cpu-list", str(core))
    program = constants.command((*pinned, sys.executable, "-m", "fleet"), fixed)
    words = [*program, "serve", "--log-level", "warning", "--dir", str(own)]
    return Replica(own, f"https://localhost:{port}", words)


def _toml(tables: Tables, above: str = "") -> Iterator[str]:
    for name, table in tables.items():
        yield f"[{above}{name}]"
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        yield from (f"{key} = {json.dumps(value)}" for key, value in table.items() if key not in inner)
        yield from _toml(inner, f"{above}{name}.")


def _admin(database: Database) -> str:
    credential, now = new_credential("eft_"), datetime.now(timezone.utc)
    with database.write() as connection:
        tokens.create(
            connection,
            credential,
            database.settings,
            name="the operator",
            role=Role.ADMIN,
            expires=now + timedelta(days=1),
            now=now,
            by="the test",
        )
    return credential.text
