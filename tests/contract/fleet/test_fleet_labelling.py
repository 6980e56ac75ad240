"""Tags of many devices: all or none, on both databases; `POST /v1/devices/tags`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from fleet.controller.access import Role
from fleet.controller.control.labelling import Order, Outcome, preview, relabel
from fleet.controller.database import audit, devices, enrolment
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from fleet.controller.database.labels import LabelChange
from fleet.controller.database.settings import DatabaseSettings
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.databases import KINDS, NOW, database, enrolled, made

__all__ = ("database",)
MANY = 1_200
"""More than one statement names."""


def change(add: str = "", remove: str = "", site: str | None = None) -> LabelChange:
    return LabelChange(frozenset(add.split()), frozenset(remove.split()), site)


def labelled(database: Database, **tags: str) -> None:
    """Enrol devices with these tags."""
    enrolled(database, *tags)
    with database.write() as connection:
        for name, text in tags.items():
            devices.label(connection, name, text.split(), "")


def labels_of(database: Database) -> dict[str, tuple[str, str]]:
    with database.read() as connection:
        found = devices.page(connection, devices.DeviceSelection(), database.settings, limit_rows=1_000)
    return {one.id: (" ".join(sorted(one.tags)), one.site) for one in found}


def entries(database: Database) -> list:
    with database.read() as connection:
        return [entry.deed for entry in audit.page(connection, database.settings)]


def test_a_query_that_its_own_change_touches(database: Database) -> None:
    labelled(database, a="old", b="old pilot", c="lobby")
    order = Order(change("pilot", "old", "bonn"), query="tag = old")
    foreseen = preview(database, order)
    assert (foreseen, entries(database)) == (Outcome(2, 2, ["a", "b"], 0), [])
    assert labels_of(database)["a"] == ("old", "")
    assert relabel(database, order, "ann", NOW) == foreseen
    assert labels_of(database) == {"a": ("pilot", "bonn"), "b": ("pilot", "bonn"), "c": ("lobby", "")}
    (deed,) = entries(database)
    assert (deed.actor, deed.action, deed.subject) == ("ann", "devices.tag", "tag = old")
    said = {name: deed.details[name] for name in ("query", "add", "remove", "site", "selected", "changed")}
    assert said == {
        "query": "tag = old",
        "add": ["pilot"],
        "remove": ["old"],
        "site": "bonn",
        "selected": 2,
        "changed": 2,
    }


def test_devices_that_are_so_already_are_not_counted(database: Database) -> None:
    labelled(database, a="pilot", b="")
    assert relabel(database, Order(change("pilot"), query="all"), "ann", NOW) == Outcome(2, 1, ["b"], 0)
    assert relabel(database, Order(change("pilot"), query="all"), "ann", NOW) == Outcome(2, 0, [], 0)
    assert len(entries(database)) == 1


def test_names_that_are_not_known_change_nothing(database: Database) -> None:
    labelled(database, a="", b="")
    with pytest.raises(AbsentError, match="1 of 3 devices are not known, 'none' among them"):
        relabel(database, Order(change("pilot"), names=["b", "none", "a", "a"]), "ann", NOW)
    assert labels_of(database) == {"a": ("", ""), "b": ("", "")}
    assert relabel(database, Order(change("pilot"), names=["b", "b"]), "ann", NOW).devices == ["b"]


def test_another_number_than_was_confirmed_changes_nothing(database: Database) -> None:
    labelled(database, a="", b="")
    with pytest.raises(ConflictError, match="2 devices would change, not 1"):
        relabel(database, Order(change("pilot"), query="all", expected=1), "ann", NOW)
    assert (labels_of(database)["a"], entries(database)) == (("", ""), [])


def test_more_tags_than_a_device_may_have_change_no_device(database: Database) -> None:
    labelled(database, a="", b=" ".join(f"t{number}" for number in range(64)))
    with pytest.raises(RefusedError, match="'b' would have more than 64 tags"):
        relabel(database, Order(change("pilot"), query="all"), "ann", NOW)
    assert labels_of(database)["a"] == ("", "")
    relabel(database, Order(change("pilot", "t0"), query="all"), "ann", NOW)
    assert labels_of(database)["a"] == ("pilot", "")


def test_tokens_of_devices_that_lose_a_tag_are_void(database: Database) -> None:
    labelled(database, a="old", b="lobby")
    with database.write() as connection:
        for name in ("a", "b", ""):
            credential = new_credential("efe_")
            until = NOW + timedelta(days=1)
            enrolment.create(connection, credential, database.settings, expires=until, now=NOW, by="ann", device=name)
    assert relabel(database, Order(change("x", "old"), query="all"), "ann", NOW).enrolments_void == 1
    with database.read() as connection:
        assert [one.device for one in enrolment.page(connection, database.settings)] == ["b", ""]


def test_many_devices_change_at_once_and_too_many_do_not(database: Database) -> None:
    names = [f"device-{number:04}" for number in range(MANY)]
    enrolled(database, *names)
    outcome = relabel(database, Order(change("pilot", site="bonn"), query="all"), "ann", NOW)
    assert (outcome.changed, outcome.devices[0], len(outcome.devices)) == (MANY, "device-0000", 20)
    assert relabel(database, Order(change(remove="pilot"), names=names), "ann", NOW).changed == MANY
    assert relabel(database, Order(change(remove="pilot"), query="all"), "ann", NOW).changed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_devices_is_bounded(kind: str, tmp_path) -> None:
    with made(kind, tmp_path, settings_with(DatabaseSettings(), bulk_limit_devices=2)) as database:
        enrolled(database, "a", "b", "c")
        for order in (Order(change("x"), query="all"), Order(change("x"), names=["a", "b", "c"])):
            with pytest.raises(RefusedError, match=r"more than 2 devices"):
                relabel(database, order, "ann", NOW)
        assert relabel(database, Order(change("x"), query="id in (a, b)"), "ann", NOW).changed == 2


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        for name, tag in (("a-1", "pilot"), ("a-2", "pilot"), ("b-1", "lobby")):
            running.enrolled(name, tags=[tag])
        yield running


def test_the_route_previews_and_changes(controller: RunningController) -> None:
    body = {"query": "tag = pilot", "add": ["canary"]}
    with controller.client(Role.OPERATOR) as operator:
        foreseen = operator.post("/v1/devices/tags", json={**body, "dry_run": True}).json()
        assert foreseen == {
            "selected": 2,
            "changed": 2,
            "devices": ["a-1", "a-2"],
            "enrolments_void": 0,
            "dry_run": True,
        }
        assert operator.post("/v1/devices/tags", json={**body, "expected": 1}).status_code == 409
        changed = operator.post("/v1/devices/tags", json={**body, "expected": 2}).json()
        assert changed == {**foreseen, "dry_run": False}
        assert operator.get("/v1/devices/a-1").json()["tags"] == ["canary", "pilot"]


@pytest.mark.parametrize(
    "body",
    [
        {"add": ["x"]},
        {"query": "all", "devices": ["a-1"], "add": ["x"]},
        {"query": "all"},
        {"query": "tag =", "add": ["x"]},
        {"query": "all", "add": ["x"], "remove": ["x"]},
        {"query": "all", "add": [""]},
        {"query": "all", "add": ["x"], "colour": "red"},
        {"devices": ["a-1"], "add": [f"t{number}" for number in range(65)]},
    ],
)
def test_what_cannot_be_meant_is_refused(controller: RunningController, body: dict) -> None:
    with controller.client(Role.OPERATOR) as operator:
        for dry_run in (True, False):
            assert operator.post("/v1/devices/tags", json={**body, "dry_run": dry_run}).status_code == 400


def test_only_operators_of_the_whole_fleet_may(controller: RunningController) -> None:
    body = {"query": "all", "add": ["x"], "dry_run": True}
    for role, tags in ((Role.OPERATOR, ["pilot"]), (Role.VIEWER, []), (Role.PUBLISHER, [])):
        with controller.client(role, tags=tags) as caller:
            assert caller.post("/v1/devices/tags", json=body).status_code == 403
