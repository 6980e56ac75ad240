"""The guide names what there is, with true defaults, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
import tomllib

from fleet.cli.parser import PROGRAM, VERBS
from fleet.controller.config import parse_config
from fleet.controller.database.place import read_place
from fleet.publisher.device_settings import check_tables
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.policy import read_policy
from gateway.common.domain.settings_layer import refused_keys

GUIDE = (Path(__file__).parents[3] / "fleet" / "README.md").read_text()


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_is_in_the_guide(verb: str) -> None:
    assert re.search(rf"\bedge-fleet {verb}\b|`{verb}`|\b{verb} add\b", GUIDE)


def test_every_setting_is_in_the_guide_with_its_default() -> None:
    written = dict(re.findall(r"^\| `([a-z_]+)` \| `([^`]*)` \|", GUIDE, re.MULTILINE))
    true = {spec.name: json.dumps(spec.default) for spec in dataclasses.fields(FleetSettings)}
    assert written == true


def test_the_policy_of_the_guide_can_be_read() -> None:
    (text,) = (block for block in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL) if '"profile_delay_h"' in block)
    assert read_policy(text.encode(), "README.md").share_percent_per_hour == 10


def test_the_settings_for_devices_of_the_guide_need_no_policy() -> None:
    (text,) = re.findall(r"^cat > site\.toml <<'END'\n(.*?)^END$", GUIDE, re.MULTILINE | re.DOTALL)
    check_tables(text, "site.toml")
    assert tomllib.loads(text)
    assert refused_keys(tomllib.loads(text), ()) == ()


def test_the_configuration_of_the_guide_can_be_read() -> None:
    parsed = [parse_config(text, "README.md") for text in re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)]
    replicas = parsed[-1]
    assert read_place(replicas.database.url, Path()).file is None
    assert replicas.blobs.s3.bucket
    assert any(config.alerts.secret_file for config in parsed)


@pytest.mark.parametrize(
    ("number", "form", "names_socket"), [(0, "pem", "server unix:{};"), (1, "xfcc", "pipe: {{path: {}}}")]
)
def test_the_configuration_behind_a_proxy_can_be_read(number: int, form: str, names_socket: str) -> None:
    text = Path(__file__).parents[3].joinpath("fleet/controller/serving/README.md").read_text()
    config = parse_config(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[number], "README.md")
    socket = config.listen.addresses[0].removeprefix("unix:")
    assert names_socket.format(socket) in text
    assert (config.serve.proxy.trusted, config.serve.proxy.certificate_form) == (("unix",), form)


def test_every_command_of_the_guide_can_be_parsed() -> None:
    lines = re.findall(r"^edge-fleet (.+?)(?: +#.*)?$", GUIDE.replace("\\\n", " "), re.MULTILINE)
    assert len(lines) >= 12
    for line in lines:
        assert PROGRAM.parser().parse_args(shlex.split(line))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_example_of_the_help_can_be_parsed(verb) -> None:
    lines = re.findall(r"edge-fleet (.+?)(?: +#.*)?$", verb.examples.replace("\\\n", " "), re.MULTILINE)
    assert lines
    for line in lines:
        assert PROGRAM.parser().parse_args(shlex.split(line.partition(" | ")[0]))


def test_device_profiles_that_examples_name_are_there() -> None:
    named = {file for verb in VERBS for file in re.findall(r"device_profiles/[a-z0-9-]+\.toml", verb.examples)}
    assert named
    assert all((Path(__file__).parents[3] / file).is_file() for file in named)
