"""Release document of settings: a part of `edge-gateway.toml` that the fleet's settings role signs.

It is the repository's target `settings/<name>/<version>/release`. `<name>` is one line of versions, such as that of a
site or of a class of devices. The settings are TOML text as people wrote it; `settings_layer` says what they may set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.domain.assignment import SETTINGS_SLOT
from gateway.domain.document import read_document
from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest_toml import NAME_PATTERN
from gateway.domain.release_paths import reserved_path
from gateway.domain.signed_release import TIME_FORMAT

SCHEMA = 1
SLOT = SETTINGS_SLOT
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
        return reserved_path(SLOT, self.name, self.version)


def settings_bytes(release: SettingsRelease) -> bytes:
    """Return the document that is signed: JSON, UTF-8, keys sorted, ended by a newline."""
    document = {
        "schema": SCHEMA,
        "name": release.name,
        "version": release.version,
        "floor": release.floor,
        "released_at": release.released_at.strftime(TIME_FORMAT),
        "toml": release.toml,
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def read_settings_release(content: bytes) -> SettingsRelease:
    """Parse a release document. Raises ValueError that says what is wrong; unknown keys are ignored."""
    if len(content) > SETTINGS_LIMIT_BYTES:
        raise ValueError(f"the settings have {len(content)} bytes, at most {SETTINGS_LIMIT_BYTES} are read")
    try:
        document = json.loads(content)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r:.40} is not known, {SCHEMA} is")
        return _release(document)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the settings are damaged: {type(error).__name__} {error!s:.200}") from None
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _release(document: Mapping[str, Any]) -> SettingsRelease:
    toml = document["toml"]
    if not isinstance(toml, str):
        raise TypeError(f"toml is {toml!r:.80}")
    release = SettingsRelease(
        name=_text(document["name"], NAME_PATTERN),
        version=_text(document["version"], NAME_PATTERN),
        floor=_text(document["floor"], NAME_PATTERN),
        released_at=datetime.strptime(document["released_at"], TIME_FORMAT).replace(tzinfo=UTC),
        toml=toml,
    )
    read_document(toml, release.target)
    return release


def _text(value: Any, pattern: re.Pattern[str]) -> str:
    if not (isinstance(value, str) and pattern.fullmatch(value)):
        raise ValueError(f"{value!r:.80} does not match {pattern.pattern}")
    return value
