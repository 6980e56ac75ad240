"""An assignment is the director's present word to this device, or refused with the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Targets, Timestamp

from gateway.common.domain.assignment import Assignment, Target
from gateway.common.trust.assignment import DIRECTOR, read_signers, verify_assignment
from gateway.common.trust.assignment_form import assignment_metadata
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.floors import ASSIGNMENT, keys_of, raised_floors, role_floor
from gateway.common.trust.settings import TrustSettings
from tests.simulators.assignment_document import sign_assignment
from tests.simulators.constants import settings_with
from tests.simulators.fleet_repository import new_key

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
KEY = new_key()
MADE = Assignment(
    device="device-1",
    version=5,
    issued=NOW,
    expires=NOW + timedelta(days=1),
    slots={"reader": Target("models/acme/reader/2/release", 900, "ab" * 32)},
    files=(Target("policy/night.json", 70, "ef" * 32), Target("profiles/small.toml", 80, "cd" * 32)),
    nonce="n-1",
    poll_s=900.0,
    extra={"wave": 3},
)
"""Assignment as the director makes it."""


def director(*keys: Any, threshold: int = 1, paths: str = "assignments/*") -> Targets:
    """Return targets that name these director's keys."""
    role = DelegatedRole(DIRECTOR, [key.public_key.keyid for key in keys], threshold, terminating=True, paths=[paths])
    public = {key.public_key.keyid: key.public_key for key in keys}
    return Targets(expires=NOW, delegations=Delegations(public, {DIRECTOR: role}))


TRUSTED = director(KEY)


def accept(content: bytes, trusted: Targets = TRUSTED, **asked: Any) -> Assignment:
    return verify_assignment(content, trusted, **{"device": "device-1", "now": NOW, **asked})


def reason(content: bytes, trusted: Targets = TRUSTED, **asked: Any) -> Reason:
    with pytest.raises(Distrust) as caught:
        accept(content, trusted, **asked)
    return caught.value.reason


def signed(change: Callable[[Metadata[Targets]], object], *keys: Any) -> bytes:
    """Return the document after `change`, signed by the director (or by `keys`)."""
    metadata = assignment_metadata(MADE)
    change(metadata)
    for key in keys or (KEY,):
        metadata.sign(key, append=True)
    return metadata.to_bytes()


def with_fields(**fields: Any) -> bytes:
    return signed(lambda metadata: metadata.signed.unrecognized_fields.update(fields))


def without(field: str) -> bytes:
    return signed(lambda metadata: metadata.signed.unrecognized_fields.pop(field))


def test_what_is_signed_is_read_again() -> None:
    assert accept(sign_assignment(MADE, KEY)) == MADE
    plain = replace(MADE, nonce="", poll_s=None, extra={}, files=(), slots={})
    assert accept(sign_assignment(plain, KEY)) == plain  # nothing assigned: what runs is retired


def test_a_pause_is_rounded_up_to_whole_seconds() -> None:
    assert accept(sign_assignment(replace(MADE, poll_s=29.2), KEY)).poll_s == 30


def test_one_release_in_two_slots_cannot_be_written() -> None:
    target = MADE.slots["reader"]
    with pytest.raises(ValueError, match="two slots"):
        assignment_metadata(replace(MADE, slots={"one": target, "two": target}))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (assignment_metadata(MADE).to_bytes(), Reason.WRONG_KEY),
        (sign_assignment(MADE, new_key()), Reason.WRONG_KEY),
        (with_fields(device="device-2"), Reason.OTHER_DEVICE),
        (with_fields(device="../device-1"), Reason.DAMAGED),
        (with_fields(device=None), Reason.DAMAGED),
        (without("device"), Reason.DAMAGED),
        (with_fields(issued="2027-03-01"), Reason.DAMAGED),
        (with_fields(issued=1_800_000_000), Reason.DAMAGED),
        (without("issued"), Reason.DAMAGED),
        (with_fields(nonce=["n-1"]), Reason.DAMAGED),
        (with_fields(nonce="n 1"), Reason.DAMAGED),
        (with_fields(poll_s=0), Reason.DAMAGED),
        (with_fields(poll_s=True), Reason.DAMAGED),
        (with_fields(poll_s=10**9), Reason.DAMAGED),
        (sign_assignment(replace(MADE, issued=MADE.expires), KEY), Reason.DAMAGED),
        (sign_assignment(replace(MADE, expires=NOW + timedelta(days=36)), KEY), Reason.WRONG_TIME),
        (sign_assignment(replace(MADE, version=2**53), KEY), Reason.DAMAGED),
        (signed(lambda m: setattr(m.signed, "version", True)), Reason.DAMAGED),
        (signed(lambda m: setattr(m.signed, "delegations", TRUSTED.delegations)), Reason.DAMAGED),
    ],
)
def test_what_the_form_does_not_allow(content: bytes, expected: Reason) -> None:
    assert reason(content) is expected


def change_file(path: str, name: str, value: Any) -> bytes:
    return signed(lambda metadata: setattr(metadata.signed.targets[path], name, value))


@pytest.mark.parametrize(
    "content",
    [
        change_file("models/acme/reader/2/release", "hashes", {"md5": "ab" * 16}),
        change_file("models/acme/reader/2/release", "hashes", {"sha256": "ab" * 32, "sha512": "ab" * 64}),
        change_file("models/acme/reader/2/release", "hashes", {"sha256": "AB" * 32}),
        change_file("models/acme/reader/2/release", "length", True),
        change_file("models/acme/reader/2/release", "unrecognized_fields", {}),
        change_file("models/acme/reader/2/release", "unrecognized_fields", {"custom": ["reader"]}),
        change_file("models/acme/reader/2/release", "unrecognized_fields", {"custom": {"slot": "../reader"}}),
        change_file("models/acme/reader/2/release", "unrecognized_fields", {"custom": {"slot": 7}}),
        change_file("profiles/small.toml", "unrecognized_fields", {"custom": {"slot": "reader"}}),
    ],
)
def test_a_target_that_is_not_of_the_form(content: bytes) -> None:
    assert reason(content) is Reason.DAMAGED


@pytest.mark.parametrize("path", ["models/acme/../2/release", "models/acme/reader/2", "tools/x", "profiles/../x"])
def test_a_path_that_is_not_understood(path: str) -> None:
    slots = {"reader": replace(MADE.slots["reader"], path=path)}
    assert reason(sign_assignment(replace(MADE, slots=slots), KEY)) is Reason.BAD_PATH


def test_more_targets_than_are_read() -> None:
    small = settings_with(TrustSettings(), slots_limit=2)
    assert reason(sign_assignment(MADE, KEY), settings=small) is Reason.TOO_LARGE


def test_a_timestamp_signed_by_the_director_is_no_assignment() -> None:
    metadata = Metadata(Timestamp(expires=MADE.expires))
    metadata.sign(KEY)
    assert reason(metadata.to_bytes()) is Reason.DAMAGED


def test_the_version_may_not_fall_and_one_version_is_one_document() -> None:
    content = sign_assignment(MADE, KEY)
    digest = hashlib.sha256(content).hexdigest()
    assert accept(content, last_version=4, last_digest="00" * 32).version == 5
    assert accept(content, last_version=5, last_digest=digest).version == 5
    assert reason(content, last_version=6) is Reason.REPLAYED
    again = sign_assignment(replace(MADE, issued=NOW - timedelta(hours=1)), KEY)
    assert reason(again, last_version=5, last_digest=digest) is Reason.AMBIGUOUS
    assert reason(content, last_version=5) is Reason.AMBIGUOUS


def test_it_holds_until_it_expires_and_from_a_medium_for_longer() -> None:
    content, end, second = sign_assignment(MADE, KEY), MADE.expires, timedelta(seconds=1)
    assert accept(content, now=end - second)
    assert reason(content, now=end) is Reason.EXPIRED
    assert accept(content, now=end + timedelta(days=30) - second, offline_validity_d=30)
    assert reason(content, now=end + timedelta(days=30), offline_validity_d=30) is Reason.EXPIRED


def test_times_at_the_end_of_the_calendar_are_refused_not_raised() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert reason(sign_assignment(replace(MADE, expires=last), KEY), offline_validity_d=30) is Reason.WRONG_TIME
    near = replace(MADE, issued=last - timedelta(days=1), expires=last)
    assert accept(sign_assignment(near, KEY), offline_validity_d=30)


def test_every_one_of_a_directors_threshold_signs() -> None:
    keys = [new_key() for _ in range(3)]
    trusted = director(*keys, threshold=2)
    content = signed(lambda _: None, keys[0], keys[2])
    assert accept(content, trusted)
    assert read_signers(content, trusted, "device-1") == {keys[0].public_key.keyid, keys[2].public_key.keyid}
    assert reason(signed(lambda _: None, keys[1]), trusted) is Reason.WRONG_KEY
    assert reason(signed(lambda _: None, keys[1], KEY), trusted) is Reason.WRONG_KEY


def test_a_director_of_other_devices_has_no_say_here() -> None:
    content = sign_assignment(MADE, KEY)
    assert reason(content, director(KEY, paths="assignments/site-2-*")) is Reason.WRONG_KEY
    assert reason(content, Targets(expires=NOW)) is Reason.WRONG_KEY


def test_a_leap_of_a_stolen_key_ends_with_the_key() -> None:
    """The thief signs the greatest version there is; the operator rotates the key and goes on with version 6."""
    leap = sign_assignment(replace(MADE, version=2**53 - 1), KEY)
    assert accept(leap)
    floors = raised_floors(ASSIGNMENT, 2**53 - 1, read_signers(leap, TRUSTED, "device-1"), {})
    fresh = new_key()
    content = sign_assignment(replace(MADE, version=6), fresh)
    for trusted, expected in ((TRUSTED, 2**53 - 1), (director(fresh), 0)):
        assert role_floor(ASSIGNMENT, keys_of(trusted, DIRECTOR), floors) == expected
    assert accept(content, director(fresh), last_version=0, last_digest=hashlib.sha256(leap).hexdigest())
    assert reason(leap, director(fresh)) is Reason.WRONG_KEY


def test_a_refusal_says_what_where_and_what_to_do() -> None:
    with pytest.raises(Distrust) as caught:
        accept(sign_assignment(MADE, KEY), last_version=6)
    text = str(caught.value)
    assert text.startswith(
        "the assignment for device-1: its version 5 is below 6, accepted before (replayed); poll again"
    )
    assert all(Distrust(each, "here", "something").remedy for each in Reason)
