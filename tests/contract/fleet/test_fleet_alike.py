"""The small controller that the agent is tested with answers as the real one does: the agent's own code asks both."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.database import certificates, devices, diagnostics
from gateway.common.domain.errors import ConfigurationError
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.transfer.web import WebSource
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.fetch.certificate import read_held, renew, with_certificate
from gateway.device.agent.fetch.controller import ControllerClient
from gateway.device.agent.state.identity import DeviceIdentity
from tests.simulators.asking import enrolment_token, gap, record
from tests.simulators.asking import packed as lines
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_controller import FleetController
from tests.simulators.fleet_repository import FleetRepository

DEVICE = "door-1"
CONFIG = AgentConfig(fetch=settings_with(FetchSettings(), attempts=1))


@dataclass
class Fleet:
    """Either of them. `token` makes one for the device; `ask` wants diagnostics of it; `revoke` lets it in no more."""

    url: str
    authority: str
    token: Callable[[], str]
    register: Callable[[str], None]
    ask: Callable[[], None]
    revoke: Callable[[], None]


@contextmanager
def simulated(folder: Path) -> Iterator[Fleet]:
    with FleetController(folder / "controller", FleetRepository(folder / "repository")).running() as fleet:
        tokens = (f"t{number}" for number in range(99))

        def token() -> str:
            text = next(tokens)
            fleet.tokens[text] = DEVICE
            return text

        def ask() -> None:
            fleet.diagnostics[DEVICE] = [{"id": 1, "wanted": ["log"], "expires": "2099-01-01T00:00:00Z"}]

        def revoke() -> None:
            fleet.revoked |= {call.serial for call in fleet.asked}

        authority = fleet.authority.file.read_text()
        yield Fleet(fleet.url, authority, token, lambda serial: fleet.serials.update({serial: DEVICE}), ask, revoke)


@contextmanager
def real(folder: Path) -> Iterator[Fleet]:
    with controlling(folder / "controller") as running:
        yield _real(running)


def _real(running: RunningController) -> Fleet:
    database = running.control.database

    def register(serial: str) -> None:
        with database.write() as connection:
            devices.register(connection, DEVICE, serial, running.clock())

    def ask() -> None:
        now, wanted = running.clock(), {"wanted": ["log"]}
        with database.write() as connection:
            expires = now + timedelta(hours=1)
            diagnostics.ask(connection, DEVICE, wanted, database.settings, now=now, expires=expires, by="op")

    def revoke() -> None:
        with database.write() as connection:
            certificates.revoke_all(connection, DEVICE, "lost", running.clock())

    authority = running.ca_file.read_text()
    return Fleet(running.url, authority, lambda: enrolment_token(running, DEVICE), register, ask, revoke)


@pytest.fixture(params=[simulated, real])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with request.param(tmp_path) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def enrolled(fleet: Fleet, store: Path, **said: str) -> DeviceIdentity:
    return enrol(EnrolmentInput(fleet.url, authority=fleet.authority, **said), store, CONFIG)


@contextmanager
def asking(fleet: Fleet, store: Path) -> Iterator[ControllerClient]:
    with closing(ConnectionPool(with_certificate(CONFIG.fetch, store))) as connections:
        yield ControllerClient(fleet.url, connections, 30.0)


def refused(ask: Callable[[], object]) -> int:
    with pytest.raises(FetchError) as error:
        ask()
    assert error.value.final
    return error.value.status


def test_a_device_enrols_and_comes_again(fleet, store) -> None:
    token = fleet.token()
    made = enrolled(fleet, store, token=token)
    assert (made.device, made.controller) == (DEVICE, fleet.url)
    assert made.assignment == f"{fleet.url}/v1/self/assignment"
    assert made.poll_s
    first = read_held(store)
    with pytest.raises(ConfigurationError, match="is not valid for this device"):
        enrolled(fleet, store, token=token)
    assert enrolled(fleet, store, token=fleet.token()).device == DEVICE
    second = read_held(store)
    assert first and second and first.serial != second.serial  # noqa: PT018


def test_a_serial_lets_in_and_strangers_stay_out(fleet, store) -> None:
    with pytest.raises(ConfigurationError, match="the fleet refuses this device"):
        enrolled(fleet, store, serial="4711")
    fleet.register("4711")
    assert enrolled(fleet, store, serial="4711").device == DEVICE


def test_assignments(fleet, store) -> None:
    made = enrolled(fleet, store, token=fleet.token())
    base, _, name = made.assignment.rpartition("/")
    source = WebSource(base, with_certificate(CONFIG.fetch, store))
    first = source.read(name, 100_000)
    assert first.content
    assert first.etag
    again = source.read(name, 100_000, etag=first.etag)
    assert again.content is None
    fresh = source.read(name, 100_000, etag=first.etag, query={"nonce": "abc"})
    assert fresh.content
    signed = [json.loads(content)["signed"] for content in (first.content, fresh.content)]
    assert [one["version"] for one in signed] == [1, 2]
    assert (signed[0]["device"], signed[1]["nonce"]) == (DEVICE, "abc")


def test_telemetry_and_inventory(fleet, store) -> None:
    enrolled(fleet, store, token=fleet.token())
    with asking(fleet, store) as controller:

        def tell(*entries: dict[str, Any]) -> dict[str, Any]:
            body = lines(*entries)
            return controller.send("POST", "/v1/self/telemetry", body, "application/x-ndjson", "gzip")

        sent = [record("vitals", seq, {"n": seq}) for seq in (1, 2, 5)]
        expected = {"acknowledged": [{"stream": "vitals", "boot_epoch": 1, "seq": 2}]}
        assert tell(*sent) == tell(*sent) == expected
        assert tell(gap("vitals", 3, 4)) == {"acknowledged": [{"stream": "vitals", "boot_epoch": 1, "seq": 5}]}
        body = gzip.compress(json.dumps({"arch": "x86_64", "accelerators": []}).encode())
        assert controller.send("PUT", "/v1/self/inventory", body, "application/json", "gzip") == {}


def test_diagnostics(fleet, store) -> None:
    enrolled(fleet, store, token=fleet.token())
    with asking(fleet, store) as controller:

        def waiting() -> list[dict[str, Any]]:
            found = controller.send("GET", "/v1/self/diagnostics", b"", "application/json")
            requests: list[dict[str, Any]] = found["requests"]
            return requests

        assert waiting() == []
        fleet.ask()
        (one,) = waiting()
        assert one["wanted"] == ["log"]
        assert {"id", "wanted", "expires"} == set(one)
        body = gzip.compress(json.dumps({"id": one["id"], "answer": {"log": {}}}).encode())
        assert controller.send("POST", "/v1/self/diagnostics", body, "application/json", "gzip") == {}


def test_renewal_and_revocation(fleet, store) -> None:
    enrolled(fleet, store, token=fleet.token())
    before = read_held(store)
    with asking(fleet, store) as controller:
        held = renew(store, controller, DEVICE)
    assert held and before and held.serial != before.serial  # noqa: PT018
    with asking(fleet, store) as controller:
        controller.send("GET", "/v1/self/diagnostics", b"", "application/json")
        fleet.revoke()
        ask = ("GET", "/v1/self/diagnostics", b"", "application/json")
        assert refused(lambda: controller.send(*ask)) in {401, 403}


def test_who_shows_nothing_sees_nothing(fleet, store) -> None:
    store.mkdir()
    (store / "ca.pem").write_text(fleet.authority)
    with asking(fleet, store) as controller:
        for path in ("assignment", "diagnostics"):
            ask = ("GET", f"/v1/self/{path}", b"", "application/json")
            assert refused(lambda ask=ask: controller.send(*ask)) == 401
