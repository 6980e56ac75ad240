"""Settings of the installer, and their file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gateway.common.domain.settings import VAST, read_settings, read_tables, sections
from gateway.common.log_settings import LogSettings
from gateway.common.store.text import read_text

DEFAULT_FILE = Path("/etc/edge-gateway/edge-software.toml")
"""File that is read, if it exists, when no other is given."""


@dataclass(frozen=True, slots=True)
class SoftwareSettings:
    """`[software]`: bounds of an installation, and conditions that a new version must meet."""

    store: str = "/var/lib/edge-agent"  # the agent's store; nothing that it holds is trusted
    gateway_config: str = "/etc/edge-gateway/edge-gateway.toml"  # checked by the new version before it runs
    test_user: str = "edge-gateway"  # user that the programs of a new version are tried as
    wheels_limit_bytes: int = field(default=4_294_967_296, metadata=VAST)  # 4 GiB: wheels of one version together
    keep_free_bytes: int = field(default=536_870_912, metadata=VAST)  # 512 MiB: never taken of the disk
    confirm_within_s: float = 900.0  # 15 min: for the new version to confirm; begins again with each boot
    steady_s: float = 20.0  # every unit has to run for so long without a restart

    unpacked_factor: ClassVar[float] = 4.0  # an environment takes at most that many times the size of its wheels
    build_timeout_s: ClassVar[float] = 900.0  # for each command that builds an environment
    test_timeout_s: ClassVar[float] = 120.0  # for each program that is tried in it
    unit_timeout_s: ClassVar[float] = 30.0  # for systemctl to answer
    resumptions: ClassVar[int] = 5  # starts of the installer (of the device, say) before an update is given up
    check_every_s: ClassVar[float] = 2.0  # period at which the units are checked during that time
    request_timeout_s: ClassVar[float] = 5.0  # for a client to send its request
    idle_s: ClassVar[float] = 5.0  # without work or request, then the process ends


@dataclass(frozen=True, slots=True)
class SoftwareConfig:
    """All settings of the installer."""

    software: SoftwareSettings = field(default_factory=SoftwareSettings)
    log: LogSettings = field(default_factory=LogSettings)


SECTIONS = sections(SoftwareConfig)
"""Settings dataclass by the name of its table."""


def load_config(path: Path | None) -> SoftwareConfig:
    """Return the settings of `path`, else of the default file if it exists, else the defaults.

    Raise ConfigurationError.
    """
    if path is None and not DEFAULT_FILE.is_file():
        return SoftwareConfig()
    file = path or DEFAULT_FILE
    return parse_config(read_text(file), str(file))


def parse_config(text: str, file: str) -> SoftwareConfig:
    """Build a SoftwareConfig from TOML text. Raise ConfigurationError with file, table, key and line."""
    tables = read_tables(text, file, SECTIONS)
    return SoftwareConfig(**{name: read_settings(SECTIONS[name], table) for name, table in tables.items()})
