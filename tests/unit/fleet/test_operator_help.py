"""Every action of every verb says in its help what it does, with examples that can be typed."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.cli.operator_parser import OPERATOR_VERBS
from fleet.cli.parser import PROGRAM
from gateway.common.terminal.program import UNREACHABLE, USAGE, Verb
from tests.simulators.controller import free_port

ACTIONLESS = {"migrate"}


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _actions() -> list[tuple[str, argparse.ArgumentParser]]:
    verbs = dict(_subparsers(PROGRAM.parser()))
    return [
        (f"{verb.name} {name}", parser) for verb in OPERATOR_VERBS for name, parser in _subparsers(verbs[verb.name])
    ]


def _examples(parser: argparse.ArgumentParser) -> list[str]:
    text = (parser.epilog or "").replace("\\\n", " ")
    return re.findall(r"^  edge-fleet (.+?)(?: +#.*)?$", text, re.MULTILINE)


ACTIONS = _actions()


def test_all_operator_verbs_but_one_have_actions() -> None:
    assert {words.split()[0] for words, _ in ACTIONS} == {verb.name for verb in OPERATOR_VERBS} - ACTIONLESS


def _all(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for _, inner in _subparsers(parser):
        yield from _all(inner)


def test_help_is_no_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line for parser in _all(PROGRAM.parser()) for line in parser.format_help().splitlines()]
    assert not [line for line in lines if len(line) > 80]


@pytest.mark.parametrize("verb", PROGRAM.verbs, ids=lambda verb: verb.name)
def test_a_verb_has_examples_that_can_be_typed(verb: Verb) -> None:
    lines = _examples(dict(_subparsers(PROGRAM.parser()))[verb.name])
    assert lines
    for line in lines:
        assert PROGRAM.parser().parse_args(shlex.split(line.partition(" | ")[0])).module == verb.module


@pytest.mark.parametrize(("words", "parser"), ACTIONS, ids=[words for words, _ in ACTIONS])
def test_an_action_has_help_with_examples_that_can_be_typed(words: str, parser: argparse.ArgumentParser) -> None:
    said = parser.format_help()
    assert "exit codes: 0 fine" in said
    assert parser.description
    assert _examples(parser)
    for line in _examples(parser):
        assert line.startswith(words)
        assert words.startswith(PROGRAM.parser().parse_args(shlex.split(line)).module)


@pytest.mark.parametrize(("words", "parser"), ACTIONS, ids=[words for words, _ in ACTIONS])
def test_every_example_is_carried_out_as_far_as_there_is_a_controller(
    words: str, parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGE_FLEET_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("EDGE_FLEET_TOKEN", "eft_x")
    assert "--json" in parser.format_help()
    for line in _examples(parser):
        beside = "--dir" in line or words.startswith("backup")
        assert PROGRAM.main(shlex.split(line)) in ({0, USAGE} if beside or "--spec" in line else {UNREACHABLE}), line
