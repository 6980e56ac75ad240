"""API tokens on both databases, where many admins work at the same time: one name is one token, and one admin stays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from fleet.controller.access import Role
from fleet.controller.control.tokens import WantedToken, holding, make_token, revoke_token
from fleet.controller.database import audit
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from tests.simulators.databases import NOW
from tests.simulators.databases import alike_database as database

__all__ = ["database"]
pytestmark = pytest.mark.timeout(120)
ADMINS = 6


def at_once(calls: list[Callable[[], object]]) -> int:
    """Make all calls at the same time; return how many were refused as conflicts."""

    def attempt(call: Callable[[], object]) -> bool:
        try:
            call()
        except ConflictError:
            return True
        return False

    with ThreadPoolExecutor(len(calls)) as threads:
        return sum(threads.map(attempt, calls))


def test_admins_who_revoke_each_other_leave_one(database: Database) -> None:
    made = [make_token(database, WantedToken(f"a{n}", Role.ADMIN), "test", NOW)[1] for n in range(ADMINS)]
    assert at_once([lambda token=token: revoke_token(database, token.id, "test", NOW) for token in made]) == 1
    with database.read() as connection:
        assert len(holding(connection, database.settings, NOW)) == 1
        assert len(audit.page(connection, database.settings, action="tokens.revoke")) == ADMINS - 1


def test_of_many_who_take_a_name_one_has_it(database: Database) -> None:
    wanted = WantedToken("ann", Role.VIEWER)
    assert at_once([lambda: make_token(database, wanted, "test", NOW)] * ADMINS) == ADMINS - 1
    make_token(database, wanted, "test", NOW + timedelta(days=91))  # the first has expired


def test_an_admin_of_some_devices_does_not_count(database: Database) -> None:
    make_token(database, WantedToken("scoped", Role.ADMIN, frozenset({"pilot"})), "test", NOW)
    last = make_token(database, WantedToken("ann", Role.ADMIN), "test", NOW)[1]
    with pytest.raises(ConflictError, match="last token of an admin"):
        revoke_token(database, last.id, "test", NOW)
    assert revoke_token(database, last.id, "test", NOW, last=True).revoked == NOW
    assert revoke_token(database, last.id, "test", NOW + timedelta(hours=1)).revoked == NOW
    with pytest.raises(AbsentError):
        revoke_token(database, 99, "test", NOW)


@pytest.mark.parametrize("name", ["", " ", "device:x", "a/b", "ü", "x" * 81, "a\n"])
def test_what_is_no_name(database: Database, name: str) -> None:
    with pytest.raises(RefusedError, match="is no token's name"):
        make_token(database, WantedToken(name, Role.VIEWER), "test", NOW)


@pytest.mark.parametrize("days", [0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_what_is_no_time(database: Database, days: float) -> None:
    with pytest.raises(RefusedError, match="a token is valid for"):
        make_token(database, WantedToken("x", Role.VIEWER, validity_d=days), "test", NOW)
