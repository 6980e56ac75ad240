"""Download of all parts of a release into the staging folder."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.common.store.fetching import Progress, download_blob
from gateway.common.transfer.source import FetchError
from gateway.workshop.pull.manifest import ReleasePart
from gateway.workshop.pull.settings import PullSettings
from gateway.workshop.pull.source import ReleaseSource
from gateway.workshop.pull.staging import StagingFolder

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
