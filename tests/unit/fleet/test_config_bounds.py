"""Settings that would let a controller start and then do nothing, or fail later, are refused by their key."""

from __future__ import annotations

import pytest

from fleet.controller.config import parse_config
from gateway.common.domain.errors import ConfigurationError

IDLE = {
    "director": ("signings_at_once", "certificates_per_day", "enrolment_token_h", "poll_s", "renew_share"),
    "ingestion": ("at_once", "lines_limit", "rows_burst", "telemetry_limit_bytes"),
    "scheduler": ("devices_per_tick", "tick_s"),
    "serve": ("max_requests", "threads", "max_connections", "max_handshakes", "max_body_bytes", "body_timeout_s"),
    "serve.rates": ("device_burst", "address_burst", "handshake_burst", "device_at_once", "address_at_once"),
    "database": ("connections", "page_limit_rows", "lease_s", "tokens_limit"),
    "database.telemetry": ("batch_limit_rows", "boots_limit"),
    "maintenance": ("tick_s", "clock_leap_s", "clock_ahead_d"),
}


@pytest.mark.parametrize(("table", "key"), [(table, key) for table, keys in IDLE.items() for key in keys])
def test_no_bound_may_be_zero(table: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: must be above 0") as refused:
        parse_config(f"[{table}]\n{key} = 0\n", "fleet.toml")
    assert str(refused.value).startswith("fleet.toml:2: ")


def test_a_part_of_an_answer_that_no_replay_would_take_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"scheduler\.decisions_per_tick: must be 100 or more, not 99"):
        parse_config("[scheduler]\ndecisions_per_tick = 99\n", "fleet.toml")


@pytest.mark.parametrize(
    "text",
    [
        "assignment_expiry_h = 0",
        "assignment_expiry_h = 1e11",
        "root_expiry_d = 1e9",
        "[authority]\nvalidity_d = 1e9",
        "[authority]\nauthority_validity_d = 1e9",
        "[director]\nrenew_share = 1.5",
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
