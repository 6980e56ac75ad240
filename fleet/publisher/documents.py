"""Files that a release document of any kind names."""

from __future__ import annotations

from fleet.publisher.releases import model_files
from fleet.publisher.software import software_files
from gateway.domain.manifest import Artifact
from gateway.domain.release_documents import ReleaseDocument
from gateway.domain.settings_release import SettingsRelease
from gateway.domain.software_release import SoftwareRelease


def named_files(release: ReleaseDocument) -> tuple[Artifact, ...]:
    """Return every file that a release names, each digest once."""
    if isinstance(release, SettingsRelease):
        return ()
    return software_files(release) if isinstance(release, SoftwareRelease) else model_files(release)
