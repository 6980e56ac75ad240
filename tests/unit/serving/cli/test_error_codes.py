"""Each code of an error has an entry in the page of troubleshooting, whose commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from docs.reference import PROGRAMS
from gateway.cli import main
from gateway.serving.cli.error_codes import entries

ROOT = Path(__file__).resolve().parents[4]
RAISED = sorted(
    {
        code
        for file in (ROOT / "gateway").rglob("*.py")
        for code in re.findall(r"\((EG-\d{3})\)", file.read_text("utf-8"))
    }
)
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/pages/howto/troubleshooting.md").read_text("utf-8"), re.DOTALL)
COMMANDS = sorted(
    {
        command.strip().removeprefix("sudo ")
        for line in "".join(BLOCKS).splitlines()
        for command in re.split(r"&&|\|", re.sub(r"\s{3,}# .*", "", line))
        if command.strip().removeprefix("sudo ").partition(" ")[0] in PROGRAMS
    }
)


def test_the_page_and_the_source_have_the_same_codes() -> None:
    assert list(entries()) == RAISED
    assert len(RAISED) >= 60


@pytest.mark.parametrize("code", RAISED)
def test_each_entry_has_a_cause_and_commands(code: str) -> None:
    symptom, text = entries()[code]
    assert symptom
    assert re.fullmatch(r"[\w`].*[.:]\n\n```sh\n.+\n```", text, re.DOTALL)


def test_the_commands_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) > 30
    for command in COMMANDS:
        program, *words = shlex.split(command)
        code: object = 0
        try:
            PROGRAMS[program].parser().parse_args(words)
        except SystemExit as end:
            code = end.code
        assert code == 0, (command, capsys.readouterr().err)


@pytest.mark.parametrize("named", ["EG-201", "eg-201", "201"])
def test_a_code_is_explained(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", named]) == 0
    said = capsys.readouterr().out
    assert said.startswith("EG-201: The address is in use\n\n")
    assert "\n    sudo ss -ltnp 'sport = :8000 or sport = :8001'" in said
    assert "`" not in said


@pytest.mark.parametrize(
    ("named", "nearest"), [("EG-998", "EG-810"), ("EG-299", "EG-301"), ("EG-x", "EG-101"), ("9" * 5_000, "EG-810")]
)
def test_an_unknown_code_leads_to_the_nearest(named: str, nearest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", named]) == 2
    assert f"nearest are {nearest}: " in capsys.readouterr().err
