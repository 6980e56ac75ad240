"""Rollouts in memory: never more than the database holds, and not everything."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from fleet.controller.control import rollouts_record
from fleet.controller.control.rollouts_record import States, add, state_name
from fleet.controller.database.errors import ConflictError
from fleet.controller.rollouts.facts import Paused, Resumed
from fleet.controller.rollouts.state import Status
from tests.simulators.databases import KINDS
from tests.simulators.rolled_fleet import RolledFleet, fleet

__all__ = ["fleet"]


def test_only_what_is_new_is_read(fleet: RolledFleet) -> None:
    rollout, states, settings = fleet.start(), States(), fleet.database.settings
    with fleet.database.read() as connection:
        states.keep(before := states.read(connection, rollout, settings))
    fleet.say(rollout, Paused("ann"))
    with fleet.database.write() as connection:  # what was read already is not looked at again
        connection.execute(sa.text("UPDATE rollouts SET name = 'x' WHERE id = :id"), {"id": rollout})
        after = states.read(connection, rollout, settings)
    assert (before.state.status, after.state.status) == (Status.RUNNING, Status.PAUSED)
    assert after.state == fleet.known(rollout).state


@pytest.mark.parametrize("fleet", KINDS, indirect=True)
def test_a_database_that_was_put_back_is_believed(fleet: RolledFleet) -> None:
    """A replica of the server took over that lacks the last facts."""
    rollout, states, settings = fleet.start(), States(), fleet.database.settings
    fleet.say(rollout, Paused("ann"))
    with fleet.database.read() as connection:
        states.keep(states.read(connection, rollout, settings))
    with fleet.database.write() as connection:
        connection.execute(sa.text("UPDATE rollouts SET sequence = sequence - 1 WHERE id = :id"), {"id": rollout})
        trigger = " ON facts" if connection.dialect.name == "postgresql" else ""
        connection.execute(sa.text(f"DROP TRIGGER facts_unchanged{trigger}"))
        if not trigger:
            connection.execute(sa.text("DROP TRIGGER facts_kept"))
        connection.execute(sa.text("DELETE FROM facts WHERE kind = 'paused'"))
    with fleet.database.read() as connection:
        assert states.read(connection, rollout, settings).state.status is Status.RUNNING


@pytest.mark.parametrize("fleet", KINDS, indirect=True)
def test_what_was_read_before_others_wrote_is_not_added_to(fleet: RolledFleet) -> None:
    rollout, settings = fleet.start(), fleet.database.settings
    old = fleet.known(rollout)
    fleet.say(rollout, Paused("ann"))
    with pytest.raises(ConflictError), fleet.database.write() as connection:
        add(connection, old, [Resumed("bob")], fleet.now, settings)


def test_the_memory_is_bounded(fleet: RolledFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts_record, "STATES_LIMIT", 3)
    monkeypatch.setattr(rollouts_record, "MEMBERS_LIMIT", 5)
    fleet.enrol(f"d-{n}" for n in range(3))
    rollouts = [fleet.start(query=f"id = d-{n % 3}" if n < 5 else "all", slot=f"s{n}") for n in range(6)]
    states, settings = States(), fleet.database.settings
    fleet.turn()
    kept = []
    for rollout in rollouts:
        with fleet.database.read() as connection:
            states.keep(states.read(connection, rollout, settings))
        kept.append(len(states._kept))
    assert kept[:3] == [1, 2, 3]
    assert max(kept) == 3
    assert rollouts[-1] in states._kept


def test_a_draft_is_not_kept(fleet: RolledFleet) -> None:
    states, draft = States(), fleet.draft()
    with fleet.database.read() as connection:
        states.keep(states.read(connection, draft, fleet.database.settings))
    assert not states._kept


def test_what_waits_for_its_devices_is_called_aborted() -> None:
    assert [state_name(state) for state in ("returning", "aborted", "running")] == ["aborted", "aborted", "running"]
