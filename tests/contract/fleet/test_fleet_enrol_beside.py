"""Certificates of one device that are given and taken away at one moment, on PostgreSQL.

Each deed has locks of its own there. The first of two is held where it writes the audit log, almost done, until the
other one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleet.controller.audit import Deed
from fleet.controller.config import FleetConfig
from fleet.controller.control import enrolling
from fleet.controller.control.settings import DirectorSettings
from fleet.controller.database import audit, certificates, devices
from tests.simulators.asking import ask, csr, enrolment_token, made_of, new_key, plane
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController
from tests.simulators.databases import waiting
from tests.simulators.operator import until

DEVICE = "camera-1"
PER_DAY = 4


class Held:
    """A controller with one device. `deeds`: what may be done about it; who renews shows its first certificate."""

    def __init__(self, running: RunningController, opened: ExitStack) -> None:
        self.running, self.database = running, running.control.database
        self.token, self.key = enrolment_token(running, DEVICE), new_key()
        self.pool = opened.enter_context(ThreadPoolExecutor())
        stolen = made_of(self.again().json(), self.key)
        thief = opened.enter_context(running.device_client(stolen))
        self.admin = opened.enter_context(running.client())
        spare = [enrolment_token(running, DEVICE) for _ in range(2)]
        self.deeds: Mapping[str, Callable[[], httpx.Response]] = {
            "renewed": lambda: thief.post("/v1/self/certificate", json={"csr": csr(new_key())}),
            "enrolled": lambda: ask(running, token=spare.pop(), csr=csr(new_key())),
            "revoked": lambda: self.admin.post(f"/v1/devices/{DEVICE}/revoke", json={}),
        }

    def again(self) -> httpx.Response:
        """Repeat the device's first request, as if the answer had been lost."""
        return ask(self.running, token=self.token, csr=csr(self.key))

    def beside(self, *names: str) -> list[int]:
        """Carry out the deeds, each begun once the one before waits; return their status codes."""
        asked = list[Future[httpx.Response]]()
        with self.database.write() as holding:
            audit.append(holding, Deed("the test", "holds", "the log"), self.running.clock())
            for count, name in enumerate(names, 1):
                asked.append(self.pool.submit(self.deeds[name]))
                until(lambda count=count: waiting(self.database) == count, f"what is {name} does not wait")
        return [one.result().status_code for one in asked]

    def opening(self) -> list[str]:
        """Return the deeds whose certificates still hold, by the audit log."""
        settings = self.database.settings
        with self.database.read() as connection:
            deeds = [entry.deed for entry in audit.page(connection, settings, subject=DEVICE)]
            shown = certificates.of_device(connection, DEVICE, settings)
        opening = {one.serial for one in shown if one.revoked is None}
        return [deed.action for deed in deeds if deed.details.get("certificate") in opening]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    few = replace(FleetConfig(), director=settings_with(DirectorSettings(), certificates_per_day=PER_DAY))
    with plane("postgresql", tmp_path, few) as running, ExitStack() as opened:
        yield Held(running, opened)


@pytest.mark.parametrize(
    ("first", "second", "codes", "opening"),
    [
        ("renewed", "revoked", [200, 200], []),
        ("revoked", "renewed", [200, 401], []),
        ("renewed", "enrolled", [200, 200], ["devices.enrol"]),
        ("enrolled", "renewed", [200, 401], ["devices.enrol"]),
        ("enrolled", "revoked", [200, 200], []),
        ("revoked", "enrolled", [200, 409], []),
        ("enrolled", "enrolled", [200, 200], ["devices.enrol"]),
    ],
)
def test_what_was_taken_away_holds_no_more(
    held: Held, first: str, second: str, codes: list[int], opening: list[str]
) -> None:
    """Neither does the device's certificate from before, nor one given meanwhile to a holder of a copy of its disk."""
    assert held.beside(first, second) == codes
    assert held.opening() == opening


def test_of_two_that_renew_the_second_is_counted_behind_the_first(held: Held) -> None:
    for _ in range(PER_DAY - 2):
        assert held.deeds["renewed"]().status_code == 200
    assert held.beside("renewed", "renewed") == [200, 503]


def test_a_key_that_was_revoked_does_not_come_in_as_the_device_is_readmitted(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, it says, and it was believed a moment before the device was revoked."""
    enrol, readmitting = devices.enrol, list[Future[httpx.Response]]()

    def late(*said: object) -> None:
        assert held.deeds["revoked"]().status_code == 200
        readmitting.append(held.pool.submit(held.admin.post, f"/v1/devices/{DEVICE}/readmit"))
        until(lambda: readmitting[0].done() or waiting(held.database) == 1, "it is neither readmitted nor waits")
        enrol(*said)  # type: ignore[arg-type]

    monkeypatch.setattr(enrolling.devices, "enrol", late)
    assert held.again().status_code == 409
    assert readmitting[0].result().status_code == 200
    assert held.opening() == []
    monkeypatch.undo()
    assert held.again().status_code == 401
