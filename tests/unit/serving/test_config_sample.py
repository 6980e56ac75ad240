"""The samples in packaging/ are the reference: each names every setting there is, no other, and the true default."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib

from fleet.controller import config as fleet_config
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.errors import ConfigurationError
from gateway.device.agent import config as agent_config
from gateway.device.agent.cli.common import USER
from gateway.device.agent.state.identity import DEVICE_FILE
from gateway.device.installer import settings as software_config
from gateway.serving import config as gateway_config
from gateway.serving.config import DEFAULT_GRPC, DEFAULT_HTTP, parse_config
from gateway.serving.frontends.cameras.settings import CameraSettings, SnapshotSettings

PACKAGING = Path(__file__).parents[3] / "packaging"
SETTING = re.compile(r"#(?=[a-z_]+ = |\[)")
"""A "#" directly before a name or a table: what an operator removes. Prose has a space behind it."""
PACKAGED = '[fleet]\nstore = "/var/lib/edge-agent"\n'
"""The one setting that is made with the installation: where edge-agent.service keeps its store."""
EXAMPLE = {"name", "topics", "model", "sensor", "path"}
"""Settings of a route, and of its tables, that the sample shows by example, because they have no useful default."""


@dataclass(frozen=True)
class Sample:
    """Configuration that ships, and what reads it.

    `listen`: settings that are parsed in addition to a table's dataclass; `packaged`: what it sets. `repeated`: tables
    of which there may be several.
    """

    name: str
    parse: Callable[[str, str], Any]
    sections: Mapping[str, Any]
    listen: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    packaged: str = ""
    repeated: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def shipped(self) -> str:
        return (PACKAGING / self.name).read_text(encoding="utf-8")

    @property
    def uncommented(self) -> str:
        lines = self.shipped.splitlines()
        return "\n".join(SETTING.sub("", line, count=1) if SETTING.match(line) else line for line in lines)

    @property
    def settings(self) -> set[tuple[str, str]]:
        known = {
            pair for table, make in {**self.sections, **self.repeated}.items() for pair in _documented(make, table)
        }
        return known | {(table, "listen") for table in self.listen}


GATEWAY = Sample(
    "edge-gateway-reference.toml",
    gateway_config.parse_config,
    gateway_config.SECTIONS,
    {"grpc": DEFAULT_GRPC, "http": DEFAULT_HTTP},
    PACKAGED,
    {"camera": CameraSettings},
)
AGENT = Sample("edge-agent.toml", agent_config.parse_config, agent_config.SECTIONS)
TOP = ""
"""Name of the settings above the first table, as if they were a table."""
FLEET = Sample("fleet.toml", fleet_config.parse_config, {TOP: FleetSettings, **fleet_config.SECTIONS})
SOFTWARE = Sample("edge-software.toml", software_config.parse_config, software_config.SECTIONS)
SAMPLES = (GATEWAY, AGENT, FLEET, SOFTWARE)
TABLES = [pytest.param(sample, table, id=f"{sample.name} {table}") for sample in SAMPLES for table in sample.sections]
every = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


def _plain(value: Any) -> Any:
    """Return a value as TOML would hold it; "" is how the sample writes a text that is not set."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spec.name: _plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return "" if value is None else value


def _table(config: Any, table: str) -> Any:
    """Return the settings of one table."""
    return getattr(config, table or "publisher")


def _repeated(settings: type) -> dict[str, type]:
    """Return fields that are repeated tables, with what each of them holds."""
    hints = typing.get_type_hints(settings)
    items = {name: (*typing.get_args(kind), None)[0] for name, kind in hints.items()}
    return {name: item for name, item in items.items() if isinstance(item, type) and dataclasses.is_dataclass(item)}


def _documented(settings: type, table: str) -> Iterator[tuple[str, str]]:
    """Yield every (table, key) that the settings of one table have."""
    hints, repeated = typing.get_type_hints(settings), _repeated(settings)
    for spec in dataclasses.fields(settings):
        inner = repeated.get(spec.name) or (*typing.get_args(hints[spec.name]), hints[spec.name])[0]
        if dataclasses.is_dataclass(inner):
            yield from _documented(typing.cast("type", inner), f"{table}.{spec.name}")
        else:
            yield table, spec.name


def _written(values: dict[str, Any], table: str) -> Iterator[tuple[str, str]]:
    """Yield every (table, key) of a parsed document."""
    for key, value in values.items():
        tables = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        for inner in tables:
            if isinstance(inner, dict):
                yield from _written(inner, f"{table}.{key}".lstrip("."))
            else:
                yield table, key


@every
def test_the_sample_as_shipped_changes_nothing_else(sample: Sample) -> None:
    shipped = sample.parse(sample.shipped, "")
    assert shipped == sample.parse(sample.packaged, "")


def test_the_main_file_is_one_screen_and_sets_no_more_than_the_reference() -> None:
    main = dataclasses.replace(GATEWAY, name="edge-gateway.toml")
    assert len(main.shipped.splitlines()) <= 40
    assert parse_config(main.shipped, "") == parse_config(GATEWAY.packaged, "")
    assert parse_config(main.uncommented, "") == parse_config(GATEWAY.packaged, ""), "what it shows are the defaults"
    settings = [line for line in main.shipped.splitlines() if re.match("#?[a-z_]+ = ", line)]
    assert len(settings) >= 10
    assert all(" # " in line for line in settings)


@every
def test_the_sample_names_every_setting(sample: Sample) -> None:
    missing = sample.settings - set(_written(tomllib.loads(sample.uncommented), ""))
    assert not missing, f"describe in packaging/{sample.name}: {sorted(missing)}"


@every
def test_the_sample_names_nothing_else(sample: Sample) -> None:
    unknown = set(_written(tomllib.loads(sample.uncommented), "")) - sample.settings
    assert not unknown, f"no such settings; remove from packaging/{sample.name}: {sorted(unknown)}"


@pytest.mark.parametrize(("sample", "table"), TABLES)
def test_what_the_sample_calls_a_default_is_the_default(sample: Sample, table: str) -> None:
    read, true = (_plain(_table(sample.parse(text, ""), table)) for text in (sample.uncommented, sample.packaged))
    for name in _repeated(sample.sections[table]):
        read.pop(name), true.pop(name)
    assert read == true


@every
def test_every_setting_of_the_sample_is_explained(sample: Sample) -> None:
    lines = sample.shipped.splitlines()
    mute = [line for line in lines if re.match("#?[a-z_]+ = ", line) and " # " not in line]
    assert not mute


@every
def test_a_text_that_is_not_set_may_be_written_empty(sample: Sample) -> None:
    """The sample writes "" for it: it must mean absent, not a file or a proxy without a name."""
    for table, make in sample.sections.items():
        names = [spec.name for spec in dataclasses.fields(make) if spec.type == "str | None"]
        read = _table(sample.parse(sample.uncommented, ""), table)
        assert {name: getattr(read, name) for name in names} == dict.fromkeys(names)


def test_security_that_is_written_empty_is_absent() -> None:
    from gateway.serving.config import read_security

    security = read_security(parse_config(GATEWAY.uncommented, "sample"))
    assert dataclasses.replace(security, grants=()) == read_security(parse_config("", ""))
    assert [grant.caller for grant in security.grants] == ["anonymous"]  # the example


@pytest.mark.parametrize(("table", "default"), GATEWAY.listen.items())
def test_listening_by_default_is_what_the_sample_says(table: str, default: tuple[str, ...]) -> None:
    assert tomllib.loads(GATEWAY.uncommented)[table]["listen"] == list(default)


def test_the_example_route_and_its_tables_show_true_defaults() -> None:
    (route,) = parse_config(GATEWAY.uncommented, "sample").mqtt.route
    assert route == _by_default(route)


def test_the_example_camera_shows_true_defaults() -> None:
    (camera,) = parse_config(GATEWAY.uncommented, "sample").camera
    assert camera == CameraSettings(camera.name, camera.url, camera.model, snapshot=SnapshotSettings())


def _by_default(table: Any) -> Any:
    """Return a table that is equal to `table` in what it shows by example, with defaults for all else."""
    given = {spec.name: getattr(table, spec.name) for spec in dataclasses.fields(table) if spec.name in EXAMPLE}
    repeated = {name: tuple(map(_by_default, getattr(table, name))) for name in _repeated(type(table))}
    return type(table)(**given, **repeated)


def test_gateway_agent_and_units_name_the_same_store_and_socket() -> None:
    """A device that was bootstrapped thus needs no editing."""
    daemon, agent = (
        (PACKAGING.parent / "systemd" / f"{name}.service").read_text() for name in ("edge-gateway", "edge-agent")
    )
    store = Path(gateway_config.parse_config(GATEWAY.shipped, "").fleet.store)
    assert f"ConditionPathExists={store / DEVICE_FILE}\n" in agent
    assert f"StateDirectory={store.relative_to('/var/lib')}\n" in agent
    assert f" --control unix:{agent_config.parse_config(AGENT.shipped, '').control.socket}\n" in daemon
    assert gateway_config.parse_config(GATEWAY.shipped, "").control.users == (USER,)
    assert f"User={USER}\n" in agent


def test_a_disk_larger_than_any_buffer_may_have_a_quota() -> None:
    """Bounds of what is read end at 4 GiB; what only is compared does not."""
    parsed = agent_config.parse_config("[store]\nquota_bytes = 64_000_000_000\n", "")
    assert parsed.store.quota_bytes == 64_000_000_000
    with pytest.raises(ConfigurationError, match="bytes_limit"):
        agent_config.parse_config("[spool]\nbytes_limit = 64_000_000_000\n", "")


def test_removing_a_setting_from_the_sample_would_be_noticed() -> None:
    """The check itself: it finds settings inside repeated tables too."""
    assert {("mqtt.route", "idle_expiry_s"), ("grpc", "listen"), ("log", "level")} <= GATEWAY.settings
    assert {("store", "quota_bytes"), ("fetch", "proxy"), ("trust", "lifetime_limit_d")} <= AGENT.settings
    assert {(TOP, "root_expiry_d"), ("listen", "names"), ("database.telemetry", "age_limit_d")} <= FLEET.settings
