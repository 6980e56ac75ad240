"""`/v1/rollouts` and `/v1/releases`: from a draft to what devices are to run, and who may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import desired
from fleet.controller.rollouts.facts_form import read_fact
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import read_spec
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import SLOT, V1, V2, document


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[RunningController]:
    config = replace(FleetConfig(), scheduler=SchedulerSettings(tick_s=0.1))
    with controlling(tmp_path_factory.mktemp("controller"), config) as running:
        for version in ("1", "2"):
            running.repository.add_release(SLOT, version)
        for number in range(6):
            running.enrolled(f"d-{number}", tags=["berlin" if number < 2 else "elsewhere"])
        with running.client(Role.VIEWER) as viewer:
            until(lambda: len(viewer.get("/v1/releases").json()["items"]) == 2, "the releases were not read")
        yield running


def drafted(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/rollouts", json=document(**changes))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def say(client: httpx.Client, made: dict[str, Any], word: str, **body: Any) -> httpx.Response:
    return client.post(f"/v1/rollouts/{made['id']}/{word}", json=body or None)


def started(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    made = drafted(client, **changes)
    assert say(client, made, "approve", spec=made["spec_digest"]).json()["state"] == "approved"
    assert say(client, made, "start").json()["state"] == "running"
    return made


def ended(client: httpx.Client, made: dict[str, Any]) -> None:
    """End the rollout: no device is this rollout's any more."""
    say(client, made, "abort", reason="the test is over")
    say(client, made, "rollback")
    until(
        lambda: not any(device["state"] == "offered" for device in of(client, made, "devices")),
        "devices are still offered it",
    )


def of(client: httpx.Client, made: dict[str, Any], what: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        asked = {**query, "limit": 3} | ({"after": after} if after else {})
        page = client.get(f"/v1/rollouts/{made['id']}/{what}", params=asked).json()
        found += page["items"]
        after = page["next"]
        if after is None:
            return found


def test_a_draft_that_is_approved_and_started_reaches_devices(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR) as client:
        made = started(client, waves=[{"count": 2}, {"percent": 100, "needs_approval": True}])
        until(lambda: client.get(f"/v1/rollouts/{made['id']}").json()["wave"] == 1, "no wave was opened")
        seen = client.get(f"/v1/rollouts/{made['id']}").json()
        assert (seen["waiting"], seen["waves"][0]["states"]) == (4, {"offered": 2})
        assert [wave["approved"] for wave in seen["waves"]] == [True, False]
        offered = [device["device"] for device in of(client, made, "devices", state="offered", wave=1)]
        assert len(offered) == 2
        with controller.control.database.read() as connection:
            found = desired.of_devices(connection, offered, SLOT)
        assert {wanted.target for wanted in found.values()} == {V2}
        assert say(client, made, "waves/2/approve").json()["waves"][1]["approved"]
        assert say(client, made, "pause", reason="lunch").json()["reason"] == "lunch"
        assert say(client, made, "resume").json()["state"] == "running"
        ended(client, made)
        facts = [read_fact(fact) for fact in of(client, made, "facts")]
        assert [fact.seq for fact in facts] == [*range(1, len(facts) + 1)]
        spec = read_spec(client.get(f"/v1/rollouts/{made['id']}").json()["spec"])
        assert replay(spec, facts).difference is None
        assert made["id"] in [one["id"] for one in client.get("/v1/rollouts?state=aborted").json()["items"]]
    with controller.client() as admin:
        said = admin.get("/v1/audit", params={"subject": made["id"]}).json()["items"]
    deeds = {entry["action"].removeprefix("rollouts.") for entry in said}
    assert deeds == {
        *("create", "approve", "start", "wave", "offer", "approve_wave"),
        *("pause", "resume", "abort", "rollback", "return"),
    }


def test_a_word_without_effect_is_a_conflict(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR) as client:
        made = drafted(client)
        for word, body in (("start", {}), ("pause", {}), ("resume", {}), ("abort", {}), ("rollback", {})):
            refused = say(client, made, word, **body)
            assert (refused.status_code, "is draft" in refused.text) == (409, True)
        assert say(client, made, "approve", spec="0" * 64).status_code == 409
        assert say(client, made, "waves/1/approve").status_code == 409
        put = client.put(f"/v1/rollouts/{made['id']}", json=document(query="tag = berlin"))
        assert put.json()["spec"]["query"] == "tag = berlin"
        assert say(client, made, "approve", spec=made["spec_digest"]).status_code == 409
        assert say(client, made, "approve", spec=put.json()["spec_digest"]).status_code == 200
        assert client.put(f"/v1/rollouts/{made['id']}", json=document()).status_code == 409
        assert client.get("/v1/rollouts/none").status_code == 404
        assert say(client, {"id": "none"}, "start").status_code == 404


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"target": "acme/meter-reader/9"}, 400, "no release"),
        ({"target": "nonsense"}, 400, "no release"),
        ({"target": {"path": V2, "size_bytes": 1}}, 400, "not as the specification says; name its path only"),
        ({"query": "tag ="}, 400, "query"),
        ({"waves": [{"percent": 10}]}, 400, "waves"),
        ({"waves": []}, 400, "waves"),
        ({"success": {"min_sample": 1}}, 400, "min_percent"),
        ({"surprise": 1}, 400, "surprise"),
        ({"silence_s": 1}, 400, "silence_s"),
    ],
)
def test_a_specification_that_does_not_fit_is_refused_by_its_key(controller, change, status, said) -> None:
    with controller.client(Role.OPERATOR) as client:
        for path in ("/v1/rollouts", "/v1/rollouts/preview"):
            refused = client.post(path, json=document(**change))
            assert (refused.status_code, said in refused.text) == (status, True), refused.text


def test_what_a_rollout_shows_can_be_drafted_again(controller: RunningController) -> None:
    more = {
        "canary": {"per_accelerator": 2},
        "windows": [{"start": "22:00", "end": "05:00", "zone": "site"}],
        "blackouts": [{"start": "2027-12-20T00:00:00Z", "end": "2028-01-03T00:00:00Z", "reason": "holidays"}],
        "retries": {"limit": 2},
        "rollback": "forced",
    }
    with controller.client(Role.OPERATOR) as client:
        for changes in ({}, more):
            made = drafted(client, **changes)
            again = client.post("/v1/rollouts", json=made["spec"]).json()
            assert (again["spec"], again["spec_digest"]) == (made["spec"], made["spec_digest"])


def test_a_preview_counts_before_anything_is_created(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR) as client:
        before = client.get("/v1/rollouts").json()
        changes = {
            "canary": {"per_accelerator": 1},
            "query": "tag = elsewhere",
            "waves": [{"percent": 60}, {"percent": 100}],
        }
        seen = client.post("/v1/rollouts/preview", json=document(**changes)).json()
        assert (seen["devices"], seen["accelerators"], seen["held"]) == (4, {"cpu": 4}, 0)
        assert (seen["running"], seen["running_others"]) == ({"": 4}, 0)
        assert [(wave["wave"], wave["devices"]) for wave in seen["waves"]] == [(0, 1), (1, 2), (2, 1)]
        assert client.get("/v1/rollouts").json() == before


def test_a_scope_is_put_into_the_query_and_holds(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR, tags=["berlin"]) as scoped, controller.client(Role.OPERATOR) as other:
        made, wide = drafted(scoped, query="all"), drafted(other, query="tag in (berlin, elsewhere)")
        assert made["spec"]["query"] == "tag = berlin and all"
        assert scoped.put(f"/v1/rollouts/{made['id']}", json=made["spec"]).json()["spec"] == made["spec"]
        assert scoped.post("/v1/rollouts/preview", json=document()).json()["devices"] == 2
        assert scoped.get(f"/v1/rollouts/{made['id']}").status_code == 200
        for rollout in (wide, {"id": "none"}):  # no answer tells whether it is there
            for refused in (
                scoped.get(f"/v1/rollouts/{rollout['id']}"),
                scoped.get(f"/v1/rollouts/{rollout['id']}/devices"),
                scoped.get(f"/v1/rollouts/{rollout['id']}/facts"),
                scoped.put(f"/v1/rollouts/{rollout['id']}", json=document()),
                say(scoped, rollout, "approve", spec=wide["spec_digest"]),
                say(scoped, rollout, "abort"),
            ):
                assert (refused.status_code, "no tag of what is asked for" in refused.text) == (403, True)
        seen = {one["id"] for one in scoped.get("/v1/rollouts").json()["items"]}
        assert (made["id"] in seen, wide["id"] in seen) == (True, False)
        assert say(scoped, made, "approve", spec=made["spec_digest"]).status_code == 200


def test_pages_of_a_scope_name_no_rollout_beyond_it(controller: RunningController) -> None:
    with controller.client(Role.OPERATOR, tags=["rome"]) as scoped, controller.client(Role.OPERATOR) as other:
        mine = []
        for _ in range(3):
            drafted(other)
            mine.append(drafted(scoped)["id"])
            drafted(other)
        seen, after = [], ""
        while after is not None:
            page = scoped.get("/v1/rollouts", params={"limit": 1, "after": after}).json()
            assert page["next"] in {None, *mine}
            seen += [one["id"] for one in page["items"]]
            after = page["next"]
        assert sorted(seen) == sorted(mine)
        assert scoped.get("/v1/rollouts", params={"limit": 1, "after": max(mine)}).json() == {"items": [], "next": None}


def test_roles(controller: RunningController) -> None:
    with controller.client(Role.PUBLISHER) as publisher, controller.client(Role.VIEWER) as viewer:
        made = drafted(publisher)
        assert say(publisher, made, "approve", spec=made["spec_digest"]).status_code == 403
        assert viewer.post("/v1/rollouts", json=document()).status_code == 403
        assert viewer.get(f"/v1/rollouts/{made['id']}").json()["created_by"] == "a publisher"


def test_releases_are_shown_with_what_their_owner_signed(controller: RunningController) -> None:
    with controller.client(Role.VIEWER) as viewer:
        listed = viewer.get("/v1/releases?model=meter-reader").json()["items"]
        assert [entry["target"] for entry in listed] == [V1, V2]
        shown = viewer.get("/v1/releases/acme/meter-reader/2").json()
        assert (shown["release"], shown["refused"]) == (listed[1], "")
        assert shown["document"]["version"] == "2"
        assert viewer.get("/v1/releases/acme/meter-reader/9").status_code == 404
        assert viewer.get("/v1/releases?limit=1").json()["next"] == V1
