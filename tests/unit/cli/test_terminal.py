"""What others wrote steers no terminal, whoever prints it; tables are no wider than it; one thing is no things."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import ConfigurationError
from gateway.terminal.program import Program, Verb
from gateway.terminal.tables import KEPT_WIDTH, WORD_WIDTH, counted, fitted, plain, print_json, print_table

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\u202e"


def test_what_steers_is_shown_instead() -> None:
    shown = plain(f"a\tb\nä {STEERING}")
    assert shown.startswith("a\tb\nä \\u001b]0;owned\\u0007\\u001b[2J\\u009b31m\\u000d\\u007f")
    assert not set("\x1b\x07\x9b\r\x7f\u202e") & set(shown)


def test_tables_and_json_hold_nothing_that_steers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [(STEERING,)])
    print_json({"name": STEERING})
    said = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in said), ascii(said)
    assert json.loads(said[said.index("{") :]) == {"name": STEERING}


def test_neither_do_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("edge", "0", "", "gateway", (Verb("go", "none", "go", "go", lambda _parser: None),))

    def refused(_self: Program, _arguments: object) -> int:
        raise ConfigurationError(f"the controller says {STEERING}")

    monkeypatch.setattr(Program, "_carry_out", refused)
    assert program.main(["go"]) == 2
    assert "\\u001b[2J" in (said := capsys.readouterr().err)
    assert "\x1b" not in said


columns = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=9)


@given(columns, st.integers(9, 300))
def test_columns_fit_and_break_no_word_that_need_not_be_broken(wanted, room) -> None:
    natural, words = [max(pair) for pair in wanted], [min(pair) for pair in wanted]
    widths = fitted(natural, words, room)
    assert sum(widths) <= room
    assert all(0 < width <= most for width, most in zip(widths, natural, strict=True))
    if sum(natural) <= room:
        assert widths == natural
    kept = [min(n, max(KEPT_WIDTH, min(word, WORD_WIDTH))) for n, word in zip(natural, words, strict=True)]
    if sum(kept) <= room:
        assert all(width >= least for width, least in zip(widths, kept, strict=True))


def test_an_action_stays_whole_beside_details_of_any_length() -> None:
    assert fitted([3, 16, 6, 18, 160], [3, 10, 6, 18, 64], 80 - 4 * 3) == [3, 16, 6, 18, 25]


@pytest.mark.parametrize(("number", "said"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries")])
def test_one_is_not_many(number, said) -> None:
    assert counted(number, "entry", "entries") == said
    assert counted(number, "device") == said.replace("entries", "devices").replace("entry", "device")
