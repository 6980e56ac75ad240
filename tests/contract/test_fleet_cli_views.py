"""`--query`, as processes, against a running controller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleet.controller.control.rollouts_record import new_fact
from fleet.controller.database import alerts, events, rollouts
from fleet.controller.database.alerts import Alert
from fleet.controller.database.events import Event
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.decisions import Finish
from fleet.controller.rollouts.facts import Approved, Created, Decided, Paused, Started
from fleet.controller.rollouts.spec_form import read_spec, spec_digest
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import Operator, operator
from tests.simulators.rolled_fleet import SLOT, document

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        now, database = running.clock(), running.control.database
        for name, tag in (("camera-1", "pilot"), ("camera-2", "lobby"), ("camera-3", "pilot")):
            running.enrolled(name, tags=[tag], site="berlin")
        with database.write() as connection:
            happened = [Event(name, "k", now, "rollback") for name in ("camera-1", "camera-2")]
            events.record(connection, happened, now, database.settings)
            state = alerts.AlertState.OPEN
            opened = [Alert(name, "silent", name, "", state, now, now, now) for name in ("camera-1", "camera-2")]
            alerts.put(connection, opened, tell=False)
        yield running


@pytest.fixture(scope="module")
def admin(controller: RunningController) -> Operator:
    return operator(controller)


@pytest.mark.parametrize(
    ("verb", "name", "expected"),
    [
        (("devices", "list"), "id", ["camera-1", "camera-3"]),
        (("telemetry", "events"), "device", ["camera-1"]),
        (("telemetry", "alerts"), "device", ["camera-1"]),
    ],
)
def test_lists_are_narrowed_by_a_query(admin: Operator, verb: tuple[str, str], name: str, expected: list) -> None:
    found = next(iter(admin.told(*verb, "--query", "tag = pilot and not site = bonn").values()))
    assert [one[name] for one in found] == expected
    code, _, err = admin.run(*verb, "--query", "tag ~ pilot")
    assert (code, "query: at character 5" in err) == (2, True)


def test_many_devices_are_tagged_after_a_preview_and_a_question(admin: Operator) -> None:
    order = ("devices", "tag", "--query", "id = camera-*", "--add", "canary")
    code, out, _ = admin.run(*order, "--dry-run")
    assert (code, out) == (0, "would change: 3 of 3 devices: camera-1, camera-2, camera-3\n")
    code, _, err = admin.run(*order)
    assert (code, "3 devices would change and there is no terminal to confirm it" in err) == (2, True)
    code, out, _ = admin.run(*order, "--yes")
    assert (code, out) == (0, "changed: 3 of 3 devices: camera-1, camera-2, camera-3\n")
    code, out, _ = admin.run("devices", "tag", "camera-1", "--add", "canary", "--yes")
    assert (code, out) == (0, "nothing to change: 0 of 1 devices\n")
    assert admin.told("devices", "tag", "camera-1", "--remove", "canary", "--yes")["changed"] == 1


def test_a_standing_rollout_is_listed_and_shown(controller: RunningController, admin: Operator) -> None:
    now, database = controller.clock(), controller.control.database
    target = {"path": "models/acme/meter-reader/2/release", "size_bytes": 1, "sha256": "ab" * 32}
    spec = document(target=target, standing=True, query="tag = nobody")
    events: list[Any] = [Created("s-1", "ann"), Approved("ann", spec_digest(read_spec(spec))), Started("ann")]
    events += [Decided(Finish()), Paused("ann")]
    with database.write() as connection:
        rollouts.create(connection, StoredRollout("s-1", "n", SLOT, "t", "draft", spec, now, "ann"))
        facts = [new_fact(now, event) for event in events]
        rollouts.record(connection, "s-1", facts, database.settings, state="paused")
    assert [(one["id"], one["standing"]) for one in admin.told("rollouts", "list")["rollouts"]] == [("s-1", True)]
    assert "paused, standing" in admin.run("rollouts", "list")[1]
    shown = admin.told("rollouts", "show", "s-1")
    assert (shown["state"], shown["standing"], shown["round"], shown["served"]) == ("paused", True, 1, {})
    assert "stays their target" in admin.run("rollouts", "show", "s-1")[1]
    assert "is paused; only a finished or aborted one" in admin.run("rollouts", "archive", "s-1")[2]
    assert admin.told("rollouts", "abort", "s-1")["state"] == "finished"
    assert admin.run("rollouts", "archive", "s-1")[0] == 0


def test_rollouts_are_archived_and_restored(controller: RunningController, admin: Operator) -> None:
    now, database = controller.clock(), controller.control.database
    spec = document(target={"path": "models/acme/meter-reader/2/release", "size_bytes": 1, "sha256": "ab" * 32})
    with database.write() as connection:
        for name in ("r-1", "r-2"):
            rollouts.create(connection, StoredRollout(name, "n", SLOT, "t", "draft", spec, now, "ann"))
            rollouts.record(connection, name, [new_fact(now, Created(name, "ann"))], database.settings, state="aborted")
    code, out, _ = admin.run("rollouts", "archive", "r-1")
    assert (code, out.startswith("r-1: ")) == (0, True)
    assert [one["id"] for one in admin.told("rollouts", "list")["rollouts"]] == ["r-2"]
    code, out, _ = admin.run("rollouts", "archive", "--before", "2099-01-31")
    assert (code, out) == (0, "archived: 1 rollout\n")
    code, out, _ = admin.run("rollouts", "list", "--archived")
    assert (code, out.count("aborted, archived")) == (0, 2)
    assert admin.run("rollouts", "restore", "r-2")[0] == 0
    assert [one["id"] for one in admin.told("rollouts", "list")["rollouts"]] == ["r-2"]
    code, _, err = admin.run("rollouts", "archive", "--before", "tomorrow")
    assert (code, "write a date as 2027-01-31" in err) == (2, True)
