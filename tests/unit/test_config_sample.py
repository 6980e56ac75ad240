"""packaging/edge-gateway.toml is the reference: it names every setting there is, no other, and the true default."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import DEFAULT_GRPC, DEFAULT_HTTP, SECTIONS, Config, parse_config

SAMPLE = Path(__file__).parents[2] / "packaging" / "edge-gateway.toml"
SETTING = re.compile(r"#(?=[a-z_]+ = |\[)")
"""A "#" directly before a name or a table: what an operator removes. Prose has a space behind it."""
EXAMPLE = {"name", "topics", "model", "sensor"}
"""Settings of a route that the sample shows by example, because they have no useful default."""
LISTEN = {"grpc": DEFAULT_GRPC, "http": DEFAULT_HTTP}
"""Settings that are parsed beside their table's dataclass."""


def _shipped() -> str:
    return SAMPLE.read_text(encoding="utf-8")


def _uncommented() -> str:
    return "\n".join(
        SETTING.sub("", line, count=1) if SETTING.match(line) else line for line in _shipped().splitlines()
    )


def _plain(value: Any) -> Any:
    """As TOML would hold it; "" is how the sample writes a text that is not set."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spec.name: _plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return "" if value is None else value


def _repeated(settings: type) -> dict[str, type]:
    """Fields that are repeated tables, with what each of them holds."""
    hints = typing.get_type_hints(settings)
    items = {name: (*typing.get_args(kind), None)[0] for name, kind in hints.items()}
    return {name: item for name, item in items.items() if isinstance(item, type) and dataclasses.is_dataclass(item)}


def _documented(settings: type, table: str) -> Iterator[tuple[str, str]]:
    """Every (table, key) that the settings of one table have."""
    hints, repeated = typing.get_type_hints(settings), _repeated(settings)
    for spec in dataclasses.fields(settings):
        inner = repeated.get(spec.name) or hints[spec.name]
        if dataclasses.is_dataclass(inner):
            yield from _documented(typing.cast("type", inner), f"{table}.{spec.name}")
        else:
            yield table, spec.name


def _written(values: dict[str, Any], table: str) -> Iterator[tuple[str, str]]:
    """Every (table, key) of a parsed document."""
    for key, value in values.items():
        tables = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        for inner in tables:
            if isinstance(inner, dict):
                yield from _written(inner, f"{table}.{key}".lstrip("."))
            else:
                yield table, key


def _settings() -> set[tuple[str, str]]:
    known = {pair for table, make in SECTIONS.items() for pair in _documented(typing.cast("type", make), table)}
    return known | {(table, "listen") for table in LISTEN}


def test_the_sample_as_shipped_changes_nothing() -> None:
    assert dataclasses.replace(parse_config(_shipped(), "sample"), file="") == parse_config("", "")


def test_the_sample_names_every_setting() -> None:
    missing = _settings() - set(_written(tomllib.loads(_uncommented()), ""))
    assert not missing, f"describe in packaging/edge-gateway.toml: {sorted(missing)}"


def test_the_sample_names_nothing_else() -> None:
    unknown = set(_written(tomllib.loads(_uncommented()), "")) - _settings()
    assert not unknown, f"no such settings; remove from packaging/edge-gateway.toml: {sorted(unknown)}"


@pytest.mark.parametrize("table", SECTIONS)
def test_what_the_sample_calls_a_default_is_the_default(table: str) -> None:
    read, true = (_plain(getattr(config, table)) for config in (parse_config(_uncommented(), "sample"), Config()))
    for name in _repeated(typing.cast("type", SECTIONS[table])):
        read.pop(name), true.pop(name)
    assert read == true


@pytest.mark.parametrize(("table", "default"), LISTEN.items())
def test_listening_by_default_is_what_the_sample_says(table: str, default: tuple[str, ...]) -> None:
    assert tomllib.loads(_uncommented())[table]["listen"] == list(default)


def test_the_example_route_shows_true_defaults() -> None:
    (route,) = parse_config(_uncommented(), "sample").mqtt.route
    true = {spec.name: _plain(spec.default) for spec in dataclasses.fields(route) if spec.name not in EXAMPLE}
    assert {name: value for name, value in _plain(route).items() if name not in EXAMPLE} == true


def test_every_setting_of_the_sample_is_explained() -> None:
    mute = [line for line in _shipped().splitlines() if SETTING.match(line) and " = " in line and "  # " not in line]
    assert not mute


def test_a_text_that_is_not_set_may_be_written_empty() -> None:
    """The sample writes "" for it, so the gateway must take "" as absent, not as a file's name."""
    from gateway.config import read_security

    security = read_security(parse_config(_uncommented(), "sample"))
    assert security == read_security(parse_config("", ""))


def test_removing_a_setting_from_the_sample_would_be_noticed() -> None:
    """The check itself: it finds settings inside repeated tables too."""
    assert {("mqtt.route", "idle_expiry_s"), ("grpc", "listen"), ("log", "level")} <= _settings()
