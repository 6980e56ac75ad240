"""One pull: download, verify, unpack, check, and only then move into the model directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.store.fetching import Progress, download_blob
from gateway.common.transfer.source import FetchError
from gateway.workshop.pull.manifest import ReleasePart
from gateway.workshop.pull.placing import (
    PullRecord,
    ReleaseName,
    check_release,
    find_pulled,
    make_release,
    move_release,
)
from gateway.workshop.pull.reference import OciReference, Reference
from gateway.workshop.pull.settings import PullSettings
from gateway.workshop.pull.source import ReleaseSource
from gateway.workshop.pull.sources import PullAccess, open_file, open_registry
from gateway.workshop.pull.staging import StagingFolder, staging

CHANGED = 412
"""Status of a source that is another one than `If-Match` names (RFC 9110, 15.5.13)."""


def download_parts(
    source: ReleaseSource, folder: StagingFolder, settings: PullSettings, progress: Progress
) -> tuple[ReleasePart, ...]:
    """Return the parts after all of them are in `folder`, with the right digests. Unfinished downloads are continued.

    If the source changes, it begins again, a few times. Raise FetchError, ConfigurationError, SpaceError, StoreError.
    """
    for restarts_left in reversed(range(settings.restarts + 1)):
        parts = source.parts()
        check_size(parts, settings.bytes_limit)
        try:
            total_bytes, before_bytes = sum(part.size_bytes for part in parts), 0
            for part in parts:
                _download(source, part, folder, _shifted(progress, before_bytes, total_bytes))
                before_bytes += part.size_bytes
                progress(before_bytes, total_bytes)
        except FetchError as error:
            if error.status != CHANGED or not restarts_left:
                raise
            continue
        break
    return parts


def check_size(parts: Sequence[ReleasePart], limit_bytes: int) -> None:
    """Raise FetchError if the parts have more than `limit_bytes` together."""
    wanted = sum(part.size_bytes for part in parts)
    if wanted > limit_bytes:
        raise FetchError(
            f"the release has {wanted} bytes, at most {limit_bytes} are pulled; raise it with --limit-bytes", final=True
        )


def _shifted(progress: Progress, before_bytes: int, total_bytes: int) -> Progress:
    """Return a callback for one part that reports the progress of all of them."""
    return lambda here_bytes, _: progress(before_bytes + here_bytes, total_bytes)


def _download(source: ReleaseSource, part: ReleasePart, folder: StagingFolder, progress: Progress) -> None:
    blobs = folder.blobs
    if blobs.has(part.digest, part.size_bytes) and blobs.verify(part.digest):
        return
    blobs.discard(part.digest)
    folder.begin(part, source.etag(part))
    found = download_blob(blobs, part.digest, part.size_bytes, lambda receiver: source.copy(part, receiver), progress)
    if found is None:
        named = part.name or f"the {part.archive} archive"
        problem = f"{named} is not what was pinned: what came has another digest than sha256:{part.digest}"
        raise FetchError(f"{problem}; nothing of it is kept. Ask its publisher for the right digest", final=True)


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Request for a pull: its source and its destination. `accept_tag`: a tag without a digest is accepted."""

    reference: Reference
    models: Path
    name: str = ""
    version: str = ""
    accept_tag: bool = False

    @property
    def wanted(self) -> ReleaseName:
        """Name and version that the release gets."""
        return ReleaseName(self.name, self.version, self.reference.name)


@dataclass(frozen=True, slots=True)
class PulledRelease:
    """Result of a pull. `digest`: in hex, the pin. `is_new`: False if it was there before. `size_bytes`: sent."""

    folder: Path
    digest: str
    is_new: bool
    size_bytes: int = 0


def pull_release(request: PullRequest, access: PullAccess, progress: Progress) -> PulledRelease:
    """Pull a release into the model directory. Raise ConfigurationError, FetchError, ArchiveError, StoreError.

    An interrupted pull leaves its downloads in the staging folder, and nothing else; the next one continues them.
    """
    source, digest = _opened(request, access)
    with staging(request.models, access.settings) as folder:
        if found := find_pulled(request.models, digest, request.wanted):
            return PulledRelease(found, digest, is_new=False)
        parts = download_parts(source, folder, access.settings, progress)
        target = _placed(request, digest, parts, folder, access.settings)
        for part in parts:
            folder.forget(part)
    return PulledRelease(target, digest, is_new=True, size_bytes=sum(part.size_bytes for part in parts))


def _placed(
    request: PullRequest, digest: str, parts: Sequence[ReleasePart], folder: StagingFolder, settings: PullSettings
) -> Path:
    """Return the folder of the release in the model directory; what was made on the way is removed in any case."""
    record = PullRecord(str(request.reference), digest)
    try:
        made = make_release(folder, parts, request.wanted, record, settings)
        check_release(made, settings.library)
        return move_release(made, request.models)
    finally:
        folder.clear()


def _opened(request: PullRequest, access: PullAccess) -> tuple[ReleaseSource, str]:
    """Return the source and the digest that vouches for it."""
    reference = request.reference
    if not isinstance(reference, OciReference):
        return open_file(reference, access), reference.digest
    if not reference.digest and not request.accept_tag:
        problem = f"{reference} is not pinned: a tag can be moved; write @sha256:… behind it"
        raise ConfigurationError(f"{problem}, or accept it once with --accept-tag, which prints the digest")
    registry = open_registry(reference, access)
    return registry, registry.resolve()
