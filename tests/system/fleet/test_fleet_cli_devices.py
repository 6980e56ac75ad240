"""`edge-fleet devices` and `tokens` as processes, against a running controller."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.controller.access import Role
from fleet.controller.database import desired, devices, diagnostics
from fleet.controller.database.desired import Desired
from fleet.controller.database.devices import Running
from tests.simulators.controller import RunningController, controlling, free_port
from tests.simulators.operator import Operator, operator, operator_with, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        running.enrolled("camera-1", tags=["pilot"], site="berlin")
        running.enrolled("camera-2", tags=["lobby"])
        with running.control.database.write() as connection:
            now = running.clock()
            slot = Running("reader", "models/acme/reader/2/release", "ab" * 32, "cpu-int8", "cpu", "committed", now)
            devices.report(connection, "camera-1", [slot], "in-step")
            devices.touch(connection, {"camera-1": now})
        yield running


@pytest.fixture(scope="module")
def admin(controller: RunningController) -> Operator:
    return operator(controller)


def test_the_first_token_is_made_beside_the_database(controller, admin, tmp_path: Path) -> None:
    file = tmp_path / "ann.token"
    create = ("tokens", "create", "ann", "--role", "admin", "--dir", controller.folder, "--out", file)
    code, out, err = admin.run(*create, EDGE_FLEET_TOKEN="", EDGE_FLEET_URL="")
    assert (code, out) == (0, "")
    assert "token" in err
    assert file.read_text().strip() not in err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, out, _ = admin.run("tokens", "list", "--token-file", file, EDGE_FLEET_TOKEN="")
    assert code == 0
    assert re.search(r"ann +│ admin +│ all devices", out)
    code, _, err = admin.run(*create)
    assert (code, "ann.token: exists already" in err) == (2, True)
    code, _, err = admin.run(*create[:-2])
    assert (code, "a valid token named 'ann' exists" in err) == (1, True)


def test_tokens_come_and_go(controller, admin) -> None:
    code, secret, _ = admin.run("tokens", "create", "ben", "--role", "operator", "--tag", "pilot", "--days", "2")
    assert code == 0
    ben = operator_with(controller, secret.strip())
    assert [device["id"] for device in ben.told("devices", "list")["devices"]] == ["camera-1"]
    code, _, err = ben.run("tokens", "list")
    assert (code, "DENIED: tokens.read needs the role admin" in err) == (1, True)
    number = next(token["id"] for token in admin.told("tokens", "list")["tokens"] if token["name"] == "ben")
    assert admin.run("tokens", "revoke", str(number))[0] == 0
    code, _, err = ben.run("devices", "list")
    assert (code, "unknown, revoked or expired" in err) == (1, True)


def test_devices_are_listed_for_people_and_programs(admin) -> None:
    code, out, err = admin.run("devices", "list", "--tag", "pilot")
    assert (code, err) == (0, "")
    assert re.search(r"camera-1 +│ in-step +│ berlin +│ pilot +│ reader 2 +│ (now|[1-9] min)", out)
    assert "1 device\n" in out
    code, out, err = admin.run("devices", "list", "--limit", "1")
    assert (code, "1 shown, and there are more: --limit N" in err) == (0, True)
    found = admin.told("devices", "list", "--target", "acme/reader/2")["devices"]
    assert [(device["id"], device["seen"][-1]) for device in found] == [("camera-1", "Z")]


def test_one_device_with_times_by_the_clock_here(admin) -> None:
    code, out, _ = admin.run("devices", "show", "camera-1")
    assert code == 0
    assert re.search(r"slot +┃ is to run ┃ runs +┃ state +┃ variant", out)
    said = admin.told("devices", "show", "camera-1")["enrolled"]
    hour = re.search(r"enrolled +\d{4}-\d\d-\d\d (\d\d):", out)
    assert hour
    assert (int(hour[1]) - int(said[11:13])) % 24 in {1, 2}  # Berlin
    code, _, err = admin.run("devices", "show", "nobody")
    assert (code, err) == (1, "edge-fleet: NOT_FOUND: no device 'nobody' is known\n")


def test_a_device_is_registered_labelled_revoked_and_readmitted(admin) -> None:
    assert "SN-9" in admin.run("devices", "register", "SN-9", "--id", "camera-9", "--tag", "a")[1]
    assert admin.told("devices", "label", "camera-9", "--add", "b", "--remove", "a", "--site", "rome")["tags"] == ["b"]
    assert admin.told("devices", "label", "camera-9", "--tag", "c", "--tag", "d")["tags"] == ["c", "d"]
    assert admin.told("devices", "label", "camera-9", "--no-tags")["site"] == "rome"
    code, _, err = admin.run("devices", "label", "camera-9")
    assert (code, "say what to change" in err) == (2, True)
    assert admin.run("devices", "revoke", "camera-9", "--because", "stolen", "--yes")[0] == 0
    assert "revoked" in admin.run("devices", "show", "camera-9")[1]
    assert admin.told("devices", "readmit", "camera-9")["state"] == "pre-registered"
    code, _, err = admin.run("devices", "readmit", "camera-9")
    assert (code, "needs one that is revoked" in err) == (1, True)


def test_a_model_is_taken_off_a_device_and_devices_leave(controller, admin) -> None:
    controller.enrolled("camera-8")
    wanted = Desired("camera-8", "reader", "models/acme/reader/2/release", "ab" * 32, 1, "", controller.clock())
    with controller.control.database.write() as connection:
        desired.put(connection, [wanted, replace(wanted, slot="meter")], controller.control.database.settings)
    code, out, err = admin.run("devices", "withdraw", "camera-8", "reader", "--because", "no reader there")
    assert (code, out) == (0, "camera-8: ordered to empty reader, when its policy allows it\n"), err
    assert admin.told("devices", "withdraw", "camera-8", "meter") == {"device": "camera-8", "withdrawn": "meter"}
    code, _, err = admin.run("devices", "withdraw", "camera-8", "reader")
    assert (code, "nothing is assigned to 'camera-8' in the slot 'reader'" in err) == (1, True)
    code, _, err = admin.run("devices", "remove", "camera-8")
    assert (code, "revoke it first" in err) == (1, True)
    admin.run("devices", "revoke", "camera-8", "--yes")
    code, out, err = admin.run("devices", "remove", "camera-8", "--because", "scrapped")
    assert (code, out) == (0, "camera-8: removed; the name may be enrolled again\n"), err
    entries = admin.told("audit", "list", "--subject", "camera-8")["entries"]
    assert [one["details"].get("because") for one in entries] == ["scrapped", "", "", "no reader there"]
    admin.run("devices", "register", "SN-8")
    assert admin.told("devices", "remove", "SN-8") == {"removed": "SN-8"}


def test_an_enrolment_token_goes_to_a_file_or_a_pipe(admin, tmp_path: Path) -> None:
    code, out, _ = admin.run("devices", "token", "--tag", "pilot", "--site", "berlin")
    assert code == 0
    assert re.fullmatch(r"efe_\S{43}\n", out)
    file = tmp_path / "t"
    made = admin.told("devices", "token", "--device", "camera-1", "--hours", "2", "--out", file)
    assert ("token" in made, file.read_text()[:4], stat.S_IMODE(file.stat().st_mode)) == (False, "efe_", 0o600)
    waiting = admin.told("devices", "tokens")["enrolments"]
    assert [one["device"] for one in waiting] == ["", "camera-1"]
    assert admin.run("devices", "revoke-token", str(made["id"]))[0] == 0
    assert len(admin.told("devices", "tokens")["enrolments"]) == 1


def test_a_device_is_asked_and_waited_for(controller, admin) -> None:
    database, now = controller.control.database, controller.clock
    process = admin.begin("devices", "diagnose", "camera-1", "--want", "log", "--wait", "50")

    def asked():
        with database.read() as connection:
            return diagnostics.waiting(connection, "camera-1", now())

    (request,) = until(asked, "the device was not asked")
    with database.write() as connection:
        diagnostics.answer(connection, request.id, "camera-1", {"log": ["a line", "another"]}, now())
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "a line\nanother" in out) == (0, True), err
    assert admin.told("devices", "answers", "camera-1", "--request", str(request.id))["answer"]["log"][0] == "a line"
    code, _, err = admin.run("devices", "diagnose", "camera-2", "--wait", "0")
    assert (code, "edge-fleet devices answers camera-2 --request" in err) == (3, True)


@pytest.mark.parametrize(
    ("environment", "code", "said"),
    [
        ({"EDGE_FLEET_URL": ""}, 2, "no controller is named; use --url"),
        ({"EDGE_FLEET_TOKEN": ""}, 2, "a token is needed"),
        ({"EDGE_FLEET_TOKEN": "eft_\x7f"}, 2, "holds no token"),
        ({"EDGE_FLEET_TOKEN": "eft_wrong"}, 1, "UNAUTHENTICATED"),
        ({"EDGE_FLEET_CA": ""}, 3, "name its CA with --ca"),
        ({"EDGE_FLEET_CA": "nothere.pem"}, 2, "nothere.pem: holds no readable certificates"),
        ({"EDGE_FLEET_URL": f"https://localhost:{free_port()}"}, 3, "does not answer"),
        ({"EDGE_FLEET_URL": "http://fleet.example.org"}, 2, "in the clear"),
    ],
)
def test_what_is_missing_is_said_in_one_line(admin, environment, code, said) -> None:
    found, out, err = admin.run("devices", "list", **environment)
    assert (found, out, said in err, err.count("\n")) == (code, "", True, 1), err
    assert admin.environment["EDGE_FLEET_TOKEN"] not in err


def test_a_wrong_value_is_usage(admin) -> None:
    code, _, err = admin.run("devices", "token", "--hours", "0")
    assert (code, "--hours: must be a number above 0" in err) == (2, True)
    assert admin.run("devices", "list", "--limit", "0")[0] == 2
    assert admin.run("devices")[0] == 2


def test_a_scope_is_told(controller) -> None:
    with controller.client() as client:
        body = {"name": "scoped", "role": Role.OPERATOR, "tags": ["pilot"]}
        scoped = operator_with(controller, client.post("/v1/tokens", json=body).json()["token"])
    for words in (("show", "camera-2"), ("revoke", "camera-2"), ("token", "--tag", "lobby"), ("token",)):
        code, _, err = scoped.run("devices", *words)
        assert (code, "DENIED" in err) == (1, True), words
