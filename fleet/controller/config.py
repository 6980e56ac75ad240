"""`fleet.toml`: the publisher's settings at its top, then a table for each package. All of it is optional."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fleet.controller.access import AccessSettings
from fleet.controller.authority.settings import AuthoritySettings
from fleet.controller.blobs.settings import BlobSettings
from fleet.controller.control.settings import (
    ChangesSettings,
    ControllerSettings,
    DirectorSettings,
    DraftSettings,
    IntakeSettings,
    MaintenanceSettings,
    RequestSettings,
    SchedulerSettings,
)
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.monitoring.settings import AlertSettings, MetricsSettings, OtlpSettings, WakeBrokerSettings
from fleet.controller.serving.settings import ListenSettings, ServingSettings
from fleet.disk import read_bounded
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.document import read_document
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings import read_settings, sections, take_tables

SETTINGS_FILE = "fleet.toml"


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """`publisher` holds the keys above the first table."""

    publisher: FleetSettings = FleetSettings()
    listen: ListenSettings = field(default_factory=ListenSettings)
    serve: ServingSettings = field(default_factory=ServingSettings)
    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    authority: AuthoritySettings = field(default_factory=AuthoritySettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    changes: ChangesSettings = field(default_factory=ChangesSettings)
    drafts: DraftSettings = field(default_factory=DraftSettings)
    blobs: BlobSettings = field(default_factory=BlobSettings)
    director: DirectorSettings = field(default_factory=DirectorSettings)
    ingestion: IntakeSettings = field(default_factory=IntakeSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    wake: WakeBrokerSettings = field(default_factory=WakeBrokerSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    otlp: OtlpSettings = field(default_factory=OtlpSettings)

    @property
    def control(self) -> ControllerSettings:
        """The tables of `fleet.controller.control`."""
        return ControllerSettings(
            self.director, self.ingestion, self.scheduler, self.maintenance, self.access, self.requests, self.drafts
        )


SECTIONS = sections(FleetConfig)
"""Settings dataclass by the name of its table."""


def load_config(folder: Path) -> FleetConfig:
    """Read `fleet.toml` of the publisher's folder; return the defaults if there is none. Raise ConfigurationError."""
    file = folder / SETTINGS_FILE
    if not file.exists():
        return FleetConfig()
    content = read_bounded(file, FleetSettings().document_limit_bytes)
    try:
        return parse_config(content.decode(), str(file))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", file=str(file)) from None


def parse_config(text: str, file: str) -> FleetConfig:
    """Build it from TOML text. Raises ConfigurationError naming file, table, key and line."""
    top = read_document(text, file)
    built = {name: read_settings(SECTIONS[name], table) for name, table in take_tables(top, SECTIONS).items()}
    return FleetConfig(read_settings(FleetSettings, top), **built)
