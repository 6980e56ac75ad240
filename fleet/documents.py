"""Release documents of models and of software, for code that handles both in the same way."""

from __future__ import annotations

from fleet.releases import model_files
from fleet.software import software_files
from gateway.domain.assignment import SOFTWARE_SLOT
from gateway.domain.manifest import Artifact
from gateway.domain.release_paths import reserved_slot
from gateway.domain.signed_release import SignedRelease, read_release
from gateway.domain.software_release import SoftwareRelease, read_software

ReleaseDocument = SignedRelease | SoftwareRelease


def read_document(path: str, content: bytes) -> ReleaseDocument:
    """Return the document of the release at `path`. Raises ValueError."""
    return read_software(content) if reserved_slot(path) == SOFTWARE_SLOT else read_release(content)


def named_files(release: ReleaseDocument) -> tuple[Artifact, ...]:
    """Return every file that a release names, each digest once."""
    return software_files(release) if isinstance(release, SoftwareRelease) else model_files(release)
