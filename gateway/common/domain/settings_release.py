"""Release document of settings: a part of `edge-gateway.toml` that the fleet's settings role signs.

It is the repository's target `settings/<name>/<version>/release`. `<name>` is one line of versions, such as that of a
site or of a class of devices. The settings are TOML text as people wrote it; `settings_layer` says what they may set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.common.domain.assignment import SETTINGS_SLOT
from gateway.common.domain.document import read_document
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.release_form import SCHEMA, TIME_FORMAT, document_bytes, read_form, read_text, read_time
from gateway.common.domain.release_paths import reserved_path

SETTINGS_LIMIT_BYTES = 262_144
"""Largest release document that is read."""


@dataclass(frozen=True, slots=True)
class SettingsRelease:
    """`toml`: the settings; `floor`: the oldest version that devices may still install once they know this release."""

    name: str
    version: str
    floor: str
    released_at: datetime
    toml: str

    @property
    def target(self) -> str:
        """Return its path in the repository."""
        return reserved_path(SETTINGS_SLOT, self.name, self.version)


def settings_bytes(release: SettingsRelease) -> bytes:
    """Return the document that is signed, as `document_bytes` writes it."""
    document = {
        "schema": SCHEMA,
        "name": release.name,
        "version": release.version,
        "floor": release.floor,
        "released_at": release.released_at.strftime(TIME_FORMAT),
        "toml": release.toml,
    }
    return document_bytes(document)


def read_settings_release(content: bytes) -> SettingsRelease:
    """Parse a release document. Raise ValueError with the problem; unknown keys are ignored."""
    try:
        return read_form(content, SETTINGS_LIMIT_BYTES, "the settings document", _release)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _release(document: Mapping[str, Any]) -> SettingsRelease:
    toml = document["toml"]
    if not isinstance(toml, str):
        raise TypeError(f"toml is {toml!r:.80}")
    toml.encode()  # raises ValueError for half of a surrogate pair, which JSON can state and no file can hold
    release = SettingsRelease(
        name=read_text(document["name"], NAME_PATTERN),
        version=read_text(document["version"], NAME_PATTERN),
        floor=read_text(document["floor"], NAME_PATTERN),
        released_at=read_time(document["released_at"]),
        toml=toml,
    )
    read_document(toml, release.target)
    return release
