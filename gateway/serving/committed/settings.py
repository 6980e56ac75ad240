"""Settings of signed releases on this device, and of unsigned ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SignedReleaseSettings:
    """`[fleet]`: signed releases that the update agent (edge-agent) keeps on this device."""

    store: str = ""  # the agent's store, which this gateway only reads; "": this device is part of no fleet
    root: str = ""  # the root of trust that this device was given; "": root.json in the store
    unsigned: bool = True  # whether models in [models] dir, which are not signed, may serve
    settings: bool = True  # whether signed settings of the fleet override this file
    verify_deadline_s: ClassVar[float] = 60.0  # time for the process that verifies all signatures
    retry_s: ClassVar[float] = 30.0  # pause before a store that could not be read or verified is tried again

    def __post_init__(self) -> None:
        """Refuse a root without a store, and relative paths. Raise ConfigurationError (table fleet)."""
        if self.root and not self.store:
            raise ConfigurationError("needs store as well", table="fleet", key="root")
        for key in ("store", "root"):
            if (value := getattr(self, key)) and not Path(value).is_absolute():
                raise ConfigurationError(f"must be an absolute path, not {value!r:.200}", table="fleet", key=key)

    @property
    def folder(self) -> Path:
        """Path of the store."""
        return Path(self.store)

    @property
    def root_file(self) -> Path:
        """Path of the root of trust."""
        return Path(self.root) if self.root else self.folder / "root.json"
