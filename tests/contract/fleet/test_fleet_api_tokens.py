"""`/v1/tokens` and `/v1/audit` of a running controller: who may ask, and that it can be seen who did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.database import tokens
from fleet.controller.serving.settings import RateSettings
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RunningController]:
    with controlling(tmp_path) as running:
        yield running


def test_a_token_is_shown_once_and_does_what_its_role_may(controller) -> None:
    with controller.client() as admin:
        made = admin.post("/v1/tokens", json={"name": "ben", "role": "operator", "tags": ["pilot"], "validity_d": 30})
        assert made.status_code == 201
        listed = admin.get("/v1/tokens").json()["items"]
        assert made.json()["token"] not in str(listed)
        assert [(one["name"], one["role"], one["tags"]) for one in listed][1:] == [("ben", "operator", ["pilot"])]
        text = made.json()["token"]
    with controller.client(token=text) as ben:
        assert ben.get("/v1/devices").status_code == 200
        assert ben.get("/v1/tokens").status_code == 403
        controller.clock.ahead = timedelta(days=31)
        assert ben.get("/v1/devices").status_code == 401


def test_no_two_tokens_of_one_name_hold(controller) -> None:
    with controller.client() as admin:
        first = admin.post("/v1/tokens", json={"name": "ben", "role": "viewer"}).json()
        assert admin.post("/v1/tokens", json={"name": "ben", "role": "viewer"}).status_code == 409
        assert admin.delete(f"/v1/tokens/{first['id']}").json()["revoked"] is not None
        assert admin.post("/v1/tokens", json={"name": "ben", "role": "viewer"}).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        {"name": "device:camera-7", "role": "viewer"},
        {"name": "", "role": "viewer"},
        {"name": "x", "role": "root"},
        {"name": "x", "role": "viewer", "validity_d": 0},
        {"name": "x", "role": "viewer", "validity_d": 1e9},
        {"name": "x", "role": "viewer", "tags": [""]},
        {"name": "x", "role": "viewer", "scope": "all"},
    ],
)
def test_what_is_no_token_is_refused(controller, body) -> None:
    with controller.client() as admin:
        assert admin.post("/v1/tokens", json=body).status_code == 400


def test_the_last_admin_is_not_locked_out_unseen(controller) -> None:
    with controller.client() as admin:
        refused = admin.delete("/v1/tokens/1")
        assert refused.status_code == 409
        assert "the last token of an admin" in refused.json()["detail"]
        admin.post("/v1/tokens", json={"name": "scoped", "role": "admin", "tags": ["pilot"]})
        assert admin.delete("/v1/tokens/1").status_code == 409
        second = admin.post("/v1/tokens", json={"name": "second", "role": "admin"}).json()
        assert admin.delete("/v1/tokens/1").status_code == 200
        assert admin.get("/v1/tokens").status_code == 401
    with controller.client(token=second["token"]) as admin:
        assert admin.delete(f"/v1/tokens/{second['id']}?last=true").status_code == 200
        assert admin.get("/v1/tokens").status_code == 401


def test_wrong_tokens_do_not_limit_a_valid_one_of_the_same_address(tmp_path, monkeypatch) -> None:
    """The address pays for them: its bucket bounds how often the database is asked for them."""
    searched: list[str] = []
    rates = settings_with(RateSettings(), address_per_s=0.001, address_burst=100, refusal_cost=5)
    serve = replace(FleetConfig().serve, rates=rates)
    with controlling(tmp_path, replace(FleetConfig(), serve=serve)) as running, running.client() as admin:
        made = admin.post("/v1/tokens", json={"name": "ben", "role": "operator"}).json()
        search = tokens.identify

        def counted(connection, text, now):
            searched.append(text)
            return search(connection, text, now)

        monkeypatch.setattr(tokens, "identify", counted)
        with running.client(token="eft_wrong") as wrong, running.client(token=made["token"]) as ben:
            refused = [wrong.get("/v1/devices").status_code for _ in range(40)]
            assert {*refused[:10], *refused[-10:]} == {401, 429}
            assert len(searched) <= 100 / rates.refusal_cost
            assert {ben.get("/v1/devices").status_code for _ in range(50)} == {200}
            assert {ben.get("/v1/devices").status_code for _ in range(60)} == {200, 429}, "it has a bucket of its own"
            assert wrong.get("/v1/devices").status_code == 429
        running.control.revocations.refresh(running.clock())
        assert running.control.revocations.token_name(made["token"]) == "ben"
        running.clock.ahead = timedelta(days=400)
        running.control.revocations.refresh(running.clock())
        assert running.control.revocations.token_name(made["token"]) == ""


def test_a_token_that_is_not_there(controller) -> None:
    with controller.client() as admin:
        assert admin.delete("/v1/tokens/7").status_code == 404
        assert admin.delete(f"/v1/tokens/{2**70}").status_code == 400


def test_the_audit_log_tells_of_each_change_and_holds_no_secret(controller) -> None:
    with controller.client(token=controller.token(name="ann")) as admin:
        made = admin.post("/v1/tokens", json={"name": "ben", "role": "viewer"}).json()
        admin.delete(f"/v1/tokens/{made['id']}")
        admin.post("/v1/enrolments", json={"tags": ["pilot"]})
        log = admin.get("/v1/audit").json()["items"]
        assert [(entry["actor"], entry["action"]) for entry in log] == [
            ("ann", "enrolments.create"),
            ("ann", "tokens.revoke"),
            ("ann", "tokens.create"),
        ]
        assert made["token"] not in str(log)
        verified = admin.get("/v1/audit/verify").json()
        assert (verified["ok"], verified["sequence"], verified["digest"]) == (True, 3, log[0]["digest"])
        assert [entry["sequence"] for entry in admin.get("/v1/audit?before=2").json()["items"]] == [1]
