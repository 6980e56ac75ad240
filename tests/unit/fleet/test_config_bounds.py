"""Settings that would let a controller start and then do nothing, or fail later, are refused by their key."""

from __future__ import annotations

import pytest

from fleet.controller.config import parse_config
from gateway.common.domain.errors import ConfigurationError

IDLE = {
    "director": ("enrolment_token_h", "poll_s"),
    "serve": ("threads", "max_connections", "write_timeout_s"),
    "database": ("connections", "events_limit_rows"),
    "database.telemetry": ("age_limit_d",),
    "maintenance": ("revocation_list_h",),
}


@pytest.mark.parametrize(("table", "key"), [(table, key) for table, keys in IDLE.items() for key in keys])
def test_no_bound_may_be_zero(table: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: must be above 0") as refused:
        parse_config(f"[{table}]\n{key} = 0\n", "fleet.toml")
    assert str(refused.value).startswith("fleet.toml:2: ")


@pytest.mark.parametrize(
    "text",
    [
        "assignment_expiry_h = 0",
        "assignment_expiry_h = 1e11",
        "root_expiry_d = 1e9",
        "[authority]\nvalidity_d = 1e9",
        "[authority]\nauthority_validity_d = 1e9",
        "[scheduler]\ntick_s = 0",
        "[scheduler]\ntick_s = 61",
    ],
)
def test_times_can_be_added_to_now(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be above 0 and at most"):
        parse_config(text, "fleet.toml")


@pytest.mark.parametrize("name", ["müller.de", "a b", "", "a..b", "https://a", "-" * 64])
def test_a_name_for_the_port_is_one(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"listen\.names: .* is no host name"):
        parse_config(f'[listen]\nnames = ["{name}"]\n', "fleet.toml")


@pytest.mark.parametrize("name", ["localhost", "xn--mller-kva.de", "*.example.org", "::1", "10.0.0.7", "fleet_1"])
def test_names_and_addresses_are_taken(name: str) -> None:
    assert parse_config(f'[listen]\nnames = ["{name}"]\n', "fleet.toml").listen.names == (name,)


@pytest.mark.parametrize("url", ["fleet.example", "http://a b", "https://", "https://u:p@host", "ftp://host"])
def test_how_devices_reach_it_is_an_address(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"listen\.url: must be https://HOST"):
        parse_config(f'[listen]\nurl = "{url}"\n', "fleet.toml")
