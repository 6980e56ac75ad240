"""The signed document of settings."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.policy import Policy, permitted_settings, read_policy
from gateway.common.domain.release_paths import fits_slot, parse_path, parse_written, reserved_slot
from gateway.common.domain.settings_release import (
    SETTINGS_LIMIT_BYTES,
    SettingsRelease,
    read_settings_release,
    settings_bytes,
)
from tests.simulators.policy_document import policy_bytes

RELEASE = SettingsRelease("berlin", "3", "2", datetime(2026, 11, 25, tzinfo=UTC), "[limits]\nforms = 9\n")


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(settings_bytes(RELEASE)), **fields}).encode()


def test_a_document_is_read_as_it_was_written() -> None:
    assert read_settings_release(settings_bytes(RELEASE)) == RELEASE
    assert RELEASE.target == "settings/berlin/3/release"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        changed(schema=2),
        changed(toml=3),
        changed(toml="[limits"),
        changed(toml="# \ud800"),
        changed(toml="a" * SETTINGS_LIMIT_BYTES),
        changed(name="../x"),
        changed(version=""),
        changed(floor=None),
        changed(released_at="yesterday"),
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused_with_a_reason(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_settings_release(content)


@given(st.binary(max_size=200) | st.builds(lambda value: changed(toml=value), st.text(max_size=100)))
def test_whatever_comes_is_read_or_refused(content: bytes) -> None:
    try:
        release = read_settings_release(content)
    except ValueError:
        return
    assert read_settings_release(settings_bytes(release)) == release


def test_paths_and_slots() -> None:
    path = parse_written("@settings/berlin/3")
    assert (path.path, parse_path(path.path), reserved_slot(path.path)) == (RELEASE.target, path, "@settings")
    assert fits_slot(path.path, "@settings")
    for slot in ("@software", "meter"):
        assert not fits_slot(path.path, slot)
    assert not fits_slot("models/acme/meter/1/release", "@settings")


def test_policies_permit_settings() -> None:
    policy = Policy(settings=("mqtt.url", "grpc"))
    assert read_policy(policy_bytes(policy), "p") == policy
    assert read_policy(policy_bytes(Policy()), "p") == Policy()
    assert permitted_settings([]) == permitted_settings([Policy()]) == frozenset()
    assert permitted_settings([Policy(), policy]) == {"mqtt.url", "grpc"}
    assert permitted_settings([Policy(settings=("mqtt.url",)), policy]) == {"mqtt.url"}
