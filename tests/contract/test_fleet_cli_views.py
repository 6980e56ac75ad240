"""`--query`, as processes, against a running controller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.database import alerts, events
from fleet.database.alerts import Alert
from fleet.database.events import Event
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import Operator, operator

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
            state = alerts.State.OPEN
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
    assert (code, "3 devices would change and nobody is here to confirm it" in err) == (2, True)
    code, out, _ = admin.run(*order, "--yes")
    assert (code, out) == (0, "changed: 3 of 3 devices: camera-1, camera-2, camera-3\n")
    code, out, _ = admin.run("devices", "tag", "camera-1", "--add", "canary", "--yes")
    assert (code, out) == (0, "nothing to change: 0 of 1 devices\n")
    assert admin.told("devices", "tag", "camera-1", "--remove", "canary", "--yes")["changed"] == 1
