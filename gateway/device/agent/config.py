"""Configuration of the agent: one TOML file, whose tables are read into the dataclasses that declare them.

The commented sample `packaging/edge-agent.toml` is the reference; a test loads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.probation import ProbationSettings
from gateway.common.domain.settings import read_settings, read_tables, sections
from gateway.common.domain.settings_trial import SettingsTrialSettings
from gateway.common.log_settings import LogSettings
from gateway.common.store.settings import JournalSettings, SpoolSettings, StoreSettings
from gateway.common.store.text import read_text
from gateway.common.transfer.settings import FetchSettings
from gateway.common.trust.settings import TrustSettings
from gateway.device.agent.settings import (
    AgentSettings,
    ControlClientSettings,
    DiagnosticsSettings,
    InstallerSettings,
    ReportSettings,
    RepositorySettings,
    WakeClientSettings,
)

DEFAULT_FILE = Path("/etc/edge-gateway/edge-agent.toml")
"""File that is read, if it exists, when no other is given."""
DEVICE_FILE = "device.json"
"""File in the store with the device's identity. Its presence means that bootstrap is complete."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All settings of an agent. `file` is their source, "" for the defaults."""

    file: str = ""
    agent: AgentSettings = field(default_factory=AgentSettings)
    control: ControlClientSettings = field(default_factory=ControlClientSettings)
    installer: InstallerSettings = field(default_factory=InstallerSettings)
    fetch: FetchSettings = field(default_factory=FetchSettings)
    repository: RepositorySettings = field(default_factory=RepositorySettings)
    trust: TrustSettings = field(default_factory=TrustSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    probation: ProbationSettings = field(default_factory=ProbationSettings)
    settings: SettingsTrialSettings = field(default_factory=SettingsTrialSettings)
    telemetry: ReportSettings = field(default_factory=ReportSettings)
    diagnostics: DiagnosticsSettings = field(default_factory=DiagnosticsSettings)
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    wake: WakeClientSettings = field(default_factory=WakeClientSettings)
    log: LogSettings = field(default_factory=LogSettings)


SECTIONS = sections(AgentConfig)
"""Settings dataclass by the name of its table."""


def load_config(path: Path | None) -> AgentConfig:
    """Return the settings of `path`, else of the default file if it exists, else the defaults.

    Raise ConfigurationError.
    """
    if path is None and not DEFAULT_FILE.is_file():
        return AgentConfig()
    file = path or DEFAULT_FILE
    return parse_config(read_text(file), str(file))


def parse_config(text: str, file: str) -> AgentConfig:
    """Build an AgentConfig from TOML text. Raise ConfigurationError with file, table, key and line."""
    tables = read_tables(text, file, SECTIONS)
    built = {name: read_settings(SECTIONS[name], table) for name, table in tables.items()}
    return AgentConfig(file=file, **built)


def state_folder(named: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return `--state`, else $STATE_DIRECTORY, else $XDG_STATE_HOME/edge-agent."""
    if named:
        return Path(named)
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    home = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(home) / "edge-agent"


def check_bootstrapped(folder: Path) -> None:
    """Raise ConfigurationError if the device was neither bootstrapped nor enrolled."""
    if not (folder / DEVICE_FILE).exists():
        problem = "holds no device; let `edge-fleet bootstrap` write one, then run edge-agent bootstrap DIR (EG-801)"
        raise ConfigurationError(problem, file=str(folder))
