"""active.json: read as it was written, refused where it is not that; commits, retirements, rollbacks as values."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.activation import Activation, Installed
from gateway.common.domain.assignment import Target
from gateway.common.store.active import (
    ACTIVE_LIMIT_BYTES,
    Active,
    active_bytes,
    committed,
    read_active,
    retired,
    rolled_back,
    write_active,
)
from gateway.common.store.errors import DamagedError, StoreAbsentError, StoreError
from tests.simulators.examples import examples

digests = st.text("0123456789abcdef", min_size=64, max_size=64)
slots = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)
texts = st.lists(st.text(max_size=5), max_size=2).map(tuple)
evidences = st.lists(digests, max_size=2).map(tuple)
targets = st.just("models/acme/meter/2/release")
activations = st.builds(Activation, slots, targets, digests, texts, evidences, st.integers(1, 9))
by_slot = st.lists(activations, max_size=3).map(lambda found: {activation.slot: activation for activation in found})
sizes = st.integers(0, 2**53)
files = st.builds(Installed, st.builds(Target, st.text(max_size=9), sizes, digests), evidences, st.integers(1, 9))
actives = st.builds(Active, by_slot, by_slot, st.lists(files, max_size=2).map(tuple))


def activation(slot: str, release: int, variants: tuple[str, ...] = ()) -> Activation:
    return Activation(slot, f"models/acme/meter/{release}/release", f"{release:064x}", variants, (), 1)


def document(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(active_bytes(committed(Active(), activation("meter", 2))))
    return {**content, **changes}


@given(actives)
@settings(max_examples=examples(60), deadline=None)
def test_what_is_written_is_read_again(active: Active) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_active(Path(folder) / "active.json", active)
        assert read_active(Path(folder) / "active.json") == active


def test_nothing_is_committed_where_nothing_was_written(tmp_path: Path) -> None:
    assert read_active(tmp_path / "active.json") == Active()


@given(
    st.binary(max_size=200) | actives.map(active_bytes).flatmap(lambda b: st.integers(0, len(b)).map(lambda n: b[:n]))
)
@settings(max_examples=examples(200), deadline=None)
def test_damage_is_an_error_or_no_damage(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "active.json"
        file.write_bytes(content)
        with contextlib.suppress(DamagedError):
            assert active_bytes(read_active(file)).rstrip() == content.rstrip()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": 2}, "schema 2 is not known"),
        ({"slots": []}, "no attribute"),
        ({"slots": {"other": document()["slots"]["meter"]}}, "'other' is no slot, or not that of 'meter'"),
        ({"slots": {"meter": {**document()["slots"]["meter"], "release": "../../../etc"}}}, "is no SHA-256 digest"),
        ({"slots": {"meter": {**document()["slots"]["meter"], "evidence": ["x"]}}}, "is no SHA-256 digest"),
        (
            {"files": [{"path": "profiles/x.toml", "bytes": -1, "sha256": "0" * 64, "evidence": [], "root": 1}]},
            "no file",
        ),
        ({"files": [{"path": "profiles/x.toml", "bytes": 1, "sha256": "0" * 64, "evidence": [], "root": 0}]}, "root"),
    ],
)
def test_what_is_not_ours_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    file = tmp_path / "active.json"
    file.write_text(json.dumps(document(**changes)))
    with pytest.raises(DamagedError, match=problem):
        read_active(file)


def test_the_error_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "active.json").write_bytes(b"{")
    with pytest.raises(
        DamagedError, match=r"active.json: cannot be read: .*; move it away, the agent then installs again"
    ):
        read_active(tmp_path / "active.json")


def test_a_slot_is_a_name(tmp_path: Path) -> None:
    slot = "../meter"
    (tmp_path / "active.json").write_bytes(active_bytes(committed(Active(), activation(slot, 2))))
    with pytest.raises(DamagedError, match="is no slot"):
        read_active(tmp_path / "active.json")


def test_no_more_is_read_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "active.json").write_bytes(b" " * (ACTIVE_LIMIT_BYTES + 1))
    with pytest.raises(DamagedError, match=f"more than {ACTIVE_LIMIT_BYTES} bytes"):
        read_active(tmp_path / "active.json")


def test_what_cannot_be_read_at_all_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        read_active(tmp_path)
    assert not isinstance(raised.value, DamagedError)


def test_a_commit_keeps_what_was_before_and_twice_is_as_once() -> None:
    first = committed(Active(), activation("meter", 1))
    assert (first.slots, first.previous) == ({"meter": activation("meter", 1)}, {})
    second = committed(first, activation("meter", 2))
    assert second.previous == {"meter": activation("meter", 1)}
    assert committed(second, activation("meter", 2)) == second
    assert second.releases == {f"{release:064x}" for release in (1, 2)}


def test_another_variant_of_the_same_release_is_nothing_to_go_back_from() -> None:
    second = committed(committed(Active(), activation("meter", 1)), activation("meter", 2))
    more = committed(second, activation("meter", 2, ("small",)))
    assert more.previous == {"meter": activation("meter", 1)}
    assert more.slots["meter"].variants == ("small",)


def test_going_back_is_possible_once() -> None:
    active = committed(committed(Active(), activation("meter", 1)), activation("meter", 2))
    back = rolled_back(active, "meter")
    assert (back.slots, back.previous) == ({"meter": activation("meter", 1)}, {})
    with pytest.raises(StoreAbsentError, match="the slot meter has no previous release"):
        rolled_back(back, "meter")


def test_a_retired_slot_is_gone_and_others_are_not() -> None:
    active = committed(committed(Active(), activation("meter", 1)), activation("meter", 2))
    active = committed(active, activation("other", 3))
    assert retired(active, "meter") == Active({"other": activation("other", 3)})
    assert retired(retired(active, "meter"), "meter") == retired(active, "meter")
