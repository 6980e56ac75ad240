"""Keys that appear in the controller's folder: when they are looked for, and what is said of those that do not load."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.controller.control.online_keys import OnlineKeys
from fleet.publisher.keys import make_key, refuse_to_ask
from tests.simulators.fleet_repository import new_key

EVERY_S = 5.0
HELD = new_key("old")
OLD = HELD.public_key.keyid


@dataclass
class Clock:
    """A monotonic clock that stands still until a test moves it."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(tmp_path: Path, clock: Clock) -> OnlineKeys:
    return OnlineKeys(tmp_path, [HELD], refuse_to_ask, EVERY_S, monotonic=clock)


def found(keys: OnlineKeys, *keyids: str, role: str = "director", threshold: int = 1) -> list[str]:
    return [signer.public_key.keyid for signer in keys.signers(role, keyids, threshold)]


def test_a_key_that_appears_is_loaded_when_it_is_named(keys: OnlineKeys, tmp_path: Path) -> None:
    new = make_key(tmp_path, "new", None).key.keyid
    assert found(keys, OLD) == [OLD]
    assert found(keys, new) == [new]
    assert found(keys, OLD) == [OLD]  # still held: another publication may name it again


def test_the_folder_is_left_alone_while_enough_keys_are_held(keys: OnlineKeys, tmp_path: Path) -> None:
    new = make_key(tmp_path, "new", None).key.keyid
    assert found(keys, OLD, new) == [OLD]
    assert found(keys, OLD, new, threshold=2) == [OLD, new]


def test_a_missing_key_is_looked_for_at_most_every_few_seconds(keys: OnlineKeys, tmp_path: Path, clock: Clock) -> None:
    made = tmp_path / "elsewhere"
    made.mkdir()
    new = make_key(made, "new", None).key.keyid
    assert found(keys, new) == []
    for file in made.iterdir():
        file.rename(tmp_path / file.name)
    assert found(keys, new) == []
    clock.now_s += EVERY_S
    assert found(keys, new) == [new]


def test_other_keys_and_other_roles_are_looked_for_at_once(keys: OnlineKeys, tmp_path: Path) -> None:
    assert found(keys, "lost", role="timestamp") == []
    assert found(keys, "lost") == []
    new = make_key(tmp_path, "new", None).key.keyid
    assert found(keys, new) == [new]


def test_a_key_that_does_not_load_is_logged_once_with_a_remedy(
    keys: OnlineKeys, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    locked = make_key(tmp_path, "locked", "a long passphrase").key.keyid
    (tmp_path / "rubbish.pub").write_text("{}")
    new = make_key(tmp_path, "tried-last", None).key.keyid
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert found(keys, locked, new, threshold=2) == [new]
            clock.now_s += EVERY_S
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "--passphrase-file FILE" in said[0]
    assert "rubbish.pub" in said[1]
