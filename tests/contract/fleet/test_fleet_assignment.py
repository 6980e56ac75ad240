"""Assignments as the controller signs them on demand: when, for which device, what is in them, and what never is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.control.director import BARRED, Director
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.database import assignments, audit, certificates, desired, devices, diagnostics, events
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.devices import Running
from fleet.publisher.keys import refuse_to_ask
from fleet.publisher.roles import DIRECTOR
from gateway.common.domain.assignment import Assignment
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.trust.assignment import verify_assignment
from tests.simulators.asking import running, want
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_http import Device
from tests.simulators.fleet_repository import new_key

__all__ = ["running"]
PATH = "/v1/self/assignment"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"d-{abs(hash(request.node.name)) % 10**9}"


@contextmanager
def ahead(running: RunningController, by: timedelta) -> Iterator[None]:
    running.clock.ahead = by
    try:
        yield
    finally:
        running.clock.ahead = timedelta()


def believed(running: RunningController, answer: httpx.Response, device: str, **known: Any) -> Assignment:
    """Return the assignment of an answer, verified like a device does it."""
    assert answer.status_code == 200, answer.text
    targets = running.repository.published.targets
    return verify_assignment(answer.content, targets.signed, device=device, now=running.clock(), **known)


def test_nothing_is_desired_yet(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        first = client.get(PATH)
        assert first.headers["etag"].strip('"')
        assert first.headers["cache-control"] == "no-store"
        assignment = believed(running, first, name)
        assert (assignment.version, assignment.slots) == (1, {})
        again = client.get(PATH, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert client.get(PATH).content == first.content


def test_what_is_desired_is_assigned_with_its_attempt(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        etag = client.get(PATH).headers["etag"]
        want(running, name, "models/acme/meter/1/release", attempt=3)
        found = believed(running, client.get(PATH, headers={"if-none-match": etag}), name)
    assert (found.version, found.slots["meter"].path, found.attempt("meter")) == (2, "models/acme/meter/1/release", 3)
    assert not found.diagnostics


def test_policies_and_profiles_go_to_everybody_at_once(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        before = client.get(PATH).headers["etag"]
        running.repository.add_file(f"policy/{name}.json", b'{"schema": 1}')
        running.repository.add_file(f"profiles/{name}.toml", b"schema = 1")
        running.control.publications.fresh()
        found = believed(running, client.get(PATH, headers={"if-none-match": before}), name)
    assert {f"policy/{name}.json", f"profiles/{name}.toml"} <= {file.path for file in found.files}


def test_a_nonce_is_answered_with_a_document_of_its_own(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        etag = client.get(PATH).headers["etag"]
        fresh = client.get(PATH, params={"nonce": "abc-1"}, headers={"if-none-match": etag})
        found = believed(running, fresh, name)
        assert (found.version, found.nonce) == (2, "abc-1")
        other = believed(running, client.get(PATH, params={"nonce": "abc-2"}), name)
        assert (other.version, other.nonce) == (3, "abc-2")
        with pytest.raises(Exception, match="below 3"):
            believed(running, fresh, name, last_version=3)
        for wrong in ("a b", "x" * 129, "\0", "ä", "'; DROP TABLE assignments; --"):
            assert client.get(PATH, params={"nonce": wrong}).status_code == 400
        assert believed(running, client.get(PATH), name).version == 3


def test_it_is_signed_anew_before_half_of_its_life_is_over(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        first = client.get(PATH)
        for hours, version in ((8.9, 1), (12.1, 2)):
            with ahead(running, timedelta(hours=hours)):
                found = believed(running, client.get(PATH), name)
                assert found.version == version
                assert found.expires > running.clock() + timedelta(hours=11)
        assert client.get(PATH, headers={"if-none-match": first.headers["etag"]}).status_code == 200


def test_what_was_signed_by_a_clock_that_was_wrong_is_signed_anew(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        with ahead(running, timedelta(days=60)):
            first = client.get(PATH)
        found = believed(running, client.get(PATH, headers={"if-none-match": first.headers["etag"]}), name)
        assert (found.version, found.expires < running.clock() + timedelta(hours=25)) == (2, True)
        assert believed(running, client.get(PATH), name).version == 2
        with ahead(running, timedelta(minutes=-4)):
            assert believed(running, client.get(PATH), name).version == 2, "another replica's clock"


def test_a_request_for_diagnostics_is_told_until_it_is_answered(running, name) -> None:
    made, now, settings = running.enrolled(name), running.clock(), running.control.database.settings
    with running.device_client(made) as client:
        assert not believed(running, client.get(PATH), name).diagnostics
        with running.control.database.write() as connection:
            expires = now + timedelta(hours=1)
            number = diagnostics.ask(connection, name, {"wanted": ["log"]}, settings, now=now, expires=expires, by="op")
        assert believed(running, client.get(PATH), name).diagnostics
        asked = client.get("/v1/self/diagnostics").json()["requests"]
        assert [(one["id"], one["wanted"]) for one in asked] == [(number, ["log"])]
        answer = {"id": number, "answer": {"log": {"edge-agent": ["a line"]}}}
        assert client.post("/v1/self/diagnostics", json=answer).status_code == 204
        assert client.post("/v1/self/diagnostics", json=answer).status_code == 409
        assert client.post("/v1/self/diagnostics", json=answer | {"id": 10**6}).status_code == 404
        assert client.get("/v1/self/diagnostics").json() == {"requests": []}
        assert not believed(running, client.get(PATH), name).diagnostics


def test_a_device_goes_on_from_what_it_was_assigned_by_hand(running, name) -> None:
    path, other = "models/acme/meter/1/release", running.repository.add_release(f"m-{name}", "1")
    running.repository.now = running.clock()
    running.repository.assign(name, {"meter": path, "door": other}, version=7)
    made = running.enrolled(name)
    newer = running.repository.add_release(f"m-{name}", "2")
    want(running, name, newer, slot="door", attempt=2)
    with running.device_client(made) as client:
        found = believed(running, client.get(PATH), name, last_version=7)
        assert {slot: one.path for slot, one in found.slots.items()} == {"meter": path, "door": newer}
        assert (found.version, found.attempt("door")) == (8, 2)
        asked = believed(running, client.get(PATH, params={"nonce": "n"}), name)
        assert (asked.version, asked.nonce) == (9, "n")
    with running.control.database.read() as connection:
        deeds = audit.page(connection, running.control.database.settings, subject=name, action="assignments.adopt")
    assert [deed.deed.details["version"] for deed in deeds] == [7]


@pytest.mark.parametrize("ill", ["of another", "of nobody", "damaged"])
def test_what_the_director_did_not_sign_for_it_is_not_gone_on_from(running, name, ill) -> None:
    repository, name = running.repository, f"{name}-x"
    signers = [new_key()] if ill == "of nobody" else None
    device = "another" if ill == "of another" else name
    content = repository.assignment(device, {"meter": "models/acme/meter/1/release"}, version=7, signers=signers)
    repository.put_assignment(name, content[:-9] if ill == "damaged" else content)
    with running.device_client(running.enrolled(name)) as client:
        found = believed(running, client.get(PATH), name)
    assert (found.version, found.slots) == (1, {})


# ---- what is not assigned --------------------------------------------------------------------------------------------
def test_a_release_below_the_floor_gives_way_to_what_runs(running, name) -> None:
    repository, model = running.repository, f"m-{name}"
    old, good = repository.add_release(model, "1"), repository.add_release(model, "2")
    with running.device_client(running.enrolled(name)) as client:
        want(running, name, old, slot=model, attempt=1)
        assert believed(running, client.get(PATH), name).slots[model].path == old
        repository.add_release(model, "3", floor="2")
        running.control.publications.fresh()
        assert model not in believed(running, client.get(PATH), name).slots, "devices would refuse all of it"
        digest = repository.published.target(good).hashes["sha256"]
        with running.control.database.write() as connection:
            runs = Running(model, good, digest, "only", "cpu", "committed", running.clock())
            devices.report_slots(connection, name, [runs], [])
            desired.remove(connection, [name], "nothing")
        found = believed(running, client.get(PATH), name)
    assert (found.slots[model].path, found.attempt(model)) == (good, 0)
    with running.control.database.read() as connection:
        said = events.page(connection, running.control.database.settings, device=name)
    assert [(one.event.kind, one.event.slot) for one in said] == [(BARRED, model)]
    assert "below" in str(said[0].event.document) or "allows 2" in str(said[0].event.document)


def test_what_runs_stays_assigned_when_a_floor_bars_it_too(running, name) -> None:
    """The owner raises the floor above everything that devices run, as it would to stop a bad release."""
    repository, model = running.repository, f"m-{name}"
    first = repository.add_release(model, "1")
    digest = repository.published.target(first).hashes["sha256"]
    with running.device_client(running.enrolled(name)) as client:
        want(running, name, first, slot=model)
        with running.control.database.write() as connection:
            runs = Running(model, first, digest, "only", "cpu", "committed", running.clock())
            devices.report_slots(connection, name, [runs], [])
        repository.add_release(model, "9", floor="9")
        running.control.publications.fresh()
        found = believed(running, client.get(PATH), name)
        assert (found.slots[model].path, found.removed) == (first, frozenset())
        repository.withdraw(model, "1", "offer")
        running.control.publications.fresh()
        assert believed(running, client.get(PATH), name).slots[model].path == first


def test_a_removal_is_announced_until_something_is_to_run_there_again(running, name) -> None:
    path = running.repository.add_release(f"m-{name}", "1")
    with running.device_client(running.enrolled(name)) as client:
        want(running, name, path, slot="door")
        assert believed(running, client.get(PATH), name).removed == frozenset()
        with running.control.database.write() as connection:
            desired.remove(connection, [name], "door")
        found = believed(running, client.get(PATH), name)
        assert (found.slots, found.removed) == ({}, frozenset({"door"}))
        want(running, name, path, slot="door")
        found = believed(running, client.get(PATH), name)
        assert (set(found.slots), found.removed) == ({"door"}, frozenset())


def test_a_removal_by_hand_goes_on_under_the_controller(running, name) -> None:
    repository = running.repository
    repository.now = running.clock()
    repository.assign(name, {}, version=3, extra={"removed": ["door"]})
    with running.device_client(running.enrolled(name)) as client:
        assert believed(running, client.get(PATH), name, last_version=3).removed == frozenset({"door"})


def test_a_release_that_is_wanted_twice_is_assigned_once(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        for slot in ("one", "two"):
            want(running, name, "models/acme/meter/1/release", slot=slot)
        assert list(believed(running, client.get(PATH), name).slots) == ["one"]


# ---- who is answered -------------------------------------------------------------------------------------------------
def test_a_device_gets_its_own_and_no_other(running, name) -> None:
    want_none = running.enrolled(f"{name}-b")
    made = running.enrolled(name)
    want(running, name, "models/acme/meter/1/release")
    with running.device_client(made) as mine, running.device_client(want_none) as other:
        assert believed(running, mine.get(PATH), name).slots
        assert believed(running, other.get(PATH), f"{name}-b").slots == {}
        with pytest.raises(Exception, match="addressed"):
            believed(running, other.get(PATH), name)


def test_who_is_revoked_or_unknown_is_let_in_no_more(running, name) -> None:
    made = running.enrolled(name)
    with running.device_client(made) as client:
        assert client.get(PATH).status_code == 200
        with running.control.database.write() as connection:
            certificates.revoke_all(connection, name, "lost", running.clock())
        for method, path in (("GET", PATH), ("PUT", "/v1/self/inventory"), ("POST", "/v1/self/telemetry")):
            refused = client.request(method, path, content=b"{}")
            assert (refused.status_code, "enrol" in refused.json()["detail"]) == (401, True)
    with pytest.raises(RequestError) as unknown:
        running.control.director.assigned("abcdef", running.clock())
    assert unknown.value.fault is Fault.UNAUTHENTICATED


def test_asking_is_noted(running, name) -> None:
    with running.device_client(running.enrolled(name)) as client:
        client.get(PATH)
    assert name in running.control.seen.due(running.clock())


# ---- many at once ----------------------------------------------------------------------------------------------------
def directors(running: RunningController, count: int) -> list[Director]:
    """Return the directors of so many replicas."""
    control, config = running.control, FleetConfig()
    settings = (config.director, config.publisher)
    made = (control.database, control.publications, control.keys, settings)
    return [Director(*made, seen=control.seen, counts=control.counts) for _ in range(count)]


def test_replicas_never_give_one_version_twice(running, name) -> None:
    serial = running.enrolled(name).certificate.serial
    replicas, now = directors(running, 4), running.clock()

    def asked(replica: Director) -> list[bytes]:
        found = [replica.assigned(serial, now, nonce=f"n{n}" if n % 3 else "").content for n in range(9)]
        return [content for content in found if content]

    with ThreadPoolExecutor(4) as threads:
        found = {content for contents in threads.map(asked, replicas) for content in contents}
    versions = [json.loads(content)["signed"]["version"] for content in found]
    assert len(versions) == len(set(versions)) >= 24
    with running.control.database.read() as connection:
        assert assignments.current(connection, name).version == max(versions)


def test_who_cannot_be_signed_for_now_goes_by_what_it_has(running, name) -> None:
    made, busy = running.enrolled(name), directors(running, 1)[0]
    first = busy.assigned(made.certificate.serial, running.clock())
    want(running, name, "models/acme/meter/1/release")
    with busy._limit.entered(name):
        held = busy.assigned(made.certificate.serial, running.clock())
        assert (held.digest, held.content) == (first.digest, first.content)
        with pytest.raises(RequestError, match="request later"):
            busy.assigned(made.certificate.serial, running.clock(), nonce="n")
    assert busy.assigned(made.certificate.serial, running.clock()).digest != first.digest


def test_polls_are_spread(running) -> None:
    pauses = [running.control.director.poll_s(f"camera-{number}") for number in range(200)]
    assert min(pauses) < 56
    assert max(pauses) > 64
    assert all(54 <= pause <= 66 for pause in pauses)


# ---- what is missing -------------------------------------------------------------------------------------------------
def test_without_the_directors_keys_it_says_what_to_do(tmp_path) -> None:
    with controlling(tmp_path / "c") as running:
        running.repository.rotate(DIRECTOR)
        made: Device = running.enrolled("camera-1")
        with running.device_client(made) as client:
            refused = client.get(PATH)
    assert (refused.status_code, "folder keys" in refused.json()["detail"]) == (503, True)


def test_all_keys_at_hand_sign(tmp_path) -> None:
    with controlling(tmp_path / "c") as running:
        running.repository.rotate(DIRECTOR, keys=3, threshold=2)
        control = running.control
        settings = (control.settings.director, control.workspace.settings)
        held = [*running.repository.keys[DIRECTOR][:2], new_key()]
        keys = OnlineKeys(tmp_path / "none", held, refuse_to_ask, 0.0)
        director = Director(
            control.database, control.publications, keys, settings, seen=control.seen, counts=control.counts
        )
        running.enrolled("camera-1")
        with control.database.write() as connection:
            now = running.clock()
            certificates.add(connection, Certificate("5e", "camera-1", now, now + timedelta(days=1)))
        content = director.assigned("5e", running.clock()).content
    assert len(json.loads(content)["signatures"]) == 2
    targets = running.repository.published.targets.signed
    assert verify_assignment(content, targets, device="camera-1", now=running.clock()).version == 1


def test_the_settings_are_heard(tmp_path) -> None:
    config = FleetConfig()
    config = replace(config, director=settings_with(config.director, poll_s=7.0, poll_spread=0.0))
    with controlling(tmp_path / "c", config) as running, running.device_client(running.enrolled("camera-1")) as client:
        assert believed(running, client.get(PATH), "camera-1").poll_s == 7
