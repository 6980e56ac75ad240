"""The archive of rollouts: what lists leave out can still be shown, replayed and restored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.control import archiving
from fleet.controller.control.maintenance import archive_ended
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import audit, leader, rollouts
from fleet.controller.database.engine import Database
from fleet.controller.database.leader import FencedError
from fleet.controller.database.rollouts import NewFact, StoredRollout
from fleet.controller.rollouts.facts_form import read_fact
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import read_spec
from tests.simulators.controller import RunningController, controlling
from tests.simulators.databases import NOW, database
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import SLOT, document

__all__ = ("database",)
DAY = timedelta(days=1)


def add(database: Database, name: str, state: str, *ages: int) -> None:
    """Store a rollout with a fact so many days ago each."""
    stored = StoredRollout(name, "n", "meter", "t", "draft", {"query": "all"}, NOW, "ann")
    with database.write() as connection:
        rollouts.create(connection, stored)
        facts = [NewFact(NOW - age * DAY, "x") for age in ages]
        rollouts.record(connection, name, facts, database.settings, state=state)


def listed(database: Database, *, archived: bool = False) -> list[str]:
    with database.read() as connection:
        return [one.id for one in rollouts.page(connection, database.settings, archived=archived)]


def test_what_ended_before_a_time_is_archived_once(database: Database) -> None:
    for name, state in (("r-1", "finished"), ("r-2", "aborted"), ("r-3", "running"), ("r-4", "returning")):
        add(database, name, state, 40, 20)
    add(database, "r-5", "finished", 40, 5)
    add(database, "r-6", "draft", 40)
    done = archiving.archive_before(database, NOW - 10 * DAY, "ann", NOW)
    assert (done.rollouts, done.more) == (("r-1", "r-2"), False)
    assert listed(database) == ["r-3", "r-4", "r-5", "r-6"]
    assert listed(database, archived=True) == ["r-1", "r-2", "r-3", "r-4", "r-5", "r-6"]
    assert archiving.archive_before(database, NOW - 10 * DAY, "ann", NOW).rollouts == ()
    with database.read() as connection:
        (entry,) = audit.page(connection, database.settings)
        assert len(rollouts.facts_of(connection, "r-1", 10)) == 2
    assert (entry.deed.actor, entry.deed.action) == ("ann", "rollouts.archive")
    assert entry.deed.details["rollouts"] == ["r-1", "r-2"]


def test_a_request_archives_a_bounded_number_of_the_wanted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (archiving, rollouts):
        monkeypatch.setattr(module, "ARCHIVE_LIMIT", 2)
    for number in range(7):
        add(database, f"r-{number}", "finished", 40)
    found = []
    more = True
    while more:
        done = archiving.archive_before(database, NOW, "ann", NOW, wanted=lambda one: one.id not in {"r-0", "r-1"})
        assert len(done.rollouts) <= 2
        found += done.rollouts
        more = done.more
    assert found == ["r-2", "r-3", "r-4", "r-5", "r-6"]


def test_a_leader_that_lost_its_office_archives_nothing(database: Database) -> None:
    add(database, "r-1", "finished", 40)
    fence = leader.candidate(database, "me").stand(NOW)
    assert fence
    with pytest.raises(FencedError):
        archiving.archive_before(database, NOW, "me", NOW, fence=fence + 1)
    assert listed(database) == ["r-1"]


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    config = replace(FleetConfig(), scheduler=SchedulerSettings(tick_s=0.1))
    with controlling(tmp_path_factory.mktemp("controller"), config) as running:
        running.repository.add_release(SLOT, "2")
        running.enrolled("d-1", tags=["berlin"])
        with running.client(Role.VIEWER) as viewer:
            until(lambda: viewer.get("/v1/releases").json()["items"], "the release was not read")
        yield running


def aborted(client: httpx.Client, **changes: Any) -> str:
    """Return the id of a rollout that was started and then aborted."""
    made = client.post("/v1/rollouts", json=document(**changes)).json()
    path = f"/v1/rollouts/{made['id']}"
    for word, body in (("approve", {"spec": made["spec_digest"]}), ("start", None), ("abort", None)):
        assert client.post(f"{path}/{word}", json=body).status_code == 200
    until(lambda: client.post(f"{path}/archive").status_code == 200, "the abort was not carried out")
    return str(made["id"])


def shown(client: httpx.Client, **query: Any) -> list[str]:
    return [one["id"] for one in client.get("/v1/rollouts", params=query).json()["items"]]


def test_an_archived_rollout_is_hidden_replayed_and_restored(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR) as client:
        made = aborted(client)
        path = f"/v1/rollouts/{made}"
        assert made not in shown(client)
        assert made in shown(client, archived=True)
        assert made in shown(client, archived=True, state="aborted")
        assert client.get(path).json()["archived"].endswith("Z")
        facts = [read_fact(fact) for fact in client.get(f"{path}/facts").json()["items"]]
        assert replay(read_spec(client.get(path).json()["spec"]), facts).difference is None
        refused = client.post(f"{path}/rollback")
        assert (refused.status_code, f"edge-fleet rollouts restore {made}" in refused.text) == (409, True)
        assert client.post(f"{path}/restore").json()["archived"] is None
        assert made in shown(client)
        assert client.post(f"{path}/rollback").status_code == 200
    with controller.client() as admin:
        said = admin.get("/v1/audit", params={"subject": made}).json()["items"]
    assert {"rollouts.archive", "rollouts.restore"} <= {entry["action"] for entry in said}


def test_what_is_not_over_cannot_be_archived(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR) as client:
        made = client.post("/v1/rollouts", json=document()).json()["id"]
        refused = client.post(f"/v1/rollouts/{made}/archive")
        assert (refused.status_code, "is draft; only a finished or aborted one" in refused.text) == (409, True)
        assert client.post("/v1/rollouts/none/archive").status_code == 404


def test_a_scope_archives_its_own_rollouts_only(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR) as client, controller.client(Role.OPERATOR, tags=["berlin"]) as scoped:
        theirs, others = aborted(client, query="tag = berlin"), aborted(client)
        for made in (theirs, others):
            assert client.post(f"/v1/rollouts/{made}/restore").status_code == 200
        assert scoped.post(f"/v1/rollouts/{others}/archive").status_code == 403
        later = (controller.clock() + DAY).isoformat()
        assert scoped.post("/v1/rollouts/archive", json={"before": later}).json()["rollouts"] == [theirs]
        assert others in shown(client)


@pytest.mark.parametrize("before", ["yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00+10:00"])
def test_a_time_that_is_none_is_refused(controller: RunningController, before: str) -> None:
    with controller.client(Role.OPERATOR) as client:
        assert client.post("/v1/rollouts/archive", json={"before": before}).status_code == 400


def test_old_rollouts_are_archived_by_themselves_only_where_a_setting_says_so(controller: RunningController) -> None:
    control = controller.control
    with controller.client(Role.OPERATOR) as client:
        made = aborted(client)
        client.post(f"/v1/rollouts/{made}/restore")
        with control.database.read() as connection:
            fence = connection.exec_driver_sql("SELECT max(fence) FROM leadership").scalar_one()
        later = controller.clock() + 91 * DAY
        assert archive_ended(control, fence, later)
        assert made in shown(client)
        maintenance = replace(control.settings.maintenance, archive_rollouts_d=90.0)
        changed = replace(control, settings=replace(control.settings, maintenance=maintenance))
        assert archive_ended(changed, fence, later - 2 * DAY)
        assert made in shown(client)
        assert archive_ended(changed, fence, later)
        assert made not in shown(client)
