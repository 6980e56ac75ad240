"""A publisher of settings at a shell: checked by the gateway itself, signed by their own keys, published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulators.publisher import Publisher

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """One whose settings are signed by two people of their own."""
    made = Publisher(tmp_path_factory.mktemp("publisher"))
    made.begin()
    for name in ("sam", "sue"):
        made.run("keys", "new", name)
    made.run("delegate", "--settings", "--key", "sam.pub", "sue.pub")
    made.sign("targets", "alice")
    made.run("publish")
    return made


def add(publisher: Publisher, file: Path, *options: str, code: int = 0) -> str:
    words = ("settings", "add", file, "--name", "berlin", "--edge-gateway", publisher.gateway, *options)
    done = publisher.run(*words, code=code)
    return done.stdout + done.stderr


def test_settings_that_the_gateway_accepts_are_signed_by_two_and_published(
    publisher: Publisher, tmp_path: Path
) -> None:
    file = tmp_path / "site.toml"
    file.write_text("[mqtt]\nmax_inflight = 10\n[limits]\nqueue_requests = 200\n")
    add(publisher, file)
    said = publisher.run("sign", "drafts/settings.json", "--key", "sam.pem", "--yes").stdout
    assert "    | max_inflight = 10\n" in said
    assert "lacks 1 signature" in json.dumps(publisher.told("publish")["waiting"])
    publisher.sign("settings", "sue")
    publisher.run("publish")
    assert publisher.told("verify")["ok"]
    (document,) = (publisher.public / "targets/settings/berlin/1").iterdir()
    assert json.loads(document.read_text())["toml"] == file.read_text()
    assert "published already and never changes" in add(publisher, file, "--version", "1", code=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [("[mqtt]\nmax_inflight = 0\n", "mqtt.max_inflight"), ("[limits]\nqueue_request = 1\n", "limits.queue_request")],
)
def test_settings_that_the_gateway_refuses_are_not_added(
    publisher: Publisher, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "site.toml"
    file.write_text(text)
    assert said in add(publisher, file, code=1)
    assert publisher.told("status")["drafts"] == []
