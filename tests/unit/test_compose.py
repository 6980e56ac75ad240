"""The compose files are valid, and agree with the image, the settings and the guide of proxies."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml

from fleet.controller.config import parse_config
from gateway.serving.config import load_config

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "packaging/compose"
BUILDER = (ROOT / "packaging/image.py").read_text()
VARIABLES = {"EDGE_GATEWAY_VERSION": "0.2.0", "POSTGRES_PASSWORD": "a", "S3_SECRET": "b"}
PROGRAMS = {"gateway": "edge-gateway", "fleet": "edge-fleet"}


def service(name: str, one: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / name / "compose.yaml").read_text())["services"][one]
    return found


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_compose_accepts_the_file(name: str) -> None:
    command = ("docker-compose", "--file", str(COMPOSE / name / "compose.yaml"), "config", "--quiet")
    done = subprocess.run(command, env={**os.environ, **VARIABLES}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unset = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "EDGE_GATEWAY_VERSION is the tag" in unset.stderr


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_no_container_has_rights(name: str) -> None:
    services = yaml.safe_load((COMPOSE / name / "compose.yaml").read_text())["services"]
    for one in services.values():
        assert (one["read_only"], one["cap_drop"]) == (True, ["ALL"])
        assert one["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_mounted_files_are_in_the_folder(name: str) -> None:
    text = (COMPOSE / name / "compose.yaml").read_text()
    named = set(re.findall(r"^ +- \./([\w.-]+):", text, re.MULTILINE))
    given = {"tls"}  # the operator's certificate
    assert named - given == {file.name for file in (COMPOSE / name).iterdir()} - {"compose.yaml"}


def test_the_gateway_listens_at_the_ports_and_keeps_its_state_in_the_volume() -> None:
    told = service("gateway", "gateway")
    settings = COMPOSE / "gateway/edge-gateway.toml"
    assert load_config(settings).auth.tokens_file == "/var/lib/edge-gateway/tokens"
    listened = set(re.findall(r'listen = \["0.0.0.0:(\d+)"\]', settings.read_text()))
    assert {port.rpartition(":")[2] for port in told["ports"]} == listened
    assert all(f'"{port}/tcp"' in BUILDER for port in listened)
    assert "state:/var/lib/edge-gateway" in told["volumes"]
    assert told["image"].startswith("edge-gateway:")


def test_the_gateway_has_the_settings_of_the_image_and_a_broker() -> None:
    image = tomllib.loads((ROOT / "packaging/image/edge-gateway.toml").read_text())
    mine = tomllib.loads((COMPOSE / "gateway/edge-gateway.toml").read_text())
    assert mine == {**image, "mqtt": {"url": "mqtt://mosquitto:1883"}}
    assert "listener 1883" in (COMPOSE / "gateway/mosquitto.conf").read_text().splitlines()


def test_the_controller_finds_its_services() -> None:
    config = parse_config((COMPOSE / "fleet/fleet.toml").read_text(), "fleet.toml")
    database = service("fleet", "database")["environment"]
    assert config.database.url == f"postgresql://{database['POSTGRES_USER']}@database/{database['POSTGRES_DB']}"
    store = " ".join(service("fleet", "s3")["command"])
    assert config.blobs.s3.endpoint == f"http://s3:{re.search(r's3.port=([0-9]+)', store)[1]}"  # type: ignore[index]
    assert service("fleet", "controller")["image"].startswith("edge-fleet:")
    health = service("fleet", "controller")["healthcheck"]["test"][-1]
    assert str(config.listen.addresses[1]) in health


def test_the_proxy_does_what_the_guide_says() -> None:
    guide = (ROOT / "fleet/controller/serving/README.md").read_text()
    block = re.search(r"```nginx\n(.*?)```", guide, re.DOTALL)
    assert block
    needed = set(re.findall(r"(?:proxy_|client_|ssl_verify|ssl_client|server unix)[^;]*;", block[1]))
    text = (COMPOSE / "fleet/nginx.conf").read_text()
    assert len(needed) > 8
    assert sorted(line for line in needed if line not in text) == []
    ports = service("fleet", "proxy")["ports"]
    assert {port.rpartition(":")[2] for port in ports} == set(re.findall(r"listen (\d+) ssl", text))
