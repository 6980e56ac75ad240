"""`edge-fleet telemetry`, `audit`, `backup`, `migrate` as processes, against a running controller and its database."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.controller.database import alerts, events, migrate, telemetry
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import Batch, Row
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import Operator, operator, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        running.enrolled("camera", tags=["pilot"])
        told(running, 1, 1, 2)
        with running.control.database.write() as connection:
            now, settings = running.clock(), running.control.database.settings
            happened = Event(
                "camera",
                "k",
                now,
                "rollback",
                "reader",
                "models/acme/reader/2/release",
                "",
                {"why": "heat", "reason": "too hot", "began": "now"},
            )
            events.record(connection, [happened], now, settings)
        yield running


@pytest.fixture(scope="module")
def admin(controller: RunningController) -> Operator:
    return operator(controller)


def told(controller: RunningController, boot: int, first: int, last: int) -> None:
    """Store rows of the device's vitals."""
    settings, now = controller.control.database.settings, controller.clock()
    rows = [Row(number, now, "vitals", {"number": number, "nothing": ""}) for number in range(first, last + 1)]
    with controller.control.database.write() as connection:
        telemetry.receive(connection, "camera", Batch("vitals", boot, rows), now, settings.telemetry)


def test_what_a_device_told(admin) -> None:
    code, out, _ = admin.run("telemetry", "streams", "camera")
    assert code == 0
    assert re.search(r"vitals +│ 1 +│ 2 +│ 2 ", out)
    code, out, _ = admin.run("telemetry", "rows", "camera", "vitals")
    assert re.search(r"1\.2 +│ \d{4}-\d\d-\d\d \d\d:\d\d │ vitals │ number=2 *\n", out)
    assert [row["seq"] for row in admin.told("telemetry", "rows", "camera", "vitals", "--after", "1.1")["rows"]] == [2]
    assert [row["seq"] for row in admin.told("telemetry", "newest", "camera", "vitals")["rows"]] == [2]
    code, out, _ = admin.run("telemetry", "events", "--kind", "rollback")
    assert re.search(r"camera +│ rollback │ acme/reader/2: too hot; why=heat", out)
    for words, said in (
        (("telemetry", "events", "--kind", "nothing"), "no such events"),
        (("telemetry", "alerts"), "no alerts"),
        (("telemetry", "rows", "camera", "nothing"), "edge-fleet telemetry streams camera lists what there is"),
        (("devices", "list", "--site", "nowhere"), "no device matches"),
        (("rollouts", "list"), "edge-fleet rollouts create drafts one"),
    ):
        code, out, _ = admin.run(*words)
        assert (code, said in out, out.count("\n")) == (0, True, 1), out
    code, _, err = admin.run("telemetry", "rows", "camera", "vitals", "--after", "x")
    assert (code, "is not BOOT_EPOCH.SEQ" in err) == (2, True)


def test_rows_are_followed_over_a_restart_of_the_device(controller, admin) -> None:
    process = admin.begin("telemetry", "rows", "camera", "vitals", "--follow", "--json")
    assert process.stdout
    seen = [json.loads(process.stdout.readline()) for _ in range(2)]
    told(controller, 1, 3, 3)
    told(controller, 2, 1, 1)
    seen += [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert [(row["boot_epoch"], row["seq"]) for row in seen] == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert (process.returncode, err) == (130, "edge-fleet: interrupted\n")


def test_events_and_alerts_are_followed(controller, admin) -> None:
    """The last ones first, then what comes: one document a line."""
    database, now = controller.control.database, controller.clock()
    shown = {what: admin.begin("telemetry", what, "--follow", "--json") for what in ("events", "alerts")}
    lines = {what: process.stdout for what, process in shown.items()}
    assert json.loads(lines["events"].readline())["kind"] == "rollback"
    with database.write() as connection:
        events.record(connection, [Event("camera", "later", now, "clock")], now, database.settings)
    until(lambda: len(controller.control.subscriptions) == len(shown), "not both follow")
    with database.write() as connection:
        alerts.put(connection, [Alert("a1", "silent", "camera", "", AlertState.OPEN, now, now, now)], tell=False)
    assert json.loads(lines["events"].readline())["kind"] == "clock"
    assert json.loads(lines["alerts"].readline())["id"] == "a1"
    for process in shown.values():
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "edge-fleet: interrupted\n")
    code, _, err = admin.run("telemetry", "alerts", "--follow", "--state", "pending")
    assert (code, "leave out --state pending" in err) == (2, True)


def test_the_audit_log_is_held_against_a_noted_head(controller, admin) -> None:
    admin.told("devices", "label", "camera", "--add", "x")
    code, out, _ = admin.run("audit", "list", "--subject", "camera")
    assert re.search(r"olga │ devices.label camera: .*tags=", out)
    code, out, _ = admin.run("audit", "verify")
    head = re.search(r"--head (\S+)", out)
    assert head
    admin.told("devices", "label", "camera", "--remove", "x")
    beside = ("--dir", controller.folder)
    for where in ((), beside):
        assert admin.run("audit", "verify", "--head", head[1], *where)[0] == 0
        number, _, digest = head[1].partition(":")
        code, out, _ = admin.run("audit", "verify", "--head", f"{number}:{'0' * 64}", *where)
        assert (code, "differs from the one that was noted" in out) == (1, True)
        code, out, _ = admin.run("audit", "verify", "--head", f"999:{digest}", *where)
        assert (code, "is missing: the log ends before it" in out) == (1, True)
    for wrong in ("7", "x:y", f"7:{'G' * 64}", f"0:{digest}"):
        code, _, err = admin.run("audit", "verify", "--head", wrong)
        assert (code, "is no" in err) == (2, True)


def test_a_backup_is_restored_elsewhere_and_a_changed_log_is_found(controller, admin, tmp_path: Path) -> None:
    copy, restored = tmp_path / "fleet.backup", tmp_path / "restored"
    saved = admin.told("backup", "save", copy, "--dir", controller.folder)
    assert (saved["bytes"], stat.S_IMODE(copy.stat().st_mode)) == (copy.stat().st_size, 0o600)
    restored.mkdir()
    assert admin.told("backup", "restore", copy, "--dir", restored)["revision"] == migrate.newest()
    code, _, err = admin.run("backup", "restore", copy, "--dir", restored)
    assert (code, "exists already" in err) == (2, True)
    assert admin.told("audit", "verify", "--dir", restored)["ok"]
    with closing(sqlite3.connect(restored / "fleet.sqlite")) as thief, thief:
        for (trigger,) in thief.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            thief.execute(f'DROP TRIGGER "{trigger}"')
        thief.execute("UPDATE audit SET actor = 'somebody else' WHERE sequence = 1")
    code, out, _ = admin.run("audit", "verify", "--dir", restored)
    assert (code, "entry 1 was changed after it was written" in out) == (1, True)


def test_a_backup_that_is_none(controller, admin, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"nothing of the kind" * 100)
    for words in (("restore", "nothere"), ("restore", tmp_path / "noise"), ("save", tmp_path)):
        folder = controller.folder if words[0] == "save" else tmp_path
        assert admin.run("backup", *words, "--dir", folder)[0] == 2, words
    assert not (tmp_path / "fleet.sqlite").exists()
    code, _, err = admin.run("backup", "save", tmp_path / "x", "--dir", tmp_path)
    assert (code, "is not a database; edge-fleet serve creates it" in err) == (2, True)


def test_tables_are_brought_up_to_date(admin, tmp_path: Path) -> None:
    code, _, err = admin.run("migrate", "--check", "--dir", tmp_path)
    assert (code, "is not a database" in err) == (2, True)
    assert admin.told("migrate", "--dir", tmp_path) == {
        "before": "",
        "revision": migrate.newest(),
        "newest": migrate.newest(),
    }
    assert admin.run("migrate", "--check", "--dir", tmp_path)[0] == 0
    code, _, err = admin.run("migrate", "--dir", tmp_path / "nothere")
    assert (code, "is not a folder" in err) == (2, True)


def test_an_empty_database_is_a_finding_and_an_old_one_is_refused(admin, tmp_path: Path) -> None:
    from fleet.controller.database.engine import open_database
    from fleet.controller.database.place import read_place

    with closing(open_database(read_place("", tmp_path))) as database:
        database.glance().__enter__().close()
    code, out, _ = admin.run("migrate", "--check", "--dir", tmp_path)
    assert (code, "of none; this program works with" in out) == (1, True)
    with closing(open_database(read_place("", tmp_path))) as database:
        migrate.upgrade(database)
        with database.write() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    code, _, err = admin.run("migrate", "--check", "--dir", tmp_path)
    assert (code, "'0001', older than what this program migrates" in err) == (2, True)
