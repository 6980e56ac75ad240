"""Releases, rollouts and their facts, desired state, assignments and the poll, on SQLite and PostgreSQL alike."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from fleet.controller.database import (
    assignments,
    certificates,
    desired,
    devices,
    diagnostics,
    polling,
    releases,
    rollouts,
)
from fleet.controller.database.assignments import StoredAssignment
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.desired import Desired, PreviousRelease
from fleet.controller.database.devices import EnrolmentState
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from fleet.controller.database.releases import StoredRelease
from fleet.controller.database.rollouts import NewFact, StoredRollout
from fleet.controller.database.settings import DatabaseSettings
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, database, enrolled

__all__ = ["database"]
SETTINGS = DatabaseSettings()
HOUR = timedelta(hours=1)
TARGET = "models/acme/meter-reader/2/release"
ROLLOUT = StoredRollout("r-1", "meter 2", "meter", TARGET, "draft", {"waves": [{"percent": 5}]}, NOW, "anna")


def release(version: str, floor: str = "1", model: str = "meter-reader") -> StoredRelease:
    path = f"models/acme/{model}/{version}/release"
    return StoredRelease(
        path, "acme", model, version, floor, version.rjust(64, "0"), 900, NOW, {"schema": 1, "é": "\0"}
    )


# ---- releases -------------------------------------------------------------------------------------------------------
def test_releases_are_added_withdrawn_and_published_again(database: Database) -> None:
    one, two = release("1"), release("2")

    def read(published: list[StoredRelease], hours: int) -> tuple[str, ...]:
        with database.write() as connection:
            return releases.synchronise(connection, published, NOW + hours * HOUR, SETTINGS)

    assert read([one, two], 0) == (one.target, two.target)
    assert read([two], 1) == ()
    assert read([two], 2) == ()
    with database.read() as connection:
        known = releases.find(connection, one.target)
        assert known is not None
        assert (known.release, known.first_read, known.withdrawn) == (one, NOW, NOW + HOUR)
        assert releases.find(connection, "models/acme/other/1/release") is None
    assert read([one, two], 3) == ()
    with database.read() as connection:
        shown = releases.page(connection, SETTINGS, model="meter-reader")
        assert [(entry.release.target, entry.withdrawn) for entry in shown] == [(one.target, None), (two.target, None)]
        assert releases.page(connection, SETTINGS, after=one.target)[0].release == two
        assert releases.page(connection, SETTINGS, model="other") == ()


def test_what_is_published_never_changes(database: Database) -> None:
    for digest in ("a", "b"):
        if digest == "b":
            with pytest.raises(ConflictError, match="another digest"), database.write() as connection:
                releases.synchronise(connection, [replace(release("1"), digest=digest)], NOW, SETTINGS)
        else:
            with database.write() as connection:
                releases.synchronise(connection, [replace(release("1"), digest=digest)], NOW, SETTINGS)


def test_the_floor_is_the_greatest_by_version_and_outlives_its_release(database: Database) -> None:
    with database.write() as connection:
        releases.synchronise(
            connection, [release("9", "9"), release("11", "10"), release("1", "3", "other")], NOW, SETTINGS
        )
        releases.synchronise(connection, [], NOW, SETTINGS)
        assert releases.floor(connection, "acme", "meter-reader") == "10"
        assert releases.floor(connection, "acme", "nothing") == ""


def test_more_releases_than_the_setting_are_refused(database: Database) -> None:
    few = settings_with(DatabaseSettings(), releases_limit=1)
    with pytest.raises(RefusedError, match="more than 1 releases"), database.write() as connection:
        releases.synchronise(connection, [release("1"), release("2")], NOW, few)


# ---- rollouts and facts ---------------------------------------------------------------------------------------------
def created(database: Database) -> None:
    with database.write() as connection:
        rollouts.create(connection, ROLLOUT)


def test_facts_are_numbered_without_gaps(database: Database) -> None:
    created(database)
    facts = [NewFact(NOW, "created"), NewFact(NOW + HOUR, "device joined", "camera-1", {"wave": 0})]
    with database.write() as connection:
        assert rollouts.record(connection, "r-1", facts, SETTINGS, state="approved") == 2
        assert rollouts.record(connection, "r-1", [], SETTINGS) == 2
        assert rollouts.record(connection, "r-1", facts[1:], SETTINGS, expected=2) == 3
    with database.read() as connection:
        kept = rollouts.facts_of(connection, "r-1", 10)
        assert [fact.sequence for fact in kept] == [1, 2, 3]
        assert [NewFact(*_of(fact)) for fact in kept] == [*facts, facts[1]]
        assert rollouts.facts_of(connection, "r-1", 10, after=1, device="camera-1") == kept[1:]
        assert rollouts.facts_of(connection, "r-1", 2) == kept[:2]
        assert rollouts.get(connection, "r-1") == replace(ROLLOUT, state="approved", sequence=3)


def _of(fact: rollouts.StoredFact) -> tuple[object, ...]:
    return fact.at, fact.kind, fact.device, fact.document


def test_what_was_decided_on_old_facts_is_not_recorded(database: Database) -> None:
    created(database)
    with database.write() as connection:
        rollouts.record(connection, "r-1", [NewFact(NOW, "created")], SETTINGS)
    with pytest.raises(ConflictError, match="has 1 facts, not 0"), database.write() as connection:
        rollouts.record(connection, "r-1", [NewFact(NOW, "decided")], SETTINGS, expected=0)


def test_a_batch_of_facts_is_bounded_and_needs_its_rollout(database: Database) -> None:
    created(database)
    with pytest.raises(RefusedError, match="more than 1 facts"), database.write() as connection:
        rollouts.record(
            connection, "r-1", [NewFact(NOW, "a")] * 2, settings_with(DatabaseSettings(), facts_limit_rows=1)
        )
    with pytest.raises(AbsentError), database.write() as connection:
        rollouts.record(connection, "r-2", [NewFact(NOW, "a")], SETTINGS)


def test_a_spec_is_fixed_once_it_is_approved(database: Database) -> None:
    created(database)
    other = {"name": "n", "slot": "s", "target": TARGET, "spec": {"waves": []}, "by": "ben"}
    with database.write() as connection:
        rollouts.revise(connection, "r-1", **other)
        revised = rollouts.get(connection, "r-1")
        assert (revised.spec, revised.created_by, revised.revised_by) == ({"waves": []}, "anna", "ben")
        rollouts.record(connection, "r-1", [NewFact(NOW, "approved")], SETTINGS, state="approved")
    with pytest.raises(ConflictError, match="is approved; its spec is fixed"), database.write() as connection:
        rollouts.revise(connection, "r-1", **other)
    with pytest.raises(AbsentError), database.write() as connection:
        rollouts.revise(connection, "r-2", **other)


def test_rollouts_are_listed_by_state(database: Database) -> None:
    with database.write() as connection:
        for number, state in enumerate(["draft", "running", "paused", "running"]):
            rollouts.create(connection, replace(ROLLOUT, id=f"r-{number}", state=state))
    with database.read() as connection:
        shown = rollouts.page(connection, SETTINGS, states=["running", "paused"], after="r-1")
        assert [entry.id for entry in shown] == ["r-2", "r-3"]
        assert len(rollouts.page(connection, SETTINGS, limit_rows=2)) == 2


def test_an_id_is_used_once(database: Database) -> None:
    created(database)
    with pytest.raises(ConflictError):
        created(database)


@pytest.mark.parametrize("change", ["UPDATE facts SET kind = 'x'", "DELETE FROM facts"])
def test_the_database_itself_keeps_facts_as_they_are(database: Database, change: str) -> None:
    created(database)
    with database.write() as connection:
        rollouts.record(connection, "r-1", [NewFact(NOW, "created")], SETTINGS)
    with pytest.raises(ConflictError, match="append-only"), database.write() as connection:
        connection.execute(sa.text(change))


# ---- desired state and assignments ----------------------------------------------------------------------------------
def wanted(device: str = "camera-1", slot: str = "meter", version: str = "2") -> Desired:
    return Desired(device, slot, TARGET.replace("/2/", f"/{version}/"), version * 64, 900, "r-1", NOW)


def signed(version: int, revision: int = 1) -> StoredAssignment:
    return StoredAssignment("camera-1", version, f"{version:064x}", b"{\x00\xff", NOW, NOW + 24 * HOUR, revision)


def test_what_is_desired_has_a_revision_that_grows(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    with database.write() as connection:
        assert desired.of_device(connection, "camera-1") == desired.DesiredState(0, ())
        desired.put(connection, [], SETTINGS)
        desired.put(connection, [wanted(), wanted(slot="activity"), wanted("camera-2")], SETTINGS)
        desired.put(connection, [wanted(version="3")], SETTINGS)
        state = desired.of_device(connection, "camera-1")
        assert (state.revision, state.slots) == (2, (wanted(slot="activity"), wanted(version="3")))
        assert desired.of_devices(connection, ["camera-2", "camera-1", "x"], "activity") == {
            "camera-1": wanted(slot="activity")
        }
        assert desired.remove(connection, ["camera-1"], "meter") == 1
        assert desired.remove(connection, ["camera-1"], "meter") == 0
        assert desired.of_device(connection, "camera-1").slots == (wanted(slot="activity"),)
        assert desired.of_device(connection, "camera-2").revision == 1


def test_an_offer_has_its_attempt_and_what_was_before_is_remembered(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    created(database)
    first, empty = (
        PreviousRelease("r-1", "camera-1", TARGET, "a" * 64, 900, "r-0", 2),
        PreviousRelease("r-1", "camera-2"),
    )
    with database.write() as connection:
        desired.put(connection, [replace(wanted(), attempt=7)], SETTINGS)
        desired.remember(connection, [first, empty], SETTINGS)
        desired.remember(connection, [replace(first, digest="b" * 64)], SETTINGS)
        desired.remember(connection, [], SETTINGS)
    with database.read() as connection:
        assert desired.of_device(connection, "camera-1").slots[0].attempt == 7
        found = desired.before(connection, "r-1", ["camera-1", "camera-2", "x"])
        assert found == {"camera-1": replace(first, digest="b" * 64), "camera-2": empty}
        assert desired.before(connection, "r-0", ["camera-1"]) == {}


def test_an_unknown_device_desires_nothing_and_spoils_the_others(database: Database) -> None:
    enrolled(database, "camera-1")
    with pytest.raises(ConflictError), database.write() as connection:
        desired.put(connection, [wanted(), wanted("nobody")], SETTINGS)
    with database.read() as connection:
        assert desired.of_device(connection, "camera-1").revision == 0


def test_versions_grow_and_are_given_once(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.write() as connection:
        assert assignments.current(connection, "camera-1") is None
        assert assignments.next_version(connection, "camera-1") == 1
        assignments.put(connection, signed(1))
        assignments.put(connection, signed(5))
        assert assignments.current(connection, "camera-1") == signed(5)
        assert assignments.next_version(connection, "camera-1") == 6
    for version in (5, 4, 0):
        with pytest.raises(ConflictError, match="given already"), database.write() as connection:
            assignments.put(connection, signed(version))


def test_an_assignment_is_of_a_device(database: Database) -> None:
    with pytest.raises(ConflictError), database.write() as connection:
        assignments.put(connection, signed(1))


@pytest.mark.parametrize(
    "change",
    ["UPDATE assignments SET version = 4", "UPDATE assignments SET digest = ''", "DELETE FROM assignments",
     "UPDATE assignments SET device = 'camera-2', version = 9"],
)  # fmt: skip
def test_the_database_itself_lets_no_version_fall(database: Database, change: str) -> None:
    enrolled(database, "camera-1", "camera-2")
    with database.write() as connection:
        assignments.put(connection, signed(5))
    with pytest.raises(ConflictError, match="only grow"), database.write() as connection:
        connection.execute(sa.text(change))


def test_after_a_leap_everything_is_signed_anew_beyond_it(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    with database.write() as connection:
        assignments.put(connection, signed(5))
        assert assignments.leap(connection, 100) == 105
        assert assignments.current(connection, "camera-1") is None
        assert assignments.next_version(connection, "camera-1") == 106
        assert assignments.next_version(connection, "camera-2") == 106
    with pytest.raises(ConflictError), database.write() as connection:
        assignments.put(connection, signed(105))
    with database.write() as connection:
        assignments.put(connection, signed(106))
        assert assignments.leap(connection, 100) == 206


# ---- the poll -------------------------------------------------------------------------------------------------------
def test_one_statement_knows_all_about_a_poll(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.write() as connection:
        certificates.add(connection, Certificate("0a", "camera-1", NOW, NOW + HOUR))

    def poll() -> polling.PollingDevice:
        with database.read() as connection:
            found = polling.polled(connection, "0a", NOW)
        assert found is not None
        return found

    empty = polling.PollingDevice(
        "camera-1", EnrolmentState.ENROLLED, NOW + HOUR, None, 0, "", None, None, 0, 0, "", False
    )
    assert poll() == empty
    with database.write() as connection:
        desired.put(connection, [wanted()], SETTINGS)
        assignments.put(connection, signed(3, revision=1))
        asked = {"now": NOW, "expires": NOW + HOUR, "by": "anna"}
        diagnostics.ask(connection, "camera-1", {"doctor": True}, SETTINGS, **asked)
    full = replace(
        empty, version=3, digest=f"{3:064x}", issued=NOW, expires=NOW + 24 * HOUR, signed_revision=1, revision=1
    )
    assert poll() == replace(full, asked=True)
    with database.write() as connection:
        devices.change_state(connection, "camera-1", "revoke", "", NOW)
        certificates.revoke_all(connection, "camera-1", "", NOW)
        assignments.leap(connection, 10)
    assert poll() == replace(empty, revision=1, asked=True, state=EnrolmentState.REVOKED, certificate_revoked=NOW)
