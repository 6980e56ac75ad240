"""API tokens, the audit log and who leads, on SQLite and PostgreSQL alike."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.controller.access import Role, TokenCaller
from fleet.controller.audit import Break, Deed, Head
from fleet.controller.database import audit, devices, leader, tokens
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.errors import AbsentError, AwayError, ConflictError, FencedError, RefusedError
from fleet.controller.database.place import read_place
from fleet.controller.database.settings import DatabaseSettings
from tests.simulators.constants import settings_with
from tests.simulators.databases import KINDS, NOW, database, enrolled, made, url

__all__ = ["database"]
SETTINGS = settings_with(DatabaseSettings(), page_limit_rows=3)
HOUR = timedelta(hours=1)


# ---- API tokens -----------------------------------------------------------------------------------------------------
def token(database: Database, settings: DatabaseSettings = SETTINGS) -> tuple[int, str]:
    credential = new_credential("eft_")
    with database.write() as connection:
        made = {
            "name": "ci",
            "role": Role.PUBLISHER,
            "expires": NOW + HOUR,
            "now": NOW,
            "by": "anna",
            "tags": ["b", "a"],
        }
        return tokens.create(connection, credential, settings, **made), credential.text


def test_a_token_is_known_by_its_secret_until_it_expires(database: Database) -> None:
    number, text = token(database)
    with database.read() as connection:
        found = tokens.identify(connection, text, NOW)
        assert found is not None
        assert (found.id, found.prefix, found.revoked) == (number, text[:10], None)
        assert found.caller == TokenCaller("ci", Role.PUBLISHER, frozenset({"a", "b"}))
        assert tokens.identify(connection, text, NOW + HOUR) is None
        for other in (text + "x", text[:-1], "", "eft_", "\0\ud800", "' OR 1=1 --"):
            assert tokens.identify(connection, other, NOW) is None
        kept = str([tuple(row) for row in connection.exec_driver_sql("SELECT * FROM api_tokens")])
    assert text[10:] not in kept


def test_a_revoked_token_is_unknown(database: Database) -> None:
    number, text = token(database)
    with database.write() as connection:
        tokens.revoke(connection, number, NOW)
        tokens.revoke(connection, number, NOW + HOUR)
        assert tokens.identify(connection, text, NOW) is None
        (shown,) = tokens.page(connection, SETTINGS)
        assert shown.revoked == NOW
        with pytest.raises(AbsentError):
            tokens.revoke(connection, number + 1, NOW)


def test_tokens_are_bounded_paged_and_forgotten(database: Database) -> None:
    few = settings_with(DatabaseSettings(), tokens_limit=2)
    first, _ = token(database, few)
    second, _ = token(database, few)
    with pytest.raises(RefusedError, match="2 tokens are valid"):
        token(database, few)
    with database.write() as connection:
        assert [entry.id for entry in tokens.page(connection, SETTINGS, after=first)] == [second]
        assert tokens.forget(connection, NOW + HOUR) == 0
        assert tokens.forget(connection, NOW + 2 * HOUR) == 2


def test_a_role_nobody_knows_is_refused_by_the_database_itself(database: Database) -> None:
    token(database)
    with pytest.raises(ConflictError), database.write() as connection:
        connection.execute(sa.text("UPDATE api_tokens SET role = 'root'"))


# ---- the audit log --------------------------------------------------------------------------------------------------
def wrote(database: Database, count: int) -> Head:
    for number in range(count):
        with database.write() as connection:
            deed = Deed("anna", "devices.revoke", f"camera-{number}", {10: "ä\0", 9: {"b", "a"}, 1: [1.5, None]})
            audit.append(connection, deed, NOW + number * HOUR)
    with database.read() as connection:
        return audit.head(connection)


def test_the_log_grows_holds_and_is_read_from_its_end(database: Database) -> None:
    with database.read() as connection:
        assert audit.verify(connection, SETTINGS) == Head() == audit.head(connection)
    head = wrote(database, 7)
    assert head.sequence == 7
    with database.read() as connection:
        assert audit.verify(connection, SETTINGS) == head
        assert [entry.sequence for entry in audit.page(connection, SETTINGS, before=6)] == [5, 4, 3]
        (entry,) = audit.page(connection, SETTINGS, subject="camera-2", actor="anna", action="devices.revoke")
    assert (entry.sequence, entry.at) == (3, NOW + 2 * HOUR)
    assert entry.deed.details == {"10": "ä\0", "9": ["a", "b"], "1": [1.5, None]}


def test_what_is_undone_leaves_no_entry_and_no_gap(database: Database) -> None:
    wrote(database, 1)

    def fail() -> None:
        with database.write() as connection:
            audit.append(connection, Deed("anna", "devices.revoke", "nobody"), NOW)
            devices.change_state(connection, "nobody", "revoke", "", NOW)

    with pytest.raises(AbsentError):
        fail()
    assert wrote(database, 1).sequence == 2


@pytest.mark.parametrize("change", ["UPDATE audit SET actor = 'eve'", "DELETE FROM audit WHERE sequence = 1"])
def test_the_database_itself_keeps_the_log_as_it_is(database: Database, change: str) -> None:
    wrote(database, 2)
    with pytest.raises(ConflictError, match="append-only"), database.write() as connection:
        connection.execute(sa.text(change))


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ("UPDATE audit SET actor = 'eve' WHERE sequence = 5", 5),
        ("UPDATE audit SET details = '{}' WHERE sequence = 4", 4),
        ("UPDATE audit SET at = at + 1 WHERE sequence = 1", 1),
        ("DELETE FROM audit WHERE sequence = 3", 3),
        ("DELETE FROM audit WHERE sequence <= 2", 1),
    ],
)
def test_who_gets_past_the_database_is_found_by_the_chain(database: Database, change: str, first: int) -> None:
    wrote(database, 7)
    with database.write() as connection:
        if connection.dialect.name == "sqlite":
            for trigger in ("audit_unchanged", "audit_kept"):
                connection.execute(sa.text(f"DROP TRIGGER {trigger}"))
        else:
            connection.execute(sa.text("ALTER TABLE audit DISABLE TRIGGER USER"))
        connection.execute(sa.text(change))
        found = audit.verify(connection, SETTINGS)
    assert isinstance(found, Break)
    assert found.sequence == first


# ---- who leads ------------------------------------------------------------------------------------------------------
def test_one_leads_until_it_resigns(database: Database) -> None:
    one, two = (leader.candidate(database, name) for name in ("one", "two"))
    assert one.stand(NOW) == 1
    assert two.stand(NOW) is None
    assert one.stand(NOW) == 1
    with database.read() as connection:
        assert leader.holder(connection) == "one"
    one.resign()
    one.resign()
    assert two.stand(NOW) == 2
    assert one.stand(NOW) is None
    two.resign()


@pytest.mark.parametrize("is_stored", [False, True], ids=["lost", "stored"])
def test_who_does_not_hear_of_its_commit_does_not_lead(database: Database, is_stored: bool) -> None:
    one, two = (leader.candidate(database, name) for name in ("one", "two"))

    def fail(connection: sa.Connection) -> None:
        if is_stored:
            connection.connection.commit()
        raise sa.exc.OperationalError("COMMIT", {}, OSError("the connection was lost"))

    sa.event.listen(database.writes, "commit", fail)
    with pytest.raises(AwayError):
        one.stand(NOW)
    sa.event.remove(database.writes, "commit", fail)
    later = NOW + 2 * timedelta(seconds=DatabaseSettings().lease_s)
    assert two.stand(later) == 1 + is_stored
    assert one.stand(later) is None
    two.resign()
    assert one.stand(later) == 2 + is_stored
    one.resign()


def test_offices_do_not_know_each_other(database: Database) -> None:
    one, two = leader.candidate(database, "one"), leader.candidate(database, "two", "alerts")
    assert (one.stand(NOW), two.stand(NOW)) == (1, 1)
    one.resign()
    two.resign()


def test_what_a_former_leader_writes_is_refused(database: Database) -> None:
    enrolled(database, "camera-1")
    one, two = leader.candidate(database, "one"), leader.candidate(database, "two")
    old = one.stand(NOW)
    assert old is not None
    with database.write() as connection:
        leader.guard(connection, old)
        devices.label(connection, "camera-1", ["first"], "")
    one.resign()
    new = two.stand(NOW)
    assert new is not None

    def late() -> None:
        with database.write() as connection:
            leader.guard(connection, old)
            devices.label(connection, "camera-1", ["late"], "")

    with pytest.raises(FencedError, match="has passed from fence 1 to 2"):
        late()
    with database.write() as connection:
        leader.guard(connection, new)
        assert devices.get(connection, "camera-1").tags == {"first"}
    two.resign()


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_follows_a_leader_while_it_writes(kind: str, tmp_path: Path) -> None:
    settings = settings_with(DatabaseSettings(), busy_timeout_ms=50)
    with url(kind, tmp_path) as text:
        place = read_place(text, tmp_path)
        with closing(open_database(place, settings)) as here, closing(open_database(place, settings)) as there:
            one, two = leader.candidate(here, "one"), leader.candidate(there, "two")
            assert one.stand(NOW) == 1
            if kind == "sqlite":
                one.resign()
            with here.write() as connection:
                leader.guard(connection, 1)
                one.resign()
                with pytest.raises(AwayError, match="lock"):
                    two.stand(NOW)
            assert two.stand(NOW) == 2
            two.resign()


def test_nobody_writes_as_a_leader_before_there_is_one(database: Database) -> None:
    with pytest.raises(FencedError), database.write() as connection:
        leader.guard(connection, 0)
    with database.read() as connection:
        assert leader.holder(connection) == ""


def test_a_lease_ends_by_time_and_by_a_clock_that_jumps(tmp_path: Path) -> None:
    lease = timedelta(seconds=DatabaseSettings().lease_s)
    with made("sqlite", tmp_path) as opened:
        one, two = leader.candidate(opened, "one"), leader.candidate(opened, "two")
        assert one.stand(NOW) == 1
        assert two.stand(NOW + lease) is None
        assert one.stand(NOW + lease) == 1
        assert two.stand(NOW + lease * 2) is None
        assert two.stand(NOW + lease * 2 + timedelta(microseconds=1)) == 2
        assert one.stand(NOW + lease * 3) is None
        assert one.stand(NOW - HOUR) == 3
        again = leader.candidate(opened, "one")
        assert again.stand(NOW - HOUR) is None
