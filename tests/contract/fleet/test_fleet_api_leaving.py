"""`DELETE /v1/devices/…` over TLS: what the device is told, what a scope hides, who stays out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.database import audit, certificates
from gateway.common.domain.assignment import Assignment
from gateway.common.trust.assignment import verify_assignment
from tests.simulators.asking import ask, csr, enrolment_token, made_of, new_key, running, want
from tests.simulators.controller import RunningController, controlling
from tests.simulators.databases import KINDS, url
from tests.simulators.fleet_http import Device

__all__ = ["running"]
POLL = "/v1/self/assignment"
WHY = {"because": "scrapped"}
V1 = "models/acme/meter/1/release"


def polled(running: RunningController, client: httpx.Client, device: str, version: int = 0) -> Assignment:
    """Return the device's assignment, verified like a device that had this version does it."""
    answer = client.get(POLL)
    assert answer.status_code == 200, answer.text
    targets = running.repository.published.targets.signed
    return verify_assignment(answer.content, targets, device=device, now=running.clock(), last_version=version)


def came(running: RunningController, name: str, **given: list[str]) -> Device:
    """Enrol a device by a token made for it; return the device."""
    key = new_key()
    answer = ask(running, token=enrolment_token(running, name, **given), csr=csr(key))
    assert answer.status_code in {200, 201}, answer.text
    return made_of(answer.json(), key)


def test_the_next_assignment_leaves_out_what_was_withdrawn(running) -> None:
    with running.device_client(came(running, "w-1")) as device, running.client(Role.OPERATOR) as operator:
        want(running, "w-1", V1)
        first = polled(running, device, "w-1")
        etag = device.get(POLL).headers["etag"]
        assert operator.delete("/v1/devices/w-1/slots/meter", params=WHY).status_code == 204
        again = device.get(POLL, headers={"if-none-match": etag})
        assert (again.status_code, again.headers["etag"] == etag) == (200, False)
        second = polled(running, device, "w-1", first.version)
        assert ([*first.slots], [*second.slots], second.version - first.version) == (["meter"], [], 1)
        refused = operator.delete("/v1/devices/w-1/slots/meter")
        assert (refused.status_code, "'meter'" in refused.json()["detail"]) == (404, True)
        assert operator.delete("/v1/devices/none/slots/meter").status_code == 404
    with running.control.database.read() as connection:
        deed = audit.page(connection, running.control.database.settings, subject="w-1")[0].deed
    assert (deed.action, deed.details["because"], deed.details["target"]) == ("devices.withdraw", "scrapped", V1)


def test_a_scope_takes_nothing_from_what_is_beyond_it(running) -> None:
    came(running, "s-1", tags=["lobby"])
    want(running, "s-1", V1)
    with running.client(Role.OPERATOR, tags=["pilot"]) as scoped, running.client(Role.VIEWER) as viewer:
        for path in ("s-1/slots/meter", "s-1", "none/slots/meter", "none"):
            assert scoped.delete(f"/v1/devices/{path}").status_code == 403
            assert viewer.delete(f"/v1/devices/{path}").status_code == 403
    with running.client(Role.OPERATOR, tags=["lobby"]) as scoped:
        assert scoped.delete("/v1/devices/s-1/slots/meter").status_code == 204
        assert scoped.delete("/v1/devices/s-1").status_code == 409
        scoped.post("/v1/devices/s-1/revoke")
        assert scoped.delete("/v1/devices/s-1").status_code == 204
        assert scoped.delete("/v1/devices/s-1").status_code == 403


def test_a_reason_is_no_longer_than_the_audit_log_keeps(running) -> None:
    with running.client(Role.OPERATOR) as operator:
        assert operator.delete("/v1/devices/none", params={"because": "x" * 1025}).status_code == 400


def test_who_was_registered_by_mistake_is_removed(running) -> None:
    with running.client(Role.OPERATOR) as operator:
        assert operator.post("/v1/devices", json={"serial": "SN-1", "id": "m-1"}).status_code == 201
        assert operator.delete("/v1/devices/m-1", params=WHY).status_code == 204
        assert operator.get("/v1/devices/m-1").status_code == 404
        assert "m-1" not in operator.get("/v1/devices").text
        assert operator.post("/v1/devices", json={"serial": "SN-1", "id": "m-2"}).status_code == 201


def test_a_token_of_before_lets_nobody_in_under_the_name(running) -> None:
    came(running, "t-1")
    early = enrolment_token(running, "t-1")
    with running.client(Role.OPERATOR) as operator:
        operator.post("/v1/devices/t-1/revoke")
        assert operator.delete("/v1/devices/t-1").status_code == 204
    assert ask(running, token=early, csr=csr(new_key())).status_code == 401


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_device_stays_out_and_its_name_goes_on(kind: str, tmp_path: Path) -> None:
    with url(kind, tmp_path) as text:
        config = replace(FleetConfig(), database=replace(FleetConfig().database, url=text))
        with controlling(tmp_path, config) as first:
            first.repository.add_release("meter", "1")
            old = came(first, "camera-1")
            want(first, "camera-1", V1)
            with first.device_client(old) as device, first.client(Role.OPERATOR) as operator:
                had = polled(first, device, "camera-1")
                assert operator.delete("/v1/devices/camera-1", params=WHY).status_code == 409
                operator.post("/v1/devices/camera-1/revoke")
                assert operator.delete("/v1/devices/camera-1", params=WHY).status_code == 204
            assert stays_out(first, old)
        with controlling(tmp_path, config, first.repository) as second:
            assert stays_out(second, old)
            new = came(second, "camera-1")
            with second.device_client(new) as device:
                anew = polled(second, device, "camera-1", had.version)
                assert (anew.version, anew.slots) == (had.version + 1, {})
            assert stays_out(second, old)
            with second.control.database.read() as connection:
                named = certificates.revoked(connection, second.clock(), second.control.database.settings)
            assert [one.serial for one in named] == [old.certificate.serial]


def stays_out(running: RunningController, made: Device) -> bool:
    """Return whether its certificate gets no assignment, no other certificate, and nothing of the repository."""
    assert made.certificate.serial in running.control.revocations.serials()
    with running.device_client(made) as device:
        answers = [device.get(POLL), device.post("/v1/self/certificate", json={"csr": csr(new_key())})]
    return [answer.status_code for answer in answers] == [401, 401]
