"""`[access] approve_own = false`: what one person drafted, another one approves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from fleet.access import AccessSettings, Role
from fleet.config import FleetConfig, parse_config
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
        assert (refused.status_code, "somebody else has to approve it" in refused.json()["detail"]) == (403, True)
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
