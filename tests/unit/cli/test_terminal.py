"""What others wrote steers no terminal, whoever prints it."""

from __future__ import annotations

import json

import pytest

from gateway.domain.errors import ConfigurationError
from gateway.terminal.program import Program, Verb
from gateway.terminal.tables import plain, print_json, print_table

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
