"""Signed repository: refreshed once at one reference time, then asked for targets with their evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gateway.common.domain.assignment import Target
from gateway.common.store.errors import store_errors
from gateway.common.transfer.source import FetchError, RepositorySource
from gateway.common.trust.distrust import Distrust, Reason
from gateway.device.agent.settings import RepositorySettings

if TYPE_CHECKING:
    from tuf.api.metadata import Root, TargetFile, Targets


@dataclass(frozen=True, slots=True)
class SignedTarget:
    """Target that its owner signed, the `role` that signed it, and the evidence.

    `evidence`: metadata from the top-level targets role down to the owner's; `root`: version of the root that signs for
    the first of them.
    """

    target: TargetFile
    role: Targets
    evidence: tuple[bytes, ...]
    root: int


class SignedRepository:
    """Signed repository of one poll; call `refresh` first. `folder` is the TUF client's (`<store>/metadata`).

    `now`: reference time. `grace`: how long after their expiry documents of online keys are accepted (0 except for a
    folder without network). `floors`: the journal's; `risen_floors` returns those to record afterwards. Every method
    raises Distrust if signed bytes are refused, FetchError if data cannot be fetched, StoreError if the disk fails.
    """

    def __init__(
        self,
        folder: Path,
        source: RepositorySource,
        pinned_root: bytes,
        now: datetime,
        *,
        grace: timedelta = timedelta(0),
        floors: Mapping[str, int] | None = None,
        settings: RepositorySettings | None = None,
    ) -> None:
        from gateway.device.agent.fetch.updater import DurableUpdater

        settings = settings or RepositorySettings()
        self._name, self._folder, self._limit_bytes = source.name, folder, settings.document_limit_bytes
        with self._distrust_errors("root"):
            self._updater = DurableUpdater(
                folder, source, pinned_root, now, grace=grace, floors=floors, settings=settings
            )

    @property
    def root(self) -> Root:
        """Newest root that the pinned root leads to."""
        return self._updater.root

    @property
    def targets(self) -> Targets:
        """Top-level targets role; available after `refresh`."""
        return self._updater.targets

    def refresh(self) -> None:
        """Follow root, timestamp, snapshot and targets to their newest versions (TUF 5.3 to 5.6). Call once."""
        with self._distrust_errors("metadata"):
            self._updater.refresh()

    def expiries(self) -> dict[str, datetime]:
        """Return the expiry of each verified role."""
        return self._updater.expiries()

    def find(self, path: str) -> SignedTarget:
        """Return the target that is signed under `path`. Raise Distrust (UNSIGNED) if no role signs it."""
        with self._distrust_errors(path):
            found = self._updater.find(path)
        if found is None or len(found[2]) == 1:  # the top-level role only delegates and signs no target itself
            raise Distrust(Reason.UNSIGNED, path, f"no role of {self._name} signs it")
        return SignedTarget(*found, self.root.version)

    def read(self, found: SignedTarget) -> bytes:
        """Return the document of `found`, with length and digest checked."""
        with self._distrust_errors(found.target.path):
            return self._updater.read_target(found.target, self._limit_bytes)

    def risen_floors(self) -> dict[str, int]:
        """Return floors that the verified metadata raises. Record them in one transaction with their consequences."""
        with self._distrust_errors("floors"):
            return self._updater.risen_floors()

    @contextmanager
    def _distrust_errors(self, what: str) -> Iterator[None]:
        """Translate exceptions of tuf."""
        from tuf.api import exceptions

        reasons: Mapping[type[Exception], Reason] = {
            exceptions.ExpiredMetadataError: Reason.EXPIRED,
            exceptions.UnsignedMetadataError: Reason.FORGED,
            exceptions.BadVersionNumberError: Reason.REPLAYED,
            exceptions.LengthOrHashMismatchError: Reason.SWAPPED,
        }
        try:
            with store_errors(self._folder):
                yield
        except exceptions.DownloadHTTPError as error:
            raise cast("FetchError", error.__cause__) from None
        except exceptions.RepositoryError as error:
            reason = next((reasons[kind] for kind in type(error).__mro__ if kind in reasons), Reason.DAMAGED)
            raise Distrust(reason, f"{what} of {self._name}", f"{error!s:.300}") from error


def as_target(found: SignedTarget) -> Target:
    """Return the target as a domain value. Raise Distrust if its metadata has no SHA-256."""
    sha256 = found.target.hashes.get("sha256")
    if sha256 is None:
        raise Distrust(Reason.DAMAGED, found.target.path, "its metadata states no sha256")
    return Target(found.target.path, found.target.length, sha256)
