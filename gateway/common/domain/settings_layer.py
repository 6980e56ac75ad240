"""Settings of the fleet over those of the device's own file: which keys they may set, and how both are merged. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.common.domain.document import Source, parse_toml

EVERY = "*"
ALLOWED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "limits": (EVERY,),
        "trial": (EVERY,),
        "failover": (EVERY,),
        "residency": (EVERY,),
        "shares": (EVERY,),
        "log": (EVERY,),
        "selection": ("objective", "idle_before_trial_s", "threads"),
        "mqtt": (
            *("route", "keepalive_s", "session_expiry_s", "connect_timeout_s", "max_payload_bytes"),
            *("max_result_bytes", "dedup_ttl_s", "hold_s", "max_held_bytes", "journal"),
        ),
        "grpc": (
            *("max_message_bytes", "max_receiving_bytes", "max_all_waiting_bytes", "max_connections"),
            *("max_concurrent_calls", "max_open_streams", "stream_idle_s"),
            *("receive_timeout_s", "write_timeout_s", "keepalive_ms"),
            "http2",  # all constants: the check of the configuration names each
        ),
        "http": (
            *("max_body_bytes", "max_json_bytes", "max_buffered_bytes", "max_requests", "max_connections"),
            *("body_timeout_s", "write_timeout_s", "keep_alive_s"),
        ),
    }
)
"""Keys by table that signed settings may always set: routes, limits, quotas, objectives. "*": all keys of the table."""

NEVER = frozenset({"fleet", "control", "state", "pipelines"})
"""Tables that no signed settings may set: root of trust, the agent's own access, the daemon's memory of both, code."""


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """Settings of the fleet: their signed TOML text, and the release ("@settings/NAME/VERSION") for error messages."""

    written: str
    toml: str

    @property
    def source(self) -> Source:
        """Return these settings as a configuration file. Raises ConfigurationError."""
        return Source(self.written, self.toml, parse_toml(self.toml, self.written))


def refused_keys(document: Mapping[str, Any], permitted: Collection[str]) -> tuple[str, ...]:
    """Return the keys ("table.key", or the table if it has none) that `document` may not set.

    `permitted`: more keys or tables, by the device's policy.
    """
    return tuple(key for key in _keys(document) if not (_is_allowed(key) or _is_permitted(key, permitted)))


def merged(local: Mapping[str, Any], fleet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of `local` with the keys of `fleet` in place of theirs.

    A list, or a table in a table, is one value: routes of the fleet replace all routes of the device's file.
    """
    return {**local, **{name: _merged_table(local.get(name), table) for name, table in fleet.items()}}


def check_permission(key: str) -> None:
    """Raise ValueError unless a policy may permit this key ("table.key") or table."""
    table, dot, name = key.partition(".")
    if not table or (dot and not name) or "." in name or not key.replace("_", "").replace(".", "").isalnum():
        raise ValueError(f"{key!r:.80} is no setting; write TABLE.KEY, such as mqtt.url, or TABLE")
    if table in NEVER:
        raise ValueError(f"[{table}] never comes from a fleet; take it out")


def _merged_table(local: object, fleet: object) -> object:
    return {**local, **fleet} if isinstance(local, dict) and isinstance(fleet, dict) else fleet


def _keys(document: Mapping[str, Any]) -> Iterator[str]:
    for table, values in document.items():
        yield from (f"{table}.{key}" for key in values) if isinstance(values, dict) and values else (table,)


def _is_allowed(name: str) -> bool:
    table, _, key = name.partition(".")
    keys = ALLOWED.get(table, ())
    return key in keys or EVERY in keys or (not key and bool(keys))


def _is_permitted(key: str, permitted: Collection[str]) -> bool:
    table = key.partition(".")[0]
    return table not in NEVER and (key in permitted or table in permitted)
