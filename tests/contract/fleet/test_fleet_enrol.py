"""Enrolment of devices: tokens, serials, answers that were lost, thieves; renewal."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from fleet.controller.access import Role
from fleet.controller.audit import Deed
from fleet.controller.database import audit, certificates, devices
from fleet.controller.database.devices import EnrolmentState
from gateway.common.trust.chain import trusted_root
from tests.simulators.asking import ask, csr, enrolment_token, made_of, new_key, plane, running
from tests.simulators.controller import RunningController
from tests.simulators.databases import waiting
from tests.simulators.operator import until

__all__ = ["running"]


def known(running: RunningController, device: str) -> devices.Device:
    with running.control.database.read() as connection:
        return devices.get(connection, device)


def register(running: RunningController, device: str, serial: str) -> None:
    with running.control.database.write() as connection:
        devices.register(connection, device, serial, running.clock())


def polls(running: RunningController, answer: dict[str, object], key) -> int:
    with running.device_client(made_of(answer, key)) as client:
        return client.get("/v1/self/assignment").status_code


def test_a_token_lets_a_device_in_with_what_it_gives(running) -> None:
    token, key = enrolment_token(running, "camera-1", tags=["pilot"], site="berlin"), new_key()
    answer = ask(running, token=token, csr=csr(key, "anything"), agent="0.1.0").json()
    assert answer["device"] == "camera-1"
    assert answer["repository"] == f"{running.url}/repository/"
    assert (answer["assignment"], answer["controller"]) == (f"{running.url}/v1/self/assignment", running.url)
    assert 50 <= answer["poll_s"] <= 70
    found = known(running, "camera-1")
    assert (found.state, found.tags, found.site) == (EnrolmentState.ENROLLED, {"pilot"}, "berlin")
    assert polls(running, answer, key) == 200
    with running.control.database.read() as connection:
        deed = audit.page(connection, running.control.database.settings, subject="camera-1")[0].deed
    assert (deed.actor, deed.action, deed.details["by"]) == ("device:camera-1", "devices.enrol", "token")
    assert token not in json.dumps(deed.details)


def test_the_newest_root_is_pinned(running) -> None:
    """A holder of keys that were rotated away cannot make a chain that begins there."""
    running.repository.rotate("root")
    answer = ask(running, token=enrolment_token(running), csr=csr(new_key())).json()
    newest = running.repository.published.root
    assert answer["root"]["signed"]["version"] == newest.signed.version >= 2
    trusted_root(json.dumps(answer["root"]).encode(), (), newest.signed.version)


def test_an_answer_that_was_lost_is_given_again_to_the_same_key_only(running) -> None:
    token, key = enrolment_token(running, "camera-2"), new_key()
    first = ask(running, token=token, csr=csr(key)).json()
    again = ask(running, token=token, csr=csr(key)).json()
    assert again["device"] == first["device"]
    assert [polls(running, answer, key) for answer in (first, again)] == [200, 200]
    assert ask(running, token=token, csr=csr(new_key())).status_code == 401
    assert polls(running, again, key) == 200


def test_names_are_the_tokens_the_serials_the_devices_own_or_made_of_the_key(running) -> None:
    register(running, "lobby-7", "SN-7")
    key = new_key()
    open_token = enrolment_token(running)
    assert ask(running, token=open_token, serial="SN-7", csr=csr(key, "SN-7")).json()["device"] == "lobby-7"
    assert ask(running, token=enrolment_token(running), csr=csr(new_key(), "gate-3")).json()["device"] == "gate-3"
    assert ask(running, token=enrolment_token(running), serial="SN-8", csr=csr(new_key())).json()["device"] == "SN-8"
    assert known(running, "SN-8").serial == "SN-8"
    made = ask(running, token=enrolment_token(running), csr=csr(new_key(), "no name at all!")).json()["device"]
    assert made.startswith("device-")
    assert len(made) == 19


def test_a_serial_that_is_expected_lets_in_once(running) -> None:
    register(running, "hall-1", "SN-100")
    key = new_key()
    answer = ask(running, serial="SN-100", csr=csr(key)).json()
    assert answer["device"] == "hall-1"
    assert ask(running, serial="SN-100", csr=csr(key)).json()["device"] == "hall-1", "its answer was lost"
    assert ask(running, serial="SN-100", csr=csr(new_key())).status_code == 401
    assert polls(running, answer, key) == 200


@pytest.mark.parametrize("said", [{}, {"serial": ""}, {"serial": "nobody's"}, {"token": "efe_wrong"}])
def test_strangers_are_refused_and_not_told_why(running, said) -> None:
    refused = ask(running, csr=csr(new_key(), "x"), **said)
    assert refused.status_code == 401
    assert refused.headers["content-type"] == "application/problem+json"
    assert running.control.counts["enrolment_refused_UNAUTHENTICATED"] >= 1


def test_a_token_for_new_devices_makes_nobody_one_that_is_there(running) -> None:
    key = new_key()
    answer = ask(running, token=enrolment_token(running, "vault-1"), serial="SN-V", csr=csr(key)).json()
    leaked = enrolment_token(running)
    for said in ({"csr": csr(new_key(), "vault-1")}, {"csr": csr(new_key(), "other"), "serial": "SN-V"}):
        refused = ask(running, token=leaked, **said)
        assert (refused.status_code, "already" in refused.json()["detail"]) == (409, True)
    assert polls(running, answer, key) == 200
    register(running, "vault-2", "SN-W")
    assert ask(running, token=leaked, csr=csr(new_key(), "vault-2")).status_code == 409, "its serial was not said"
    assert ask(running, token=leaked, csr=csr(new_key(), "fresh")).status_code == 200, "no refusal used the token up"


def test_who_comes_again_with_another_key_loses_the_certificates_before(running) -> None:
    old, new = new_key(), new_key()
    first = ask(running, token=enrolment_token(running, "door-1", tags=["a"]), csr=csr(old)).json()
    second = ask(running, token=enrolment_token(running, "door-1", tags=["b"]), csr=csr(new)).json()
    assert polls(running, second, new) == 200
    assert polls(running, first, old) == 401
    assert known(running, "door-1").tags == {"a", "b"}


def test_a_revoked_device_stays_out_until_it_is_readmitted(running) -> None:
    key, now = new_key(), running.clock()
    answer = ask(running, token=enrolment_token(running, "thief-1"), csr=csr(key)).json()
    with running.control.database.write() as connection:
        devices.change_state(connection, "thief-1", "revoke", "stolen", now)
        certificates.revoke_all(connection, "thief-1", "stolen", now)
    assert polls(running, answer, key) == 401
    token = enrolment_token(running, "thief-1")
    refused = ask(running, token=token, csr=csr(key))
    assert (refused.status_code, "readmit" in refused.json()["detail"]) == (409, True)
    with running.control.database.write() as connection:
        devices.change_state(connection, "thief-1", "readmit", "", now)
    assert ask(running, token=token, csr=csr(key)).status_code == 200


def test_of_many_with_one_token_one_comes_in(running) -> None:
    token = enrolment_token(running)
    with ThreadPoolExecutor(6) as threads:
        tried = list(threads.map(lambda _: ask(running, token=token, csr=csr(new_key())).status_code, range(6)))
    assert sorted(tried) == [200] + [401] * 5


def test_of_many_with_one_name_one_comes_in(running) -> None:
    tokens = [enrolment_token(running) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        tried = list(threads.map(lambda t: ask(running, token=t, csr=csr(new_key(), "same")).status_code, tokens))
    assert sorted(tried) == [200, 409, 409, 409]


@pytest.mark.parametrize(
    "said",
    [
        {"csr": "x"},
        {"csr": "-----BEGIN CERTIFICATE REQUEST-----\n\0\ud800\n-----END CERTIFICATE REQUEST-----"},
        {"csr": "x", "more": "y"},
        {"csr": "x" * 20_000},
        {},
        {"csr": "CSR", "serial": "nul\0", "token": "TOKEN"},
        {"csr": "CSR", "agent": "half \ud800 a pair", "token": "TOKEN"},
    ],
)
def test_what_is_no_application_is_refused(running, said) -> None:
    token = enrolment_token(running)
    made = {key: {"CSR": csr(new_key()), "TOKEN": token}.get(value, value) for key, value in said.items()}
    with running.client(None) as nobody:
        body = json.dumps(made)
        refused = nobody.post("/v1/enrol", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400, refused.text
    assert ask(running, token=token, csr=csr(new_key())).status_code == 200, "the token is as it was"


# ---- renewal ---------------------------------------------------------------------------------------------------------
def test_a_certificate_is_renewed_for_another_key_and_the_old_one_holds(running) -> None:
    old, new = new_key(), new_key()
    device = made_of(ask(running, token=enrolment_token(running, "renews-1"), csr=csr(old)).json(), old)
    with running.device_client(device) as client:
        assert client.post("/v1/self/certificate", json={"csr": csr(old)}).status_code == 400
        assert client.post("/v1/self/certificate", json={"csr": "none"}).status_code == 400
        answer = client.post("/v1/self/certificate", json={"csr": csr(new, "somebody-else")}).json()
        assert client.get("/v1/self/assignment").status_code == 200
    renewed = made_of(answer, new)
    assert renewed.certificate.device == "renews-1"
    with running.device_client(renewed) as client:
        assert client.get("/v1/self/assignment").status_code == 200


def test_nobody_is_given_certificates_without_end(running) -> None:
    key = new_key()
    device = made_of(ask(running, token=enrolment_token(running, "greedy"), csr=csr(key)).json(), key)
    with running.device_client(device) as client:
        codes = [client.post("/v1/self/certificate", json={"csr": csr(new_key())}).status_code for _ in range(24)]
    assert codes == [200] * 23 + [503]


def test_an_expired_certificate_renews_nothing(running) -> None:
    key = new_key()
    device = made_of(ask(running, token=enrolment_token(running, "late"), csr=csr(key)).json(), key)
    running.clock.ahead = timedelta(days=91)
    try:
        with running.device_client(device) as client:
            answer = client.post("/v1/self/certificate", json={"csr": csr(new_key())})
            assert answer.status_code == 401
    finally:
        running.clock.ahead = timedelta()


@pytest.mark.parametrize("days", [1, 365])
def test_a_certificate_of_a_clock_that_was_ahead_is_valid_when_it_is_right_again(running, days: int) -> None:
    """Only this process's clock moves: TLS verifies by the right one."""
    key, token = new_key(), enrolment_token(running, valid_h=24.0 * 400)
    running.clock.ahead = timedelta(days=days)
    try:
        device = made_of(ask(running, token=token, csr=csr(key)).json(), key)
        again = ask(running, token=token, csr=csr(key))
        assert (again.status_code, again.json()["device"]) == (200, device.certificate.device), "the answer was lost"
    finally:
        running.clock.ahead = timedelta()
    with running.device_client(device) as client:
        assert client.post("/v1/self/certificate", json={"csr": csr(new_key())}).status_code == 200


# ---- a token for a name that no device has yet -----------------------------------------------------------------------
@pytest.mark.parametrize("how", ["registered", "enrolled"])
def test_it_is_void_once_a_device_is_called_so(running, how) -> None:
    """Also where it was made by a replica whose clock is ahead."""
    name = f"later-{how}"
    running.clock.ahead = timedelta(minutes=5)
    early = enrolment_token(running, name)
    running.clock.ahead = timedelta()
    with running.client(Role.OPERATOR) as operator:
        if how == "registered":
            assert operator.post("/v1/devices", json={"serial": f"SN-{how}", "id": name}).status_code == 201
        else:
            assert ask(running, token=enrolment_token(running), csr=csr(new_key(), name)).json()["device"] == name
    assert ask(running, token=early, csr=csr(new_key())).status_code == 401
    with running.control.database.read() as connection:
        (deed,) = (found.deed for found in audit.page(connection, running.control.database.settings, subject=name))
    assert deed.details["enrolments_void"] == 1


def test_one_for_a_device_holds_though_that_was_registered_by_a_clock_ahead(running) -> None:
    running.clock.ahead = timedelta(minutes=5)
    with running.client(Role.OPERATOR) as operator:
        assert operator.post("/v1/devices", json={"serial": "SN-ahead", "id": "ahead-1"}).status_code == 201
    running.clock.ahead = timedelta()
    answer = ask(running, token=enrolment_token(running, "ahead-1"), csr=csr(new_key()))
    assert (answer.status_code, answer.json().get("device")) == (200, "ahead-1")


# ---- a token and the tags it goes by, at one moment ------------------------------------------------------------------
@pytest.mark.parametrize("first", ["token", "tags"])
def test_no_token_is_made_for_a_device_that_leaves_the_scope_meanwhile(tmp_path, first) -> None:
    """Each of the two is held where it writes the audit log, all but done."""
    with (
        plane("postgresql", tmp_path) as running,
        running.client(Role.OPERATOR, tags=["pilot"]) as pilot,
        running.client() as admin,
        ThreadPoolExecutor() as pool,
    ):
        running.enrolled("door-1", tags=["pilot"])
        asks = {
            "token": lambda: pilot.post("/v1/enrolments", json={"device": "door-1", "tags": ["pilot"]}),
            "tags": lambda: admin.put("/v1/devices/door-1/labels", json={"tags": ["bank"]}),
        }
        with running.control.database.write() as holding:
            audit.append(holding, Deed("the test", "holds", "the log"), running.clock())
            answers = {}
            for count, name in enumerate(sorted(asks, key=lambda one: one != first), 1):
                answers[name] = pool.submit(asks[name])
                until(lambda count=count: waiting(running.control.database) == count, f"{name} does not wait")
        assert answers["tags"].result().status_code == 200
        assert answers["token"].result().status_code == {"token": 201, "tags": 403}[first]
        assert admin.get("/v1/enrolments").json()["items"] == []
