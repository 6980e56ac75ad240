"""Rollouts on a terminal: bars, one line, and when watching ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cli.parser import main
from fleet.cli.remote import local
from fleet.cli.rollouts_view import COMING, DONE, FREE, LOST, WaveRow, bar, headline, line, notes, outcome, wave_rows
from tests.simulators.controller import free_port
from tests.simulators.scripted_server import TOKEN, good, scripted


def wave(number: int, devices: int = 0, *, opened: bool = True, approved: bool = True, **states: int) -> dict[str, Any]:
    return {
        "wave": number,
        "opened": opened,
        "approved": approved,
        "devices": devices,
        "may_install": 0,
        "states": states,
    }


def view(*waves: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the view of a rollout: a canary, 10 %, five more, 100 %."""
    return {
        "id": "r1",
        "name": "readers",
        "state": "running",
        "round": 0,
        "served": {},
        "wave": max((one["wave"] for one in waves if one["opened"]), default=None),
        "waiting": 0,
        "may_install": 0,
        "waves": list(waves),
        "halted": False,
        "reason": "",
        "evidence": {},
        "next_opening": "2027-01-01T00:00:00Z",
        "rollback_requested": False,
        "spec": {
            "waves": [{"percent": 10.0}, {"count": 5}, {"percent": 100.0, "needs_approval": True}],
            "rollback": "offered",
        },
        **changes,
    }


NOW = datetime(2027, 1, 1, tzinfo=UTC)
HALF_WAY = view(
    wave(0, 2, committed=2),
    wave(1, 3, committed=1, probation=1, rolled_back=1),
    wave(2, opened=False),
    wave(3, opened=False, approved=False),
    waiting=45,
)


def test_waves_say_how_many_they_will_be() -> None:
    rows = wave_rows(HALF_WAY)
    assert [(row.label, row.expected) for row in rows] == [
        ("canary", 2),
        ("1. 10 %", 3),
        ("2. +5", 5),
        ("3. 100 %", 40),
    ]
    assert [(row.committed, row.under_way, row.failed) for row in rows[:2]] == [(2, 0, 0), (1, 1, 1)]
    assert [row.states for row in rows] == [
        "2 committed",
        "1 committed, 1 probation, 1 rolled back",
        "",
        "needs approval",
    ]


def test_one_line_for_a_log() -> None:
    assert headline(HALF_WAY) == "running · wave 1 of 3 · 3 of 50 devices committed, 1 gave up"
    assert line(HALF_WAY, NOW) == (
        "running · wave 1 of 3 · 3 of 50 devices committed, 1 gave up"
        " | canary: 2 committed; 1. 10 %: 1 committed, 1 probation, 1 rolled back"
    )


counts = st.integers(0, 10_000)


@given(counts, counts, counts, counts, st.integers(3, 120))
def test_a_bar_is_as_wide_as_it_should_be_and_hides_nothing(expected, committed, under_way, failed, width) -> None:
    row = WaveRow("", True, max(expected, committed + under_way + failed), committed, under_way, failed, "")
    drawn = bar(row, width)
    assert len(drawn) == width
    if row.expected:
        assert [sign in drawn for sign in (DONE, LOST, COMING)] == [
            count > 0 for count in (committed, failed, under_way)
        ]
    full = row.expected and committed + under_way + failed == row.expected
    assert FREE not in drawn if full else True


@given(counts, st.integers(3, 120))
def test_a_bar_is_full_of_one_thing_only_when_all_is(expected, width) -> None:
    assert bar(WaveRow("", True, expected + 1, expected + 1, 0, 0, ""), width) == DONE * width


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"state": "draft"}, None),
        ({"state": "running"}, None),
        ({"state": "paused", "reason": "holidays"}, None),
        ({"state": "paused", "halted": True}, 1),
        ({"state": "paused", "evidence": {"wave": 2}}, 1),
        ({"state": "finished"}, 0),
        ({"state": "standing"}, 0),
        ({"state": "aborted"}, 1),
    ],
)
def test_watching_ends_where_nothing_goes_on_by_itself(changes, code) -> None:
    assert outcome(view(wave(0), **changes)) == code


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "draft"}, "a draft: edge-fleet rollouts approve r1"),
        ({"state": "approved"}, "approved: edge-fleet rollouts start r1"),
        ({"state": "paused", "reason": "3 of 4 failed", "halted": True}, "halted: 3 of 4 failed"),
        ({"state": "paused", "reason": "holidays"}, "paused: holidays"),
        ({"state": "paused", "may_install": 3}, "3 devices may still install it: an offer was made before the pause"),
        ({"state": "paused", "may_install": 1}, "1 device may still install it"),
        ({"state": "aborted", "reason": "superseded"}, "aborted: superseded"),
        ({"state": "aborted"}, "edge-fleet rollouts rollback r1"),
        ({"state": "standing"}, "end that: edge-fleet rollouts abort r1"),
        ({"state": "finished", "reason": "superseded by r2"}, "finished: superseded by r2"),
        ({"waiting": 3, "next_opening": None}, "no window will open again"),
        ({"waiting": 3, "next_opening": "2027-01-01T12:00:00Z"}, f"before {local('2027-01-01T12:00:00Z')}"),
    ],
)
def test_notes_say_what_an_operator_can_do(changes, said) -> None:
    assert any(said in note for note in notes(view(wave(0), **changes), NOW))


@pytest.mark.parametrize("changes", [{"rollback_requested": True}, {"spec": {"waves": [], "rollback": "forced"}}])
def test_nobody_is_told_to_ask_for_what_happens_already(changes) -> None:
    assert notes(view(wave(0), state="aborted", **changes), NOW) == []


def test_a_rollout_of_nobody_and_of_one() -> None:
    assert headline(view(wave(0))) == "running · no device yet"
    assert headline(view(wave(1, 1, committed=1))) == "running · wave 1 of 3 · 1 of 1 device committed"


def test_a_standing_rollout_counts_the_devices_of_all_rounds() -> None:
    between = view(wave(1, opened=False), state="standing", round=2, served={"committed": 7, "silent": 1}, waiting=1)
    assert headline(between) == "standing · 7 of 9 devices committed, 1 gave up"
    again = view(wave(1, 2, committed=1, offered=1), round=2, served={"committed": 7})
    assert headline(again) == "running · round 3, wave 1 of 3 · 8 of 9 devices committed"


def test_a_wave_that_waits_for_an_operator_is_named_by_its_number() -> None:
    waits = view(wave(2, 5, committed=5), wave(3, opened=False, approved=False), waiting=9)
    assert notes(waits, NOW) == ["the next wave waits: edge-fleet rollouts approve-wave r1 3"]


def test_watching_waits_for_a_controller_that_is_away_for_a_while(monkeypatch, capsys) -> None:
    with scripted() as server:
        away, stream = (502, {}, b"bad gateway"), (200, {}, b'retry: 10\nevent: position\nid: 7\ndata: {"id": "7"}\n\n')
        over = good({**HALF_WAY, "state": "finished"})
        server.replies = [good(HALF_WAY), away, stream, away, stream, over]
        monkeypatch.setenv("EDGE_FLEET_URL", server.url)
        monkeypatch.setenv("EDGE_FLEET_TOKEN", TOKEN)
        assert main(["rollouts", "watch", "r1"]) == 0
    said = capsys.readouterr()
    assert [line.split()[1] for line in said.out.splitlines()] == ["running", "finished"]
    assert said.err.count("waiting: ") == 2


def test_watching_never_begins_where_nobody_answers(monkeypatch, capsys) -> None:
    monkeypatch.setenv("EDGE_FLEET_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("EDGE_FLEET_TOKEN", TOKEN)
    assert main(["rollouts", "watch", "r1"]) == 3
    assert "does not answer" in capsys.readouterr().err


def test_what_devices_say_does_not_steer_the_terminal() -> None:
    (note, _) = notes(view(wave(0), state="paused", reason="\x1b[2J3 of 4 failed\x9b"), NOW)
    assert note == "paused: \\u001b[2J3 of 4 failed\\u009b"
