"""The publisher's folder.

`public/` as devices read it, `drafts/` that wait for signatures, `staged/` content of drafts, `uploads/` that are not
complete, `keys/` of this publisher, `fleet.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tuf.api.metadata import TargetFile

from fleet.disk import copy_durably, locked, read_bounded, write_durably
from fleet.publisher.drafts import Draft, draft_bytes, read_draft
from fleet.publisher.publish import Publication, is_published
from fleet.publisher.repository import Published, blob_file, read_published, target_file
from fleet.publisher.settings import FleetSettings
from fleet.publisher.signing import Drafting
from fleet.publisher.software import named_files
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.release_documents import read_release_document
from gateway.common.domain.release_paths import is_release
from gateway.common.files.durable import sync_folder

Advance = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Workspace:
    """The publisher's folder, with bounds of what is read. Methods raise ConfigurationError or OSError."""

    folder: Path
    settings: FleetSettings = FleetSettings()

    @property
    def next_steps(self) -> str:
        """Return the next steps for a saved draft, for people."""
        return "edge-fleet sign DRAFT --key KEY where each key is, then edge-fleet publish"

    @property
    def public(self) -> Path:
        """Return the folder of the repository, which any web server may serve."""
        return self.folder / "public"

    @property
    def staged(self) -> Path:
        """Return the folder of content that drafts refer to, laid out as in `public`."""
        return self.folder / "staged"

    @property
    def keys(self) -> Path:
        """Return the folder of this publisher's own keys."""
        return self.folder / "keys"

    def draft_file(self, role: str) -> Path:
        """Return the file of a role's draft."""
        return self.folder / "drafts" / f"{role}.json"

    @property
    def uploads(self) -> Path:
        """Return the folder of incomplete files that are uploaded over the API."""
        return self.folder / "uploads"

    def locked(self, wait_s: float = 0.0) -> AbstractContextManager[None]:
        """Hold the folder's lock. Raise UnreachableError if another process keeps it for longer than `wait_s`."""
        return locked(self.folder, wait_s)

    def published(self) -> Published:
        """Read the published metadata, as devices do."""
        return read_published(self.public, self.settings.document_limit_bytes)

    def drafts(self) -> dict[str, Draft]:
        """Read the drafts that wait, by role."""
        files = sorted((self.folder / "drafts").glob("[!.]*.json"))
        return {draft.role: draft for draft in (self.read_draft(file) for file in files)}

    def read_draft(self, file: Path) -> Draft:
        """Read one draft from any place."""
        return read_draft(read_bounded(file, self.settings.document_limit_bytes), str(file))

    def drafting(self, now: datetime) -> Drafting:
        """Return the inputs of the next draft, without drafts that have been published."""
        published = self.published()
        waiting = {role: draft for role, draft in self.drafts().items() if not is_published(draft, published)}
        return Drafting(published, waiting, now, self.settings)

    def place(self, role: str) -> str:
        """Return the path of a role's draft, for messages."""
        return str(self.draft_file(role))

    def save(self, drafts: Iterable[Draft]) -> None:
        """Write drafts to their files."""
        for draft in drafts:
            write_durably(self.draft_file(draft.role), draft_bytes(draft))

    def discard(self, role: str) -> None:
        """Remove a role's draft. Its staged content stays."""
        self.draft_file(role).unlink()
        sync_folder(self.folder / "drafts")

    def has_blob(self, artifact: Artifact) -> bool:
        """Return whether a file of a release is staged or published, with this size."""
        places = (root / blob_file(artifact.sha256) for root in (self.public, self.staged))
        return any(place.is_file() and place.stat().st_size == artifact.size_bytes for place in places)

    def target_content(self, target: TargetFile) -> bytes:
        """Return the content of a published target. Raise ConfigurationError."""
        return read_bounded(self.public / target_file(target), self.settings.document_limit_bytes)

    def stage(self, target: TargetFile, content: bytes) -> None:
        """Store a target's content until it is published."""
        write_durably(self.staged / target_file(target), content)

    def stage_blob(self, source: Path, artifact: Artifact, advance: Advance = lambda _: None) -> None:
        """Store a file of a release until it is published."""
        if (self.public / blob_file(artifact.sha256)).exists() or (self.staged / blob_file(artifact.sha256)).exists():
            advance(artifact.size_bytes)
            return
        copy_durably(source, self.staged / blob_file(artifact.sha256), artifact.sha256, advance)

    def needed(self, targets: Sequence[TargetFile]) -> dict[str, str]:
        """Return the digest, by name, of every file that these targets need."""
        needed = {target_file(target): target.hashes["sha256"] for target in targets}
        for target in targets:
            needed |= {blob_file(file.sha256): file.sha256 for file in self._blobs(target)}
        return needed

    def content(self, targets: Sequence[TargetFile]) -> Mapping[str, str]:
        """Return the digest, by name, of every file that these targets need and `public` lacks.

        Raise ConfigurationError if one of them is not staged.
        """
        needed = self.needed(targets)
        lacking = {name: sha256 for name, sha256 in needed.items() if not (self.public / name).exists()}
        for name in lacking:
            if not (self.staged / name).exists():
                problem = "is needed by a draft and is neither there nor in public; add the release again"
                raise ConfigurationError(problem, file=str(self.staged / name))
        return lacking

    def copy(self, targets: Sequence[TargetFile], advance: Advance = lambda _: None) -> None:
        """Copy what these targets need to `public`. No device reads it before `publish`."""
        for name, sha256 in self.content(targets).items():
            copy_durably(self.staged / name, self.public / name, sha256, advance)

    def publish(self, publication: Publication) -> None:
        """Write what was planned, in its order. If it is stopped anywhere, it can be repeated."""
        self.write(publication)
        self.clear(publication)

    def write(self, publication: Publication) -> None:
        """Write what was planned, in its order. Its drafts stay until `clear`."""
        self.copy(publication.targets)
        for name, content in publication.files:
            write_durably(self.public / name, content)

    def clear(self, publication: Publication) -> None:
        """Remove drafts that have been published, and their staged files."""
        drafts = self.drafts()
        for role, draft in drafts.items():
            if is_published(draft, publication.state):
                self.draft_file(role).unlink()
        if (self.folder / "drafts").is_dir():
            sync_folder(self.folder / "drafts")
        for file in self.staged.rglob("*"):
            if file.is_file() and (self.public / file.relative_to(self.staged)).exists():
                file.unlink()

    def _blobs(self, target: TargetFile) -> tuple[Artifact, ...]:
        """Return the files that the document of a target names."""
        if not is_release(target.path):
            return ()
        name = target_file(target)
        where = next((root / name for root in (self.public, self.staged) if (root / name).exists()), self.staged / name)
        try:
            content = read_bounded(where, self.settings.document_limit_bytes)
            return named_files(read_release_document(target.path, content))
        except ValueError as error:
            raise ConfigurationError(f"{error}; add the release again", file=str(where)) from None
