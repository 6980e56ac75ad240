"""Removal of models from devices, and of devices from the fleet, while rollouts go on.

It also tests what is left of them in the database. Over HTTP: `test_fleet_api_leaving`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fleet.controller.audit import Deed
from fleet.controller.control import device_removal, scheduler
from fleet.controller.control.device_removal import RemovalReason
from fleet.controller.control.wake_hints import Hints
from fleet.controller.database import assignments, audit, certificates, desired, devices, diagnostics, events, telemetry
from fleet.controller.database.assignments import StoredAssignment
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.desired import Desired, PreviousRelease
from fleet.controller.database.devices import DeviceSelection, EnrolmentState, Running
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.settings import TelemetryStorageSettings
from fleet.controller.database.tables import metadata
from fleet.controller.rollouts.facts import Aborted
from fleet.controller.rollouts.state import Status
from gateway.common.domain.assignment import RESERVED_SLOTS
from tests.simulators.constants import settings_with
from tests.simulators.databases import KINDS, waiting
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import SLOT, V1, V2, RolledFleet, fleet, rolling

__all__ = ["fleet"]
DAY = timedelta(days=1)


def motive(fleet: RolledFleet) -> RemovalReason:
    return RemovalReason("olga", "the wall is gone", fleet.now)


def withdraw(fleet: RolledFleet, device: str, slot: str = SLOT) -> None:
    device_removal.withdraw(
        fleet.rolling, device, slot, motive(fleet), permit=lambda opened: devices.get(opened, device)
    )


def remove(fleet: RolledFleet, device: str) -> None:
    device_removal.remove(fleet.rolling, device, motive(fleet), permit=lambda opened: devices.get(opened, device))


def revoke(fleet: RolledFleet, device: str) -> None:
    with fleet.database.write() as connection:
        devices.change_state(connection, device, "revoke", "", fleet.now)


def deed(fleet: RolledFleet, device: str) -> Deed:
    with fleet.database.read() as connection:
        return audit.page(connection, fleet.database.settings, subject=device)[0].deed


def test_a_slot_is_emptied_when_its_rollout_is_over_and_not_before(fleet: RolledFleet) -> None:
    names = fleet.enrol(["a", "b"])
    rollout = fleet.start(waves=[{"count": 1}, {"percent": 100}], soak_s=60)
    fleet.turn()
    for name in names:  # one has its offer, the other waits
        with pytest.raises(ConflictError, match=f"{name}' is in the rollout {rollout}, which is running; wait until"):
            withdraw(fleet, name)
    (offered,) = fleet.desired(names)
    fleet.report(rollout, [offered], "committed")
    fleet.turn(61)
    fleet.turn()
    fleet.report(rollout, set(names) - {offered}, "committed")
    fleet.turn()
    fleet.turn(61)
    assert fleet.status(rollout) is Status.FINISHED
    withdraw(fleet, "a")
    assert fleet.targets(names) == {"b": V2}
    told = deed(fleet, "a")
    assert (told.actor, told.action) == ("olga", "devices.withdraw")
    assert told.details.items() >= {"slot": SLOT, "target": V2, "because": "the wall is gone"}.items()
    with pytest.raises(AbsentError, match="nothing is assigned to 'a' in the slot 'meter-reader'"):
        withdraw(fleet, "a")


@pytest.mark.parametrize(("slot", "kind"), RESERVED_SLOTS.items())
def test_a_reserved_slot_is_never_emptied(fleet: RolledFleet, slot: str, kind: str) -> None:
    fleet.enrol(["a"])
    with fleet.database.write() as connection:
        desired.put(connection, [Desired("a", slot, V1, "a" * 64, 9, "", fleet.now)], fleet.database.settings)
    with pytest.raises(RefusedError, match=f"devices do not empty {slot}, which always holds {kind}; roll out"):
        withdraw(fleet, "a", slot)
    with fleet.database.read() as connection:
        assert desired.of_devices(connection, ["a"], slot).keys() == {"a"}


def test_the_device_is_told_that_asking_is_worth_while(fleet: RolledFleet) -> None:
    fleet.enrol(["a"])
    fleet.rolling = replace(fleet.rolling, hints=Hints(9))
    with pytest.raises(AbsentError):
        withdraw(fleet, "a")
    assert fleet.rolling.hints.take(9) == []
    with fleet.database.write() as connection:
        desired.put(connection, [Desired("a", SLOT, V1, "a" * 64, 9, "", fleet.now)], fleet.database.settings)
    withdraw(fleet, "a")
    assert fleet.rolling.hints.take(9) == ["a"]


def test_who_is_removed_while_a_turn_goes_on_does_not_join(fleet: RolledFleet, monkeypatch) -> None:
    fleet.enrol(["a", "b"])
    rollout = fleet.start(waves=[{"percent": 100}])
    read = scheduler.pages

    def slow(*words) -> Iterator[Sequence[devices.Device]]:
        for page in read(*words):
            revoke(fleet, "a")
            remove(fleet, "a")
            yield page

    monkeypatch.setattr(scheduler, "pages", slow)
    fleet.turn()
    assert fleet.members(rollout, "offered") == ["b"]
    assert fleet.targets(["a", "b"]).keys() == {"b"}


def test_an_offer_that_is_being_made_is_not_taken_away(tmp_path: Path) -> None:
    """The turn is held where it writes the audit log, all but done."""
    with rolling("postgresql", tmp_path) as fleet, ThreadPoolExecutor() as pool:
        fleet.enrol(["b"])
        rollout = fleet.start(waves=[{"percent": 100}])
        fleet.turn()
        fleet.enrol(["a"])  # joins, and is offered the release at once
        with fleet.database.write() as connection:
            desired.put(connection, [Desired("a", SLOT, V1, "a" * 64, 9, "", fleet.now)], fleet.database.settings)
        with fleet.database.write() as holding:
            audit.append(holding, Deed("the test", "holds", "the log"), fleet.now)
            turn = pool.submit(fleet.turn)
            until(lambda: waiting(fleet.database) == 1, "the turn does not wait")
            taken = pool.submit(withdraw, fleet, "a")
            until(lambda: waiting(fleet.database) == 2, "the withdrawal does not wait")
        turn.result()
        with pytest.raises(ConflictError, match=rollout):
            taken.result()
        assert fleet.targets(["a"]) == {"a": V2}


def given_by_hand(fleet: RolledFleet) -> None:
    """Enrol one device, that has something which no rollout gave it."""
    fleet.enrol(["a"])
    with fleet.database.write() as connection:
        desired.put(connection, [Desired("a", SLOT, V1, "a" * 64, 9, "", fleet.now)], fleet.database.settings)
    fleet.turn()


def test_an_offer_that_was_made_meanwhile_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollout was not there when those that have the device were looked for."""
    lock, begun = desired.lock, list[str]()
    with rolling("postgresql", tmp_path) as fleet:
        given_by_hand(fleet)

        def late(*said: Any) -> None:
            if not begun:
                begun.append(fleet.start(waves=[{"percent": 100}]))
                fleet.turn()
            lock(*said)

        monkeypatch.setattr(device_removal.desired, "lock", late)
        with pytest.raises(ConflictError, match="'a' is in the rollout"):
            withdraw(fleet, "a")
        assert fleet.targets(["a"]) == {"a": V2}


def test_an_offer_that_comes_meanwhile_is_made_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollout begins later still."""
    empty, turn = desired.remove, list[Future[None]]()
    with rolling("postgresql", tmp_path) as fleet, ThreadPoolExecutor() as pool:
        given_by_hand(fleet)

        def late(*said: Any) -> int:
            fleet.start(waves=[{"percent": 100}])
            turn.append(pool.submit(fleet.turn))
            until(lambda: turn[0].done() or waiting(fleet.database) == 1, "the turn neither ends nor waits")
            return empty(*said)

        monkeypatch.setattr(device_removal.desired, "remove", late)
        withdraw(fleet, "a")
        turn[0].result()
        assert fleet.targets(["a"]) == {"a": V2}


def test_what_was_withdrawn_does_not_come_back_by_an_aborted_rollout(fleet: RolledFleet) -> None:
    fleet.enrol(["a"], running=V1)
    rollout = fleet.start()
    fleet.turn()
    fleet.say(rollout, Aborted("ann", ""))
    with pytest.raises(ConflictError, match="is aborted"):  # it is still to be told
        withdraw(fleet, "a")
    fleet.turn()
    with pytest.raises(AbsentError):  # nothing was there before the offer
        withdraw(fleet, "a")
    assert fleet.targets(["a"]) == {}


def test_a_device_is_removed_once_no_rollout_counts_on_it(fleet: RolledFleet) -> None:
    fleet.enrol(["a", "b"])
    rollout = fleet.start(waves=[{"percent": 100}])
    fleet.turn()
    with pytest.raises(ConflictError, match=r"'a' is enrolled, .* revoke it first"):
        remove(fleet, "a")
    revoke(fleet, "a")
    with pytest.raises(ConflictError, match=f"rollout {rollout}, which is running; the scheduler removes"):
        remove(fleet, "a")
    fleet.turn()
    remove(fleet, "a")
    fleet.report(rollout, ["b"], "committed")
    fleet.turn()
    assert fleet.status(rollout) is Status.FINISHED
    assert {getattr(fact.event, "device", "") for fact in fleet.facts(rollout)} >= {"a", "b"}
    fleet.replayed(rollout)
    assert deed(fleet, "a").action == "devices.remove"


def told(fleet: RolledFleet, device: str, rows: int) -> None:
    """Store all that a database may hold of a device; of telemetry so many rows."""
    now, settings = fleet.now, fleet.database.settings
    rollout = fleet.draft()
    with fleet.database.write() as connection:
        devices.label(connection, device, ["pilot"], "berlin")
        devices.describe(connection, device, profile="p", accelerators=["npu"], inventory={"cores": 4})
        devices.report(connection, device, [Running(SLOT, V1, "a" * 64, "v", "cpu", "committed", now)], "in-step")
        devices.touch(connection, {device: now})
        desired.put(connection, [Desired(device, SLOT, V1, "a" * 64, 9, "", now)], settings)
        desired.remember(connection, [PreviousRelease(rollout, device)], settings)
        certificates.add(connection, Certificate(f"ab{device}", device, now, now + 30 * DAY, key_digest="k"))
        signed = StoredAssignment(device, 7, "d" * 64, b"{}", now, now + DAY, 1)
        assignments.put(connection, signed)
        events.record(connection, [Event(device, "1", now, "rollback")], now, settings)
        diagnostics.ask(connection, device, {"wanted": []}, settings, now=now, expires=now + DAY, by="ann")
        batch = Batch("vitals", 1, tuple(Row(number, now, "row", {}) for number in range(1, rows + 1)))
        telemetry.receive(connection, device, batch, now, settings.telemetry)


def holding(fleet: RolledFleet, device: str) -> set[str]:
    """Return the tables in which something stands of it; `telemetry` where any row does."""
    found = set()
    with fleet.database.read() as connection:
        for table in metadata.sorted_tables:
            column = table.c.get("device")
            if column is not None and connection.execute(sa.select(column).where(column == device)).first():
                found.add(table.name)
        if connection.execute(sa.select(metadata.tables["telemetry"].c.seq)).first():
            found.add("telemetry")
    return found


def test_what_is_known_of_it_goes_and_what_must_outlive_it_stays(tmp_path: Path) -> None:
    for kind in KINDS:
        folder = tmp_path / kind
        with rolling(kind, folder, telemetry=settings_with(TelemetryStorageSettings(), sweep_rows=2)) as fleet:
            fleet.enrol(["a", "b"])
            told(fleet, "a", rows=5)
            before = holding(fleet, "a")
            revoke(fleet, "a")
            remove(fleet, "a")
            assert before - holding(fleet, "a") == {
                *("device_tags", "device_seen", "device_running", "desired", "desired_before"),
                *("diagnostics", "events", "telemetry_sources", "telemetry"),
            }
            assert holding(fleet, "a") == {"assignments", "certificates", "desired_revisions"}
            _check_hidden(fleet, ["b"])
            with fleet.database.read() as connection:
                (kept,) = certificates.revoked(connection, fleet.now, fleet.database.settings)
            assert (kept.device, kept.revoked_because) == ("a", "the wall is gone")
            with fleet.database.write() as connection:
                assert certificates.forget(connection, fleet.now + 31 * DAY) == 1


def _check_hidden(fleet: RolledFleet, shown: Iterable[str]) -> None:
    settings = fleet.database.settings
    with fleet.database.write() as connection:
        assert [one.id for one in devices.page(connection, DeviceSelection(), settings)] == [*shown]
        assert devices.counts(connection, DeviceSelection())[EnrolmentState.REVOKED] == 0
        devices.touch(connection, {"a": fleet.now})
        for attempt in (
            lambda: devices.get(connection, "a"),
            lambda: devices.inventory(connection, "a"),
            lambda: devices.change_state(connection, "a", "readmit", "", fleet.now),
            lambda: devices.change_state(connection, "a", "revoke", "", fleet.now),
            lambda: devices.label(connection, "a", [], ""),
            lambda: devices.report_health(connection, "a", "", {}),
        ):
            with pytest.raises(AbsentError):
                attempt()
    assert "device_seen" not in holding(fleet, "a")


def test_name_and_serial_are_free_and_versions_go_on(fleet: RolledFleet) -> None:
    with fleet.database.write() as connection:
        devices.register(connection, "a", "SN-1", fleet.now)
        devices.register(connection, "b", "SN-2", fleet.now)
    told(fleet, "a", rows=1)
    remove(fleet, "a")  # it never enrolled
    fleet.now += DAY
    with pytest.raises(ConflictError, match="'SN-2' is registered already"), fleet.database.write() as connection:
        devices.register(connection, "a", "SN-2", fleet.now)
    with fleet.database.write() as connection:
        devices.register(connection, "c", "SN-1", fleet.now)
        late = Batch("vitals", 1, (Row(2, fleet.now, "row", {}),))  # was under way when it was removed
        telemetry.receive(connection, "a", late, fleet.now, fleet.database.settings.telemetry)
        devices.register(connection, "a", "SN-3", fleet.now)
        assert telemetry.sources(connection, "a") == ()
        found = devices.get(connection, "a")
        assert assignments.next_version(connection, "a") == 8
        assert desired.of_device(connection, "a").revision == 2  # what was signed does not hold
    new = devices.Device("a", EnrolmentState.PRE_REGISTERED, fleet.now, serial="SN-3")
    assert found == replace(new, accelerators=())
    with pytest.raises(ConflictError, match="registered already"), fleet.database.write() as connection:
        devices.register(connection, "a", "SN-4", fleet.now)
    remove(fleet, "a")
    with fleet.database.write() as connection:
        devices.enrol(connection, "a", fleet.now)
        assert devices.get(connection, "a").state is EnrolmentState.ENROLLED


def test_who_was_let_in_is_revoked_first(fleet: RolledFleet) -> None:
    """Also one that may come again."""
    fleet.enrol(["a"])
    revoke(fleet, "a")
    with fleet.database.write() as connection:
        devices.change_state(connection, "a", "readmit", "", fleet.now)
    with pytest.raises(ConflictError, match="revoke it first"):
        remove(fleet, "a")
    revoke(fleet, "a")
    remove(fleet, "a")
    with pytest.raises(AbsentError):
        remove(fleet, "a")
