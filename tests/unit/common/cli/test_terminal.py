"""Foreign text steers no terminal, whichever command prints it; tables are no wider than it; one thing is no things."""

from __future__ import annotations

import io
import json
import re
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import ConsoleDimensions

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.installation import HERE
from gateway.common.terminal.program import Program, Verb
from gateway.common.terminal.tables import (
    WORD_WIDTH,
    ColumnWidth,
    broken,
    counted,
    fitted,
    plain,
    print_json,
    print_remarks,
    print_table,
)

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


def test_remarks_are_wrapped_on_a_terminal_only_and_no_word_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/srv/models/" + "long-name-" * 5
    remarks = [
        ("detector", "1", f"{path} is \x1bmissing"),
        ("whole", "1", ""),
        ("notes.txt", "-", "is no model"),
        ("b", "", "no"),
    ]
    print_remarks(remarks)
    assert capsys.readouterr().out == f"\ndetector 1: {path} is \\u001bmissing\nnotes.txt: is no model\nb: no\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    print_remarks(remarks)
    lines = capsys.readouterr().out.splitlines()
    assert f"  {path}" in lines
    assert all(len(line) <= 20 for line in lines if path not in line)


def test_neither_do_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("edge", "0", "", "gateway", (Verb("go", "none", "go", "go", lambda _parser: None),))

    def refused(_self: Program, _arguments: object) -> int:
        raise ConfigurationError(f"the controller says {STEERING}")

    monkeypatch.setattr(Program, "_carry_out", refused)
    assert program.main(["go"]) == 2
    assert "\\u001b[2J" in (said := capsys.readouterr().err)
    assert "\x1b" not in said


sizes = st.tuples(*[st.integers(1, 300)] * 3).map(sorted).map(lambda found: ColumnWidth(*reversed(found)))


@given(st.lists(sizes, min_size=1, max_size=9), st.integers(9, 300))
def test_columns_fit_and_break_no_word_that_need_not_be_broken(needs, room) -> None:
    widths = fitted(needs, room)
    assert sum(widths) <= room
    assert all(0 < width <= need.line for width, need in zip(widths, needs, strict=True))
    if sum(need.line for need in needs) <= room:
        assert widths == [need.line for need in needs]
    for least in ([min(need.word, WORD_WIDTH) for need in needs], [min(need.part, WORD_WIDTH) for need in needs]):
        if sum(least) <= room:
            assert all(width >= low for width, low in zip(widths, least, strict=True))


def test_an_action_stays_whole_beside_details_of_any_length() -> None:
    needs = [
        ColumnWidth(3, 3, 3),
        ColumnWidth(16, 10, 5),
        ColumnWidth(6, 6, 6),
        ColumnWidth(18, 18, 18),
        ColumnWidth(160, 64, 64),
    ]
    assert fitted(needs, 80 - 4 * 3) == [3, 16, 6, 18, 25]


@given(
    st.lists(st.text("abc-/ ", min_size=1, max_size=40).map(str.strip), min_size=3, max_size=3),
    st.integers(10, 90),
)
@example(["", "", ""], 10)
def test_a_table_on_a_narrow_terminal_breaks_no_part_of_a_word(row: list[str], width: int) -> None:
    said = io.StringIO()
    said.isatty = lambda: True  # type: ignore[method-assign]
    with (
        mock.patch.dict("os.environ", {"COLUMNS": str(width)}),
        mock.patch("sys.stdout", said),
        mock.patch("rich.console.Console.size", mock.PropertyMock(return_value=ConsoleDimensions(width, 25))),
    ):
        print_table(("accelerator", "p50 µs", "reason"), [row])
    shown = re.split(r"(?:[\s│┃━╇]|\x1b\[[0-9;]*m)+|(?<=[-/])", said.getvalue())
    for word in " ".join(("accelerator", *row)).split():
        if not (row[0] == "" and word == "accelerator"):
            assert set(filter(None, re.split("(?<=[-/])", word))) <= set(shown), said.getvalue()


@pytest.mark.parametrize(
    ("text", "width", "said"),
    [
        ("3 of 40 runs failed", 12, "3 of 40 runs\nfailed"),
        ("nvidia-jetson-gpu", 14, "nvidia-jetson-\ngpu"),
        ("runs acme/meter-reader/2", 13, "runs\nacme/meter-\nreader/2"),
        ("a\nb  c", 9, "a\nb  c"),
        ("unbreakable", 4, "unbreakable"),
    ],
)
def test_words_are_broken_after_their_parts(text, width, said) -> None:
    assert broken(text, width) == said


@given(st.text(), st.integers(1, 30))
def test_what_is_broken_is_all_there(text, width) -> None:
    assert broken(text, width).replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(("number", "said"), [(0, "0 entries"), (1, "1 entry"), (2_000, "2,000 entries")])
def test_one_is_not_many(number, said) -> None:
    assert counted(number, "entry", "entries") == said
    assert counted(number, "device") == said.replace("entries", "devices").replace("entry", "device")


@pytest.mark.parametrize("extra", ["fleet", ""])
def test_a_missing_package_is_named_with_the_command_that_adds_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    program = Program("edge", "0", "", "fleet.cli", (), extra)

    def imports(_self: Program, _arguments: object) -> int:
        raise ModuleNotFoundError(name="tuf.api.metadata")

    monkeypatch.setattr(Program, "_carry_out", imports)
    assert program.main(["go"]) == 3
    assert capsys.readouterr().err == f"edge: the Python package tuf is not installed; {HERE.adding(extra)} (EG-702)\n"


@pytest.mark.parametrize("name", ["gateway.nowhere", "fleet.cli.none", None])
def test_a_missing_module_of_ours_is_a_defect(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    def imports(_self: Program, _arguments: object) -> int:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(Program, "_carry_out", imports)
    with pytest.raises(ModuleNotFoundError):
        Program("edge", "0", "", "fleet.cli", ()).main(["go"])


def test_a_file_that_may_not_be_opened_is_told_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("edge", "0", "", "gateway", (Verb("go", "none", "go", "go", lambda _parser: None),))

    def refused(_self: Program, _arguments: object) -> int:
        raise PermissionError(13, "Permission denied", "/var/lib/edge-fleet/fleet.sqlite")

    monkeypatch.setattr(Program, "_carry_out", refused)
    assert program.main(["go"]) == 3
    assert "fleet.sqlite; run this as the user whose files these are" in capsys.readouterr().err
