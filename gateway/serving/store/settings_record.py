"""File `fleet-settings.json` in the daemon's state: the fleet's settings that are committed, and those on trial.

Only the daemon writes it, after it has verified the signatures: its start needs neither the agent's store nor TUF.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.release_paths import parse_path
from gateway.common.domain.settings_layer import SettingsLayer
from gateway.common.domain.settings_release import SETTINGS_LIMIT_BYTES
from gateway.common.files import durable
from gateway.common.store.errors import DamagedError, StoreError, store_errors
from gateway.common.store.roots import read_bounded

FILE = "fleet-settings.json"
SCHEMA = 1
RECORD_LIMIT_BYTES = 8 * SETTINGS_LIMIT_BYTES
"""Largest file that is read: two releases, whose characters beyond ASCII take up to 3 times their bytes in JSON."""
REASON_LIMIT_CHARS = 1000
"""Longest reason that is kept; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """One release of settings: its path in the repository, the digest of the signed document, and its TOML text."""

    target: str
    sha256: str
    toml: str

    @property
    def layer(self) -> SettingsLayer:
        """Return the settings to be laid over the device's own."""
        return SettingsLayer(parse_path(self.target).written, self.toml)


@dataclass(frozen=True, slots=True)
class FailedSettings:
    """The last release that was taken back, and the reason."""

    target: str
    sha256: str
    reason: str


@dataclass(frozen=True, slots=True)
class SettingsRecord:
    """Content of the file. `trial` counts for one life of the process only."""

    committed: StoredSettings | None = None
    trial: StoredSettings | None = None
    failed: FailedSettings | None = None

    def begun(self, settings: StoredSettings) -> SettingsRecord:
        """Return the record of a trial that begins."""
        return replace(self, trial=settings, failed=None)

    def confirmed(self) -> SettingsRecord:
        """Return the record after the trial is committed."""
        return SettingsRecord(committed=self.trial or self.committed)

    def taken_back(self, reason: str) -> SettingsRecord:
        """Return the record after the trial is given up; the same record if there is no trial."""
        if self.trial is None:
            return self
        failed = FailedSettings(self.trial.target, self.trial.sha256, reason[:REASON_LIMIT_CHARS])
        return SettingsRecord(self.committed, None, failed)


def read_record(folder: Path) -> SettingsRecord:
    """Read the record in `folder`; an empty one if there is no file. Raises StoreError."""
    file = folder / FILE
    try:
        content = read_bounded(file, RECORD_LIMIT_BYTES)
    except StoreError as error:
        if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
            return SettingsRecord()
        raise
    try:
        return _parsed(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"damaged: {type(error).__name__} {error!s:.200}; remove it: the fleet sends its settings again"
        raise DamagedError(problem, file=file) from None


def write_record(folder: Path, record: SettingsRecord) -> None:
    """Replace the record in `folder`, atomically and durably. Raises StoreError; then the old file is unchanged."""
    content = json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1, sort_keys=True) + "\n"
    with store_errors(folder / FILE):
        durable.write_file(folder / FILE, content.encode())


def _parsed(content: bytes) -> SettingsRecord:
    if len(content) > RECORD_LIMIT_BYTES:
        raise ValueError(f"it has more than {RECORD_LIMIT_BYTES} bytes")
    document = json.loads(content)
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r:.40} is not known, {SCHEMA} is")
    failed = document["failed"]
    return SettingsRecord(
        committed=_stored(document["committed"]),
        trial=_stored(document["trial"]),
        failed=FailedSettings(*(str(failed[name]) for name in ("target", "sha256", "reason"))) if failed else None,
    )


def _stored(document: Mapping[str, Any] | None) -> StoredSettings | None:
    if document is None:
        return None
    stored = StoredSettings(*(str(document[name]) for name in ("target", "sha256", "toml")))
    parse_path(stored.target)
    if not DIGEST_PATTERN.fullmatch(stored.sha256):
        raise ValueError(f"sha256 is {stored.sha256!r:.80}, no digest")
    return stored
