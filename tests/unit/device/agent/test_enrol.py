"""Becoming a device of a fleet over the network, and staying the same one."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.trust.distrust import Distrust
from gateway.device.agent.cli import main
from gateway.device.agent.config import DEVICE_FILE, AgentConfig
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.fetch.certificate import CA_FILE, FILE, PENDING_FILE, read_held, with_certificate
from gateway.device.agent.fetch.controller import ControllerClient
from gateway.device.agent.fetch.folder import open_source
from gateway.device.agent.settings import ReportSettings
from gateway.device.agent.state.identity import ROOT_FILE, read_identity
from gateway.device.agent.state.storage import alone
from gateway.device.store.journal import Journal
from gateway.device.store.journal_rows import Floors
from tests.simulators.constants import settings_with
from tests.simulators.fleet_controller import Answer, Call, FleetController
from tests.simulators.fleet_repository import FleetRepository

CONFIG = AgentConfig(
    fetch=settings_with(FetchSettings(connect_timeout_s=2.0, read_timeout_s=2.0), attempts=1),
    telemetry=ReportSettings(deadline_s=5.0),
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> FleetRepository:
    return FleetRepository(tmp_path_factory.mktemp("fleet"))


@pytest.fixture
def fleet(tmp_path: Path, repository: FleetRepository) -> Iterator[FleetController]:
    with FleetController(tmp_path / "controller", repository).running() as made:
        made.tokens = {"t-1": "door-1", "t-2": "door-1", "t-3": "door-3"}
        made.serials = {"4711": "door-9"}
        yield made


def application(fleet: FleetController, token: str = "t-1", serial: str = "") -> EnrolmentInput:  # noqa: S107
    return EnrolmentInput(fleet.url, token, serial, fleet.authority.file.read_text())


def changed(fleet: FleetController, **changes: object) -> Callable[[Call], Answer]:
    """Return an answer to /v1/enrol that differs in `changes`."""

    def answer(call: Call) -> Answer:
        del fleet.ill["/v1/enrol"]
        status, headers, content = fleet._route(call)
        fleet.ill["/v1/enrol"] = answer
        return status, headers, json.dumps({**json.loads(content), **changes}).encode()

    return answer


def test_a_token_makes_it_a_device_that_can_ask(tmp_path: Path, fleet: FleetController) -> None:
    store = tmp_path / "store"
    identity = enrol(application(fleet), store, CONFIG)
    assert (identity.device, identity.controller, identity.poll_s) == ("door-1", fleet.url, 30.0)
    assert read_identity(store) == identity
    held = read_held(store)
    assert held
    assert held.device == "door-1"
    assert sorted(path.name for path in store.iterdir()) == [
        "agent.lock", CA_FILE, DEVICE_FILE, FILE, "journal.sqlite", "journal.sqlite-journal", ROOT_FILE,
    ]  # fmt: skip
    assert stat.S_IMODE((store / FILE).stat().st_mode) == 0o600
    base, _, name = identity.assignment.rpartition("/")
    answered = open_source(base, ConnectionPool(with_certificate(CONFIG.fetch, store))).read(name, 100_000)
    assert answered.content
    assert b"door-1" in answered.content


def test_the_key_never_leaves(tmp_path: Path, fleet: FleetController) -> None:
    enrol(application(fleet), tmp_path / "store", CONFIG)
    assert all(b"PRIVATE" not in call.body for call in fleet.asked)
    assert (tmp_path / "store" / FILE).read_text().count("PRIVATE KEY") == 2


def test_a_serial_that_the_fleet_expects_is_enough(tmp_path: Path, fleet: FleetController) -> None:
    assert enrol(application(fleet, "", "4711"), tmp_path / "store", CONFIG).device == "door-9"


def test_a_token_is_good_for_one_device(tmp_path: Path, fleet: FleetController) -> None:
    enrol(application(fleet), tmp_path / "first", CONFIG)
    with pytest.raises(ConfigurationError, match=r"the fleet refuses this device: .* is not valid for this device"):
        enrol(application(fleet), tmp_path / "second", CONFIG)
    assert not (tmp_path / "second" / DEVICE_FILE).exists()


def test_an_answer_that_was_lost_is_asked_for_again_with_the_same_key(tmp_path: Path, fleet: FleetController) -> None:
    def lose(call: Call) -> Answer:
        del fleet.ill["/v1/enrol"]
        fleet._route(call)
        return 502, {}, b"<html>"

    fleet.ill["/v1/enrol"] = lose
    with pytest.raises(UnreachableError, match="answered 502"):
        enrol(application(fleet), tmp_path / "store", CONFIG)
    assert (tmp_path / "store" / PENDING_FILE).exists()
    assert stat.S_IMODE((tmp_path / "store" / PENDING_FILE).stat().st_mode) == 0o600
    assert enrol(application(fleet), tmp_path / "store", CONFIG).device == "door-1"


def test_once_more_keeps_floors_and_the_pinned_root(
    tmp_path: Path, fleet: FleetController, repository: FleetRepository
) -> None:
    store = tmp_path / "store"
    enrol(application(fleet), store, CONFIG)
    journal = Journal.open(store)
    journal.raise_floors(Floors({"root": 7}))
    journal.close()
    pinned, before = (store / ROOT_FILE).read_bytes(), (store / FILE).read_bytes()
    other = FleetRepository(tmp_path / "other")
    fleet.ill["/v1/enrol"] = changed(fleet, root=json.loads(other.root_bytes(1)), assignment="https://new.example/a")
    identity = enrol(application(fleet, "t-2"), store, CONFIG)
    assert (store / ROOT_FILE).read_bytes() == pinned == identity.root
    assert read_identity(store).assignment == "https://new.example/a"
    assert (store / FILE).read_bytes() != before
    journal = Journal.open(store)
    assert journal.floor("root") == 7
    journal.close()


def test_a_device_does_not_become_another_one(tmp_path: Path, fleet: FleetController) -> None:
    enrol(application(fleet), tmp_path / "store", CONFIG)
    before = (tmp_path / "store" / FILE).read_bytes()
    with pytest.raises(ConfigurationError, match="is door-1, and the fleet calls it door-3"):
        enrol(application(fleet, "t-3"), tmp_path / "store", CONFIG)
    assert (tmp_path / "store" / FILE).read_bytes() == before


ODD: dict[str, tuple[dict[str, object], str]] = {
    "no root": ({"root": None}, "names no root"),
    "a path as its name": ({"device": "../door"}, "is no device's name"),
    "a number as its name": ({"device": 5}, "no string"),
    "no URL": ({"repository": "somewhere"}, "is no URL"),
    "no certificate": ({"certificate": "x"}, "unexpected answer"),
    "a number as certificate": ({"certificate": 1}, "no text"),
    "a key in the chain": ({"chain": "-----BEGIN PRIVATE KEY-----"}, "the chain holds a key"),
    "an endless chain": ({"chain": "x" * 100_000}, "more than 65536 bytes"),
    "a pause of years": ({"poll_s": 1e9}, "poll_s is out of bounds"),
}


@pytest.mark.parametrize("case", ODD)
def test_answers_that_are_odd_change_nothing(tmp_path: Path, fleet: FleetController, case: str) -> None:
    changes, reason = ODD[case]
    fleet.ill["/v1/enrol"] = changed(fleet, **changes)
    with pytest.raises(ConfigurationError, match=reason):
        enrol(application(fleet), tmp_path / "store", CONFIG)
    assert not (tmp_path / "store" / DEVICE_FILE).exists()


def test_a_certificate_for_another_key_is_refused(tmp_path: Path, fleet: FleetController) -> None:
    enrol(application(fleet), tmp_path / "first", CONFIG)
    foreign = (tmp_path / "first" / FILE).read_text().partition("-----END PRIVATE KEY-----\n")[2]
    fleet.ill["/v1/enrol"] = changed(fleet, certificate=foreign)
    with pytest.raises(ConfigurationError, match="not for this device's key"):
        enrol(application(fleet, "t-2"), tmp_path / "store", CONFIG)


def test_a_root_that_nobody_signed_is_refused(tmp_path: Path, fleet: FleetController) -> None:
    root = json.loads(fleet.repository.root_bytes(1))
    root["signed"]["version"] = 5
    fleet.ill["/v1/enrol"] = changed(fleet, root=root)
    with pytest.raises(Distrust):
        enrol(application(fleet), tmp_path / "store", CONFIG)


def test_a_controller_of_another_authority_is_not_told_the_token(tmp_path: Path, fleet: FleetController) -> None:
    with pytest.raises(UnreachableError, match="certificate verify failed"):
        enrol(replace(application(fleet), authority=""), tmp_path / "store", CONFIG)
    assert fleet.asked == []


@pytest.mark.parametrize("url", ["http://fleet.example", "ftp://localhost", "fleet.example", "https://", "http://"])
def test_a_token_travels_over_tls_only(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no https URL"):
        enrol(EnrolmentInput(url, "t-1"), tmp_path / "store", CONFIG)


def test_a_token_stands_in_no_message() -> None:
    assert "hunter2" not in repr(EnrolmentInput("https://fleet.example", "hunter2"))


def test_another_agent_at_work_is_waited_for(tmp_path: Path, fleet: FleetController) -> None:
    enrol(application(fleet), tmp_path / "store", CONFIG)
    with alone(tmp_path / "store"), pytest.raises(UnreachableError, match="another edge-agent uses this folder"):
        enrol(application(fleet, "t-2"), tmp_path / "store", CONFIG)


def test_a_controller_without_end_is_hung_up_on(tmp_path: Path, fleet: FleetController) -> None:
    fleet.ill["/v1/self/telemetry"] = lambda call: (200, {}, b"x" * 2_000_000)
    enrol(application(fleet), tmp_path / "store", CONFIG)
    with (
        closing(ConnectionPool(with_certificate(CONFIG.fetch, tmp_path / "store"))) as connections,
        pytest.raises(FetchError, match="more than 1048576 bytes"),
    ):
        ControllerClient(fleet.url, connections, 5.0).send("POST", "/v1/self/telemetry", b"", "application/json")


def test_the_command(tmp_path: Path, fleet: FleetController, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("t-1\n")
    ca, store = str(fleet.authority.file), str(tmp_path / "store")
    command = ["enrol", fleet.url, "--token-file", str(tmp_path / "token"), "--ca", ca, "--state", store]
    assert main(command) == 0
    assert "this device is door-1" in capsys.readouterr().out
    assert main(command) == 2
    assert "is not valid for this device" in capsys.readouterr().err
    assert main(["enrol", fleet.url, "--ca", ca, "--state", store]) == 2
    assert main(["enrol", "https://localhost:1", "--token", "t", "--state", store]) == 3
