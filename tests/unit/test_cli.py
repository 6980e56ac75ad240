"""The parser: help with examples for every verb, exit codes, and arguments that are mistakes."""

import re
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docs.terminal import PROGRAMS
from gateway import __version__
from gateway.cli import PROGRAM, VERBS, main
from gateway.common.domain.errors import ConfigurationError
from gateway.serving.cli.common import overrides
from gateway.serving.config import parse_config
from tests.simulators.examples import examples

NAMES = [verb.name for verb in VERBS]


def exit_code(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_the_verbs_are_the_contract_s():
    verbs = "run probe explain doctor models config setup infer bench routes cameras token watch"
    assert set(NAMES) == {*verbs.split()}


def test_version(capsys):
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out == f"edge-gateway {__version__}\n"


@pytest.mark.parametrize("name", NAMES)
def test_help_has_examples_that_parse_and_the_exit_codes(capsys, name):
    assert exit_code([name, "--help"]) == 0
    said = capsys.readouterr().out
    examples = re.findall(r"^  edge-gateway (.*)$", said, re.MULTILINE)
    assert examples
    for example in examples:
        parsed = PROGRAM.parser().parse_args(shlex.split(example.partition("|")[0]))
        assert example.split()[0] == name
        assert parsed.module
    assert "exit codes: 0 fine" in said


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"run", "infer"}))
def test_what_a_program_might_read_has_json(capsys, name):
    exit_code([name, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["nobody"], ["run", "extra"], ["probe", "--roots", "/"], ["infer", "m"], ["explain"]]
)
def test_misuse_is_exit_code_2_and_one_line(capsys, arguments):
    assert exit_code(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("edge-gateway")
    assert said.err.endswith(" --help\n")
    assert said.err.count("\n") == 1


def test_listeners_repeat():
    parsed = PROGRAM.parser().parse_args(["run", "--grpc", "127.0.0.1:1", "--grpc", "unix:/a", "--http", "off"])
    assert (parsed.grpc, parsed.http) == (["127.0.0.1:1", "unix:/a"], ["off"])


WORDS = st.one_of(
    st.sampled_from([*NAMES, "--json", "--config", "--models", "--state", "--root", "--url", "check", "-", "--", "-h"]),
    st.text(max_size=12),
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(WORDS, max_size=6))
def test_no_arguments_make_the_parser_stumble(capsys, arguments):
    """It returns, or ends as argparse does."""
    code = 0
    try:
        PROGRAM.parser().parse_args(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code in {0, 2}
    capsys.readouterr()


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
def test_a_file_that_cannot_be_had_is_one_line(capsys, text):
    """Whatever the name of a configuration is."""
    code = main(["config", "--config", f"/nowhere/x{text}"])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("edge-gateway: /nowhere/x")
    assert said.err.count("\n") == 1


def test_the_environment_names_the_board(monkeypatch):
    changed = overrides(PROGRAM.parser().parse_args(["probe"]))
    monkeypatch.setenv("EDGE_GATEWAY_BOARD", "jetson-orin")
    assert changed(parse_config('[hardware]\nboard = "raspberry-pi-5"\n', "")).hardware.board == "jetson-orin"
    monkeypatch.setenv("EDGE_GATEWAY_BOARD", "orin")
    with pytest.raises(
        ConfigurationError, match=r"\[hardware\] board: unknown board 'orin'|hardware\.board: unknown board"
    ):
        changed(parse_config("", ""))


@pytest.mark.parametrize(
    ("program", "words", "close"),
    [
        ("edge-gateway", "modles", "models"),
        ("edge-gateway", "explain meter --jsn", "--json"),
        ("edge-gateway", "config chek FILE", "check"),
        ("edge-gateway", "models new model.onnx --nmae=x", "--name"),
        ("edge-gateway", "infer meter-reader --output jsn", "json"),
        ("edge-agent", "sycn", "sync"),
        ("edge-software", "swich-back", "switch-back"),
        ("edge-fleet", "rolouts", "rollouts"),
        ("edge-fleet", "keys nwe root", "new"),
    ],
)
def test_a_misspelt_word_names_the_closest_one(capsys, program, words, close):
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program].main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f'did you mean "{close}"?' in said
    assert len(said.splitlines()) == 1


def test_what_nothing_is_close_to_has_no_suggestion(capsys):
    assert exit_code(["qqq"]) == 2
    assert "did you mean" not in capsys.readouterr().err
