"""A publisher of settings at a shell: checked by the gateway itself, signed by their own keys, published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulators.publisher import Publisher

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """Return a publisher whose settings are signed by two people of their own."""
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
    file.write_text("[mqtt]\nkeepalive_s = 10\n[limits]\nqueue_requests = 200\n")
    add(publisher, file)
    said = publisher.run("sign", "drafts/settings.json", "--key", "sam.pem", "--yes").stdout
    assert "    | keepalive_s = 10\n" in said
    assert "lacks 1 signature" in json.dumps(publisher.told("publish")["waiting"])
    publisher.sign("settings", "sue")
    publisher.run("publish")
    assert publisher.told("verify")["ok"]
    (document,) = (publisher.public / "targets/settings/berlin/1").iterdir()
    assert json.loads(document.read_text())["toml"] == file.read_text()
    assert "published already and never changes" in add(publisher, file, "--version", "1", code=2)


def test_keys_that_need_a_policy_are_named_once(publisher: Publisher, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("[mqtt]\nkeepalive_s = 10\nurl = 'mqtt://broker'\n")
    warning = 'mqtt.url: devices refuse these settings unless a policy of theirs permits it: "settings": ["mqtt.url"]'
    said = add(publisher, file)
    assert (said.count("mqtt.url"), f"edge-fleet: warning: {warning}\n" in said) == (2, True)  # key and example
    (publisher.folder / "drafts" / "settings.json").unlink()  # nothing waits for the tests that follow


@pytest.mark.parametrize(
    ("text", "said"),
    [("[mqtt]\nkeepalive_s = 0\n", "mqtt.keepalive_s"), ("[limits]\nqueue_request = 1\n", "limits.queue_request")],
)
def test_settings_that_the_gateway_refuses_are_not_added(
    publisher: Publisher, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "site.toml"
    file.write_text(text)
    out = add(publisher, file, code=1)
    assert (said in out, out.count("site.toml")) == (True, 1)
    assert json.loads(add(publisher, file, "--json", code=1).partition("\nedge-fleet: ")[0])["ok"] is False
    assert publisher.told("status")["drafts"] == []
