"""The record of one model version: any sequence of changes follows the table and loses nothing that was loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.release import Release
from gateway.serving.engine.versions import (
    ATTEMPTS,
    RETRY_LIMIT_S,
    RETRY_S,
    TRANSITIONS,
    Attempt,
    Holding,
    LoadedVersion,
    VersionChange,
    VersionRecord,
    attempted,
    changed,
    undecided,
)

CHANGES = st.lists(st.sampled_from(VersionChange), max_size=30)
NEW: VersionRecord[int] = VersionRecord()
ADDING = {VersionChange.STAGE, VersionChange.SERVE}


def held(number: int) -> LoadedVersion[int]:
    return LoadedVersion(Release("m", "1", Path(), f"d{number}"), number)


def record_of(holding: Holding) -> VersionRecord[int]:
    serving = held(1) if holding in {Holding.SERVING, Holding.BOTH} else None
    staged = held(2) if holding in {Holding.STAGED, Holding.BOTH} else None
    return VersionRecord(serving, staged)


@given(CHANGES)
def test_what_was_loaded_is_held_or_handed_back_exactly_once(changes: list[VersionChange]) -> None:
    record, loaded, released = NEW, list[int](), list[int]()
    for number, change in enumerate(changes):
        if (record.holding, change) not in TRANSITIONS:
            continue
        new = held(number) if change in ADDING else None
        loaded += [number] if new else []
        record, old = changed(record, change, new)
        released += [old.target] if old else []
    kept = [one.target for one in (record.serving, record.staged) if one]
    assert sorted(kept + released) == loaded


@pytest.mark.parametrize("change", VersionChange)
@pytest.mark.parametrize("holding", Holding)
def test_a_change_leads_where_the_table_says_or_is_refused(holding: Holding, change: VersionChange) -> None:
    before, new = record_of(holding), held(3) if change in ADDING else None
    if (holding, change) not in TRANSITIONS:
        with pytest.raises(ValueError, match=f"holds {holding.value} cannot {change.value}"):
            changed(before, change, new)
        return
    after, _ = changed(before, change, new)
    assert after.holding is TRANSITIONS[holding, change]
    expected = {VersionChange.STAGE: (before.serving, new), VersionChange.SERVE: (new, before.staged)}.get(change)
    expected = expected or {
        VersionChange.UNSTAGE: (before.serving, None),
        VersionChange.TAKE_OVER: (before.staged, None),
        VersionChange.WITHDRAW: (None, before.staged),
    }.get(change)
    assert (after.serving, after.staged) == expected


def test_a_version_is_forgotten_only_if_nothing_is_known_of_it() -> None:
    assert NEW.is_empty
    known = [VersionRecord(staged=held(1)), VersionRecord(held(1)), attempted(NEW, Attempt.WAITING)]
    known += [attempted(NEW, Attempt.REFUSED, "damaged"), replace(NEW, hangs=1)]
    assert [one.is_empty for one in known] == [False] * 5
    assert [one.is_listed for one in known] == [False, True, True, True, False]


@pytest.mark.parametrize("after", Attempt)
@pytest.mark.parametrize("before", Attempt)
def test_an_attempt_goes_where_the_table_says_or_is_refused(before: Attempt, after: Attempt) -> None:
    record = replace(NEW, attempt=before)
    if after in ATTEMPTS[before]:
        assert attempted(record, after).attempt is after
        return
    with pytest.raises(ValueError, match=f"{before.name} cannot become {after.name}"):
        attempted(record, after)


def test_pauses_of_an_undecided_release_double_up_to_a_limit_and_a_decision_ends_them() -> None:
    record, release, pauses = NEW, held(1).release, list[float]()
    for _ in range(12):
        record = attempted(attempted(record, Attempt.WAITING), Attempt.RUNNING)
        assert record.obstacle(0) == "its trial runs"
        record = undecided(record, release, "died by SIGKILL", 5_000_000_000)
        assert record.retry is not None
        assert record.obstacle(5_000_000_000).startswith("undecided: died by SIGKILL; next attempt in ")
        pauses.append(record.retry.due_ns / 1e9 - 5)
    assert pauses[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert pauses[-2:] == [RETRY_LIMIT_S] * 2
    record = attempted(attempted(attempted(record, Attempt.WAITING), Attempt.RUNNING), Attempt.NONE)
    assert (record.retry, record.reason, record.obstacle(0)) == (None, "", "")
