"""Examples of the guide can be read, and name the files that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.spec_form import read_spec, spec_document

ROOM = Path(__file__).parents[4] / "fleet/controller/rollouts"
GUIDE = (ROOM / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_specification_shown_can_be_read_and_has_every_key():
    (shown,) = blocks("json")
    document = json.loads(shown)
    assert {**document, "schema": 1} == spec_document(read_spec(document)) | {"waves": document["waves"]}


@pytest.mark.parametrize("text", [line for block in blocks("text") for line in block.splitlines()])
def test_the_queries_shown_can_be_read(text):
    assert parse(text)


def test_every_file_is_named():
    named = set(re.findall(r"`([a-z_]+)`", GUIDE))
    assert {file.stem for file in ROOM.glob("[!_]*.py")} <= named
