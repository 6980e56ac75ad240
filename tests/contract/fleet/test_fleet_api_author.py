"""`[access] approve_own = false`: what one person drafted, another one approves, and its waves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from fleet.controller.access import AccessSettings, Role
from fleet.controller.config import FleetConfig, parse_config
from fleet.controller.control import rollouts as words
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import SLOT, document

SAID = parse_config("[access]\napprove_own = false\n", "fleet.toml").access


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller"), replace(FleetConfig(), access=SAID)) as running:
        running.repository.add_release(SLOT, "2")
        with running.client(Role.VIEWER) as viewer:
            until(lambda: viewer.get("/v1/releases").json()["items"], "the release is not read")
        yield running


def approved(client: httpx.Client, made: dict[str, str]) -> httpx.Response:
    return client.post(f"/v1/rollouts/{made['id']}/approve", json={"spec": made["spec_digest"]})


def test_unless_it_is_said_everybody_may() -> None:
    assert FleetConfig().access == AccessSettings(approve_own=True)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.ADMIN])
def test_somebody_else_approves(controller: RunningController, role: Role) -> None:
    ann, ben = (controller.token(role, name=f"{name}, {role}") for name in ("ann", "ben"))
    with controller.client(token=ann) as author, controller.client(token=ben) as other:
        made = author.post("/v1/rollouts", json=document()).json()
        refused = approved(author, made)
        assert (refused.status_code, "another person has to approve it" in refused.json()["detail"]) == (403, True)
        assert author.get(f"/v1/rollouts/{made['id']}").json()["state"] == "draft"
        assert approved(other, made).json()["state"] == "approved"
        assert author.post(f"/v1/rollouts/{made['id']}/start").json()["state"] == "running"


def test_nobody_puts_his_own_words_into_anothers_draft(controller: RunningController) -> None:
    """And then approves them."""
    cara, dan = (controller.token(Role.OPERATOR, name=name) for name in ("cara", "dan"))
    with controller.client(token=cara) as author, controller.client(token=dan) as other:
        made = author.post("/v1/rollouts", json=document()).json()
        refused = other.put(f"/v1/rollouts/{made['id']}", json=document(query="tag = berlin"))
        assert (refused.status_code, "make a draft of your own" in refused.json()["detail"]) == (403, True)
        revised = author.put(f"/v1/rollouts/{made['id']}", json=document(query="tag = bonn")).json()
        assert approved(other, made).status_code == 409  # it is not what was seen
        assert approved(other, revised).json()["state"] == "approved"


def test_nor_does_he_who_revised_it_when_everybody_might(controller: RunningController) -> None:
    """The revision was made before the setting was changed."""
    eve, fay, gus = (controller.token(Role.OPERATOR, name=name) for name in ("eve", "fay", "gus"))
    with controller.client(token=eve) as author, controller.client(token=fay) as other:
        made = author.post("/v1/rollouts", json=document(query="tag = bonn")).json()
        with controller.control.database.read() as connection:
            spec = words.drafted(connection, document(query="tag = berlin"))
        now, rolling = controller.clock(), controller.control.rollouts
        words.revise(rolling, made["id"], spec, "fay", now, permit=lambda known: None)
        revised = other.get(f"/v1/rollouts/{made['id']}").json()
        assert (made["revised_by"], revised["created_by"], revised["revised_by"]) == ("", "eve", "fay")
        for one, why in ((author, "'eve' drafted"), (other, "'fay' revised")):
            refused = approved(one, revised)
            assert (refused.status_code, why in refused.json()["detail"]) == (403, True)
    with controller.client(token=gus) as third:
        assert approved(third, revised).json()["state"] == "approved"


def test_nor_are_waves_approved_by_whom_the_rollout_is(controller: RunningController) -> None:
    hal, ivy = (controller.token(Role.OPERATOR, name=name) for name in ("hal", "ivy"))
    with controller.client(token=hal) as author, controller.client(token=ivy) as other:
        waves = [{"count": 2}, {"percent": 100, "needs_approval": True}]
        made = author.post("/v1/rollouts", json=document(waves=waves)).json()
        assert approved(other, made).status_code == 200
        assert author.post(f"/v1/rollouts/{made['id']}/start").status_code == 200
        refused = author.post(f"/v1/rollouts/{made['id']}/waves/2/approve")
        assert (refused.status_code, "another person has to approve" in refused.json()["detail"]) == (403, True)
        assert other.post(f"/v1/rollouts/{made['id']}/waves/2/approve").status_code == 200
        assert author.post(f"/v1/rollouts/{made['id']}/abort").status_code == 200
