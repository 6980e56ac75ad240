"""`edge-gateway token new`: what it prints is read again by the gateway, and the token is in no file."""

import json

import pytest

from gateway.cli import main
from gateway.common.domain.access import read_tokens
from gateway.common.domain.rights import Rights, Scope


def made(capsys, *options):
    assert main(["token", "new", "camera-7", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_token_and_its_line(capsys):
    said = made(capsys, "--scopes", "infer,metrics", "--models", "cam-*,door", "--expires", "2031-05-09")
    tokens = read_tokens(said["line"], "tokens")
    holder = tokens.caller(f"Bearer {said['token']}")
    assert (holder.name, said["name"]) == ("camera-7", "camera-7")
    assert holder.rights == Rights(frozenset({Scope.INFER, Scope.METRICS}), ("cam-*", "door"))
    assert said["token"] not in said["line"]
    assert len(said["token"]) >= 43
    assert said["token"] != made(capsys)["token"]


def test_a_new_token_may_ask_models_and_no_more(capsys):
    said = made(capsys)
    assert read_tokens(said["line"], "tokens").caller(f"Bearer {said['token']}").rights == Rights(
        frozenset({Scope.INFER})
    )


def test_the_printed_words(capsys):
    assert main(["token", "new", "camera-7"]) == 0
    token, line = [text for text in capsys.readouterr().out.splitlines() if text and " for " not in text]
    assert read_tokens(line, "tokens").caller(f"Bearer {token}").name == "camera-7"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["camera 7"], "NAME: must be 1 to 64 letters"),
        (["#camera"], "NAME: must be"),
        (["camera", "--scopes", "root"], "scopes= must name some of infer"),
        (["camera", "--scopes", "infer, models"], "then scopes="),
        (["camera", "--models", ","], "models= must be"),
        (["camera", "--expires", "tomorrow"], "must be a date"),
    ],
)
def test_words_that_make_none(capsys, arguments, words):
    assert main(["token", "new", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, words in err) == ("", True), err
