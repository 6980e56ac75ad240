"""Settings that a fleet may set, and how they are laid over the device's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings_layer import (
    ALLOWED,
    EVERY,
    NEVER,
    SettingsLayer,
    check_permission,
    merged,
    refused_keys,
)
from gateway.serving.config import SECTIONS, parse_config

POLICY_ONLY = {
    "gateway": "*",
    "isolation": "*",
    "models": "*",
    "auth": "*",
    "tls": "*",
    "shared_memory": "*",
    "hardware": "*",
    "library": "*",
    "selection": {"require"},
    "mqtt": {
        "url",
        "protocol",
        "broker",
        "username",
        "username_file",
        "password_file",
        "ca",
        "cert",
        "key",
        "response_prefixes",
        "publish_topics",
        "home_assistant",
    },
    "grpc": {"unix_socket_mode", "reflection"},
    "http": {"hosts", "cors_origins", "unix_socket_mode"},
}
"""Settings that need a policy; `listen` of grpc and http is no field of a dataclass."""


def layer(toml: str) -> SettingsLayer:
    return SettingsLayer("@settings/berlin/3", toml)


@pytest.mark.parametrize("table", sorted(SECTIONS))
def test_every_setting_is_classified(table: str) -> None:
    """A new setting is a decision: a fleet may always set it, only with a policy, or never."""
    names = {spec.name for spec in dataclasses.fields(SECTIONS[table])}
    allowed = names if EVERY in ALLOWED.get(table, ()) else names & set(ALLOWED.get(table, ()))
    held = POLICY_ONLY.get(table, set())
    by_policy = names if held == "*" else set(held)
    never = names if table in NEVER else set()
    assert allowed | by_policy | never == names
    assert len(allowed) + len(by_policy) + len(never) == len(names)
    assert set(ALLOWED.get(table, ())) - {EVERY} <= names


CASES: tuple[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]], ...] = (
    ({"limits": {"queue_requests": 8}, "selection": {"objective": "energy"}}, (), ()),
    ({"mqtt": {"route": [], "url": "mqtt://x"}}, (), ("mqtt.url",)),
    ({"mqtt": {"url": "mqtt://x"}}, ("mqtt.url",), ()),
    ({"mqtt": {"url": "mqtt://x"}}, ("mqtt",), ()),
    ({"tls": {}}, (), ("tls",)),
    ({"fleet": {"unsigned": True}}, ("fleet", "fleet.unsigned"), ("fleet.unsigned",)),
    ({"control": {"users": ["x"]}}, ("control",), ("control.users",)),
    ({"grpc": {"listen": ["0.0.0.0:1"]}}, (), ("grpc.listen",)),
    ({"grpc": {"listen": ["0.0.0.0:1"]}}, ("http.listen",), ("grpc.listen",)),
    ({"nonsense": {"a": 1}}, (), ("nonsense.a",)),
    ({"limits": 3}, (), ()),
    ({"tls": 3}, (), ("tls",)),
)


@pytest.mark.parametrize(("document", "permitted", "refused"), CASES)
def test_what_is_refused(document: dict[str, Any], permitted: tuple[str, ...], refused: tuple[str, ...]) -> None:
    assert refused_keys(document, permitted) == refused


def test_keys_replace_keys_and_lists_replace_lists() -> None:
    local = {"mqtt": {"url": "mqtt://a", "route": [1, 2]}, "log": {"level": "info"}}
    assert merged(local, {"mqtt": {"route": [3]}, "limits": {"drain_s": 9}}) == {
        "mqtt": {"url": "mqtt://a", "route": [3]},
        "log": {"level": "info"},
        "limits": {"drain_s": 9},
    }


def test_a_configuration_with_settings_of_the_fleet() -> None:
    text = '[limits]\ndrain_s = 7\nqueue_requests = 5\n[mqtt]\nurl = "mqtt://here"\n'
    config = parse_config(text, "local.toml", layer("[limits]\nqueue_requests = 8\n"))
    assert (config.limits.drain_s, config.limits.queue_requests, config.mqtt.url) == (7, 8, "mqtt://here")
    off = parse_config(f"{text}[fleet]\nsettings = false\n", "local.toml", layer("[limits]\nqueue_requests = 8\n"))
    assert off.limits.queue_requests == 5


@pytest.mark.parametrize(
    ("local", "fleet", "named"),
    [
        ("", "[limits]\ndrain_s = -1\n", "@settings/berlin/3:2: limits.drain_s"),
        ("", "[limits]\nnonsense = 1\n", "@settings/berlin/3:2: limits.nonsense"),
        ("", "[[mqtt.route]]\nname = 1\n", "@settings/berlin/3:2: mqtt"),
        ("[limits]\ndrain_s = -1\n", "[limits]\nqueue_requests = 8\n", "local.toml:2: limits.drain_s"),
        (
            "[grpc]\nmax_receiving_bytes = 100_000_000\n[shares]\ncaller_percent = 90\n",
            "[shares]\ncaller_percent = 50\n",
            "@settings/berlin/3:2: shares",
        ),
        ("", "[limits\n", "@settings/berlin/3:"),
    ],
)
def test_an_error_names_whose_setting_it_is(local: str, fleet: str, named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_config(local, "local.toml", layer(fleet))
    assert str(refused.value).startswith(named)


@pytest.mark.parametrize("key", ["", "mqtt.", ".url", "a.b.c", "fleet", "control.users", "mqtt url"])
def test_what_a_policy_cannot_permit(key: str) -> None:
    with pytest.raises(ValueError, match=r"setting|never"):
        check_permission(key)
    check_permission("mqtt.url")
    check_permission("tls")
