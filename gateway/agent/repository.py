"""The signed repository as the agent asks it: refreshed once at one reference time, then targets with their proof."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gateway.agent.settings import RepositorySettings
from gateway.agent.source import FetchError, Source
from gateway.domain.assignment import Target
from gateway.store.errors import told_as_store_error
from gateway.trust.distrust import Distrust, Reason

if TYPE_CHECKING:
    from tuf.api.metadata import Root, TargetFile, Targets


@dataclass(frozen=True, slots=True)
class Found:
    """A target that its owner signed, the `role` that did, and the proof.

    `evidence`: metadata from the top-level targets role down to the owner's; `root`: the version of the root that
    vouches for the first of them.
    """

    target: TargetFile
    role: Targets
    evidence: tuple[bytes, ...]
    root: int


class SignedRepository:
    """Make one for each poll, `refresh` it, ask it. `folder` is the TUF client's own (`<store>/metadata`).

    `now`: the reference time. `grace`: how long past their expiry documents of online keys are taken (zero but for a
    folder without network). `floors`: the journal's; `risen_floors` says what to record afterwards.
    Everything raises Distrust for signed bytes that are refused, FetchError for what could not be had, StoreError where
    the disk fails.
    """

    def __init__(
        self,
        folder: Path,
        source: Source,
        pinned_root: bytes,
        now: datetime,
        *,
        grace: timedelta = timedelta(0),
        floors: Mapping[str, int] | None = None,
        settings: RepositorySettings | None = None,
    ) -> None:
        from gateway.agent.updater import DurableUpdater

        settings = settings or RepositorySettings()
        self._name, self._folder, self._limit_bytes = source.name, folder, settings.document_limit_bytes
        with self._told("root"):
            self._updater = DurableUpdater(
                folder, source, pinned_root, now, grace=grace, floors=floors, settings=settings
            )

    @property
    def root(self) -> Root:
        """The newest root that the pinned one leads to."""
        return self._updater.root

    @property
    def targets(self) -> Targets:
        """The top-level targets role; after `refresh`."""
        return self._updater.targets

    def refresh(self) -> None:
        """Follow root, timestamp, snapshot and targets to their newest versions (TUF 5.3 to 5.6). Once."""
        with self._told("metadata"):
            self._updater.refresh()

    def expiries(self) -> dict[str, datetime]:
        """Until when each role holds that was verified."""
        return self._updater.expiries()

    def find(self, path: str) -> Found:
        """What is signed under `path`. Raises Distrust (UNSIGNED) where no role signs such a target."""
        with self._told(path):
            found = self._updater.find(path)
        if found is None or len(found[2]) == 1:  # the top-level role delegates only: alone it vouches for nothing
            raise Distrust(Reason.UNSIGNED, path, f"no role of {self._name} signs it")
        return Found(*found, self.root.version)

    def read(self, found: Found) -> bytes:
        """The document that `found` signs for: length and digest are right."""
        with self._told(found.target.path):
            return self._updater.read_target(found.target, self._limit_bytes)

    def risen_floors(self) -> dict[str, int]:
        """Floors that rise by what was verified: to be recorded in one transaction with what follows from it."""
        with self._told("floors"):
            return self._updater.risen_floors()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """tuf's exceptions in our words."""
        from tuf.api import exceptions

        reasons: Mapping[type[Exception], Reason] = {
            exceptions.ExpiredMetadataError: Reason.EXPIRED,
            exceptions.UnsignedMetadataError: Reason.FORGED,
            exceptions.BadVersionNumberError: Reason.REPLAYED,
            exceptions.LengthOrHashMismatchError: Reason.SWAPPED,
        }
        try:
            with told_as_store_error(self._folder):
                yield
        except exceptions.DownloadHTTPError as error:
            raise cast("FetchError", error.__cause__) from None
        except exceptions.RepositoryError as error:
            reason = next((reasons[kind] for kind in type(error).__mro__ if kind in reasons), Reason.DAMAGED)
            raise Distrust(reason, f"{what} of {self._name}", f"{error!s:.300}") from error


def as_target(found: Found) -> Target:
    """The same as the domain's value. Raises Distrust where its metadata states no SHA-256."""
    sha256 = found.target.hashes.get("sha256")
    if sha256 is None:
        raise Distrust(Reason.DAMAGED, found.target.path, "its metadata states no sha256")
    return Target(found.target.path, found.target.length, sha256)
