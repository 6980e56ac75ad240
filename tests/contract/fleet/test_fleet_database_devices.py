"""Devices, certificates and enrolment tokens, on SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from fleet.controller.database import certificates, devices, enrolment, polling
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.devices import DeviceSelection, EnrolmentState, Running
from fleet.controller.database.engine import Database
from fleet.controller.database.enrolment import TokenRefusedError
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from fleet.controller.database.settings import DatabaseSettings
from gateway.common.domain.errors import Fault
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, database, enrolled

__all__ = ["database"]
SETTINGS = DatabaseSettings()
HOUR = timedelta(hours=1)
TARGET = "models/acme/meter-reader/2/release"


def test_a_device_goes_from_its_serial_to_enrolment(database: Database) -> None:
    with database.write() as connection:
        devices.register(connection, "camera-1", "SN-1", NOW)
        found = devices.by_serial(connection, "SN-1")
        assert found is not None
        assert (found.id, found.state, found.enrolled) == ("camera-1", EnrolmentState.PRE_REGISTERED, None)
        devices.enrol(connection, "camera-1", NOW + HOUR)
    with database.read() as connection:
        device = devices.get(connection, "camera-1")
        assert (device.state, device.serial, device.registered) == (EnrolmentState.ENROLLED, "SN-1", NOW)
        assert device.enrolled == NOW + HOUR
        assert devices.by_serial(connection, "") is None


@pytest.mark.parametrize(("name", "serial"), [("camera-1", "SN-2"), ("camera-2", "SN-1")])
def test_an_id_or_a_serial_is_registered_once(database: Database, name: str, serial: str) -> None:
    with database.write() as connection:
        devices.register(connection, "camera-1", "SN-1", NOW)
    with pytest.raises(ConflictError, match="registered already"), database.write() as connection:
        devices.register(connection, name, serial, NOW)


def test_devices_without_a_serial_do_not_disturb_each_other(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    with database.read() as connection:
        assert [device.id for device in devices.page(connection, DeviceSelection(), SETTINGS)] == [
            "camera-1",
            "camera-2",
        ]


def test_a_device_without_an_id_is_refused(database: Database) -> None:
    for attempt in (lambda c: devices.enrol(c, "", NOW), lambda c: devices.register(c, "", "SN", NOW)):
        with pytest.raises(RefusedError, match="needs an id"), database.write() as connection:
            attempt(connection)


def test_a_revoked_device_enrols_again_only_after_an_operator_let_it(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.write() as connection:
        devices.change_state(connection, "camera-1", "revoke", "stolen", NOW)
        devices.change_state(connection, "camera-1", "revoke", "stolen twice", NOW + HOUR)
        assert devices.get(connection, "camera-1").revoked_because == "stolen"
    with pytest.raises(ConflictError, match="revoked"), database.write() as connection:
        devices.enrol(connection, "camera-1", NOW)
    with database.write() as connection:
        devices.change_state(connection, "camera-1", "readmit", "", NOW)
        devices.enrol(connection, "camera-1", NOW)
        device = devices.get(connection, "camera-1")
        assert (device.state, device.revoked, device.revoked_because) == (EnrolmentState.ENROLLED, None, "")
    with pytest.raises(ConflictError, match="needs one that is revoked"), database.write() as connection:
        devices.change_state(connection, "camera-1", "readmit", "", NOW)


@pytest.mark.parametrize("state", EnrolmentState)
@pytest.mark.parametrize("operation", devices.TRANSITIONS)
def test_states_change_as_the_table_says(database: Database, state: EnrolmentState, operation: str) -> None:
    steps = {"pre-registered": ("revoke", "readmit"), "suspended": ("suspend",), "revoked": ("suspend", "revoke")}
    enrolled(database, "camera-1")
    with database.write() as connection:
        for step in steps.get(state, ()):
            devices.change_state(connection, "camera-1", step, "first", NOW)
    before, after = devices.TRANSITIONS[operation]
    repeated = state is after and operation in {"suspend", "revoke"}
    if state not in before and not repeated:
        with pytest.raises(ConflictError, match=f"is {state}; "), database.write() as connection:
            _change(connection, operation)
        after = state
    else:
        with database.write() as connection:
            assert _change(connection, operation) is not repeated
    with database.read() as connection:
        device = devices.get(connection, "camera-1")
    assert device.state is after
    assert (device.suspended is not None, device.revoked is not None) == (after == "suspended", after == "revoked")
    reasons = {"suspended": device.suspended_because, "revoked": device.revoked_because}
    assert reasons == {name: (("first" if state is after else "again") if name == after else "") for name in reasons}


def _change(connection: Connection, operation: str) -> bool:
    if operation == "enrol":
        devices.enrol(connection, "camera-1", NOW)
        return True
    return devices.change_state(connection, "camera-1", operation, "again", NOW)


def test_what_is_not_there_is_said_so(database: Database) -> None:
    with database.write() as connection:
        for attempt in (
            lambda: devices.get(connection, "nobody"),
            lambda: devices.inventory(connection, "nobody"),
            lambda: devices.change_state(connection, "nobody", "revoke", "", NOW),
            lambda: devices.change_state(connection, "nobody", "readmit", "", NOW),
            lambda: devices.label(connection, "nobody", ["a"], ""),
            lambda: devices.report(connection, "nobody", [], ""),
            lambda: enrolment.revoke(connection, 7),
        ):
            with pytest.raises(AbsentError) as refused:
                attempt()
            assert refused.value.fault is Fault.NOT_FOUND


def test_a_device_says_what_it_is_and_what_it_runs(database: Database) -> None:
    enrolled(database, "camera-1")
    running = Running("meter", TARGET, "a" * 64, "int8", "npu", "AVAILABLE", NOW)
    inventory = {"cpu": {"cores": 4}, "accelerators": ["npu", "cpu"]}
    with database.write() as connection:
        devices.describe(connection, "camera-1", profile="lab", accelerators=("npu", "cpu"), inventory=inventory)
        devices.label(connection, "camera-1", ["line-2", "line-2", "site-a"], "Ulm")
        devices.report(connection, "camera-1", [running], "degraded", {"temperature_c": 88.5})
    with database.read() as connection:
        device = devices.get(connection, "camera-1")
        assert devices.inventory(connection, "camera-1") == inventory
    assert (device.profile, device.accelerators, device.site) == ("lab", ("npu", "cpu"), "Ulm")
    assert device.tags == {"line-2", "site-a"}
    assert (device.running, device.health, device.health_details) == ((running,), "degraded", {"temperature_c": 88.5})
    with database.write() as connection:
        devices.report(connection, "camera-1", [], "ok")
        assert devices.get(connection, "camera-1").running == ()


def test_lists_are_pages_of_what_is_wanted(database: Database) -> None:
    names = [f"device-{number}" for number in range(6)]
    enrolled(database, *names)
    with database.write() as connection:
        for number, name in enumerate(names):
            devices.label(connection, name, ["even" if number % 2 == 0 else "odd", "all"], f"site-{number // 3}")
        devices.describe(connection, "device-4", profile="lab", accelerators=[], inventory={})
        entry = Running("meter", TARGET, "a" * 64, "int8", "npu", "AVAILABLE", NOW)
        devices.report(connection, "device-5", [entry], "ok")
        devices.change_state(connection, "device-0", "revoke", "", NOW)
        devices.change_state(connection, "device-2", "suspend", "", NOW)

    def shown(wanted: DeviceSelection, after: str = "", limit_rows: int = 100) -> str:
        with database.read() as connection:
            page = devices.page(connection, wanted, SETTINGS, after=after, limit_rows=limit_rows)
        return "".join(device.id[-1] for device in page)

    assert shown(DeviceSelection(), limit_rows=2) == "01"
    assert shown(DeviceSelection(), after="device-1") == "2345"
    assert shown(DeviceSelection(state=EnrolmentState.REVOKED)) == "0"
    assert shown(DeviceSelection(tags=frozenset({"even", "all"}))) == "024"
    assert shown(DeviceSelection(tags=frozenset({"even", "odd"}))) == ""
    assert shown(DeviceSelection(scope=frozenset({"even", "odd"}))) == "012345"
    assert shown(DeviceSelection(scope=frozenset({"odd", "else"}), site="site-0")) == "1"
    assert shown(DeviceSelection(profile="lab")) == "4"
    assert shown(DeviceSelection(target=TARGET)) == "5"
    with database.read() as connection:
        counts = devices.counts(connection, DeviceSelection(tags=frozenset({"even"})))
    state = EnrolmentState
    assert counts == {state.PRE_REGISTERED: 0, state.ENROLLED: 1, state.SUSPENDED: 1, state.REVOKED: 1}
    assert shown(DeviceSelection(state=state.SUSPENDED)) == "2"
    assert shown(DeviceSelection(state=state.ENROLLED)) == "1345"


def test_no_page_is_larger_than_the_setting(database: Database) -> None:
    enrolled(database, *(f"device-{number}" for number in range(5)))
    with database.read() as connection:
        assert (
            len(devices.page(connection, DeviceSelection(), settings_with(DatabaseSettings(), page_limit_rows=3))) == 3
        )
        with pytest.raises(RefusedError, match="at least one row"):
            devices.page(connection, DeviceSelection(), SETTINGS, limit_rows=0)


def test_last_seen_never_goes_back_and_knows_only_devices(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    with database.write() as connection:
        devices.touch(connection, {})
        devices.touch(connection, {"camera-1": NOW, "nobody": NOW})
        devices.touch(connection, {"camera-1": NOW - HOUR})
        assert devices.get(connection, "camera-1").seen == NOW
        devices.touch(connection, {"camera-1": NOW + HOUR})
        assert devices.get(connection, "camera-1").seen == NOW + HOUR
        assert devices.get(connection, "camera-2").seen is None


def test_last_seen_by_a_clock_that_was_ahead_is_not_believed_for_ever(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.write() as connection:
        for seen, known in ((HOUR * 9000, HOUR * 9000), (HOUR, HOUR), (0 * HOUR, HOUR), (2 * HOUR, 2 * HOUR)):
            devices.touch(connection, {"camera-1": NOW + seen})
            assert devices.get(connection, "camera-1").seen == NOW + known


# ---- certificates ---------------------------------------------------------------------------------------------------
def test_certificates_are_found_revoked_and_forgotten(database: Database) -> None:
    enrolled(database, "camera-1")
    old, new = (
        Certificate(serial, "camera-1", NOW + age, NOW + age + HOUR)
        for serial, age in (("0a", -HOUR), ("0b", 0 * HOUR))
    )
    with database.write() as connection:
        certificates.add(connection, old)
        assert certificates.revoke_all(connection, "camera-1", "renewed", NOW) == 1
        certificates.add(connection, new)
        assert certificates.find(connection, "0b") == new
        assert certificates.find(connection, "0c") is None
        dead = replace(old, revoked=NOW, revoked_because="renewed")
        assert certificates.of_device(connection, "camera-1", SETTINGS) == (new, dead)
        assert certificates.revoke_all(connection, "camera-1", "stolen", NOW) == 1
        listed = certificates.revoked(connection, NOW - HOUR, SETTINGS)
        assert [(entry.serial, entry.revoked_because) for entry in listed] == [("0a", "renewed"), ("0b", "stolen")]
        assert [entry.serial for entry in certificates.revoked(connection, NOW, SETTINGS, after="0a")] == ["0b"]
        assert certificates.forget(connection, NOW + timedelta(seconds=1)) == 1
        assert certificates.find(connection, "0a") is None


def test_a_serial_is_used_once_and_belongs_to_a_device(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.write() as connection:
        certificates.add(connection, Certificate("0a", "camera-1", NOW, NOW + HOUR))
    for again in (Certificate("0a", "camera-1", NOW, NOW), Certificate("0b", "nobody", NOW, NOW)):
        with pytest.raises(ConflictError, match="refuses"), database.write() as connection:
            certificates.add(connection, again)


# ---- enrolment tokens -----------------------------------------------------------------------------------------------
def token(
    database: Database, device: str = "", settings: DatabaseSettings = SETTINGS, tags: Sequence[str] = ("b", "a")
) -> tuple[int, str]:
    """Create a token that expires in an hour."""
    credential = new_credential("efe_")
    with database.write() as connection:
        made = {"expires": NOW + HOUR, "now": NOW, "by": "anna", "device": device, "tags": tags, "site": "Ulm"}
        return enrolment.create(connection, credential, settings, **made), credential.text


def test_a_token_lets_one_device_in_once(database: Database) -> None:
    number, text = token(database)
    with database.write() as connection:
        used = enrolment.redeem(connection, text, "camera-1", NOW)
    assert (used.id, used.tags, used.site, used.used, used.used_by) == (number, {"a", "b"}, "Ulm", NOW, "camera-1")
    assert used.prefix == text[:10]
    with pytest.raises(TokenRefusedError) as refused, database.write() as connection:
        enrolment.redeem(connection, text, "camera-1", NOW)
    assert refused.value.fault is Fault.UNAUTHENTICATED


def test_a_token_that_is_expired_unknown_revoked_or_anothers_lets_nobody_in(database: Database) -> None:
    (_, expired), (_, bound), (number, revoked) = token(database), token(database, "camera-9"), token(database)
    with database.write() as connection:
        enrolment.revoke(connection, number)
    attempts = [(expired, NOW + HOUR), (bound, NOW), (revoked, NOW), ("efe_unknown", NOW), ("", NOW), ("\0\ud800", NOW)]
    said = set()
    for text, at in attempts:
        with pytest.raises(TokenRefusedError) as refused, database.write() as connection:
            enrolment.redeem(connection, text, "camera-1", at)
        said.add(str(refused.value))
    assert len(said) == 1
    with database.write() as connection:
        assert enrolment.redeem(connection, bound, "camera-9", NOW).device == "camera-9"


def test_a_token_is_not_used_up_by_an_enrolment_that_fails(database: Database) -> None:
    _, text = token(database)

    def fail() -> None:
        with database.write() as connection:
            enrolment.redeem(connection, text, "camera-1", NOW)
            certificates.add(connection, Certificate("0a", "nobody", NOW, NOW))

    with pytest.raises(ConflictError):
        fail()
    with database.write() as connection:
        assert enrolment.redeem(connection, text, "camera-1", NOW)


def test_tokens_are_listed_forgotten_and_bounded(database: Database) -> None:
    few = settings_with(DatabaseSettings(), enrolments_limit=2)
    numbers = [token(database, settings=few)[0] for _ in range(2)]
    with pytest.raises(RefusedError, match="2 enrolment tokens wait"):
        token(database, settings=few)
    with database.write() as connection:
        assert [entry.id for entry in enrolment.page(connection, SETTINGS)] == numbers
        assert [entry.id for entry in enrolment.page(connection, SETTINGS, after=numbers[0])] == numbers[1:]
        assert enrolment.forget(connection, NOW + HOUR) == 0
        assert enrolment.forget(connection, NOW + 2 * HOUR) == 2


HARD = (
    "pilot", "Pilot", "pilot,", "p", 'a","pilot', '"', "\\", 'x\\"', "%", "_", "größer",
    "\U0001f4f7", "[pilot", "\ud800", "a\0",
)  # fmt: skip
"""Tags that look like parts of each other, or like the text in which a list of them is kept."""


def test_a_scope_sees_the_tokens_that_give_one_of_its_tags(database: Database) -> None:
    numbers = {tag: token(database, tags=[tag, "other"])[0] for tag in HARD}
    with database.read() as connection:
        for tag in HARD:
            found = enrolment.page(connection, SETTINGS, scope=frozenset({tag, "nobody's"}))
            assert [entry.id for entry in found] == [numbers[tag]], tag
        assert len(enrolment.page(connection, SETTINGS, scope=frozenset({"other"}))) == len(HARD)


def test_no_secret_is_kept(database: Database) -> None:
    _, text = token(database)
    with database.read() as connection:
        kept = str([tuple(row) for row in connection.exec_driver_sql("SELECT * FROM enrolment_tokens")])
    assert text[10:] not in kept
    assert text[:10] in kept


def test_a_poll_of_an_unknown_certificate_finds_nothing(database: Database) -> None:
    with database.read() as connection:
        assert polling.polled(connection, "00", NOW) is None
