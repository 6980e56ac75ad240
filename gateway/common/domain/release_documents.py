"""Release documents of every kind, for code that handles all of them in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT
from gateway.common.domain.release_paths import reserved_slot
from gateway.common.domain.settings_release import SettingsRelease, read_settings_release
from gateway.common.domain.signed_release import SignedRelease, read_release
from gateway.common.domain.software_release import SoftwareRelease, read_software

ReleaseDocument = SignedRelease | SoftwareRelease | SettingsRelease
_READERS: Mapping[str, Callable[[bytes], ReleaseDocument]] = {
    "": read_release,
    SOFTWARE_SLOT: read_software,
    SETTINGS_SLOT: read_settings_release,
}
"""Reader of a release's document by its reserved slot; "" for models."""


def read_release_document(path: str, content: bytes) -> ReleaseDocument:
    """Return the document of the release at `path`. Raise ValueError."""
    return _READERS[reserved_slot(path)](content)
