"""Every signature and every byte of what is committed, checked without network and without a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway.agent.storage import Storage
from gateway.domain.activation import Activation, Installed
from gateway.store.errors import DamagedError, StoreError
from gateway.store.plain import file_digest
from gateway.store.roots import read_roots
from gateway.trust.chain import Chain
from gateway.trust.distrust import Distrust
from gateway.trust.settings import TrustSettings


@dataclass(frozen=True, slots=True)
class Checked:
    """`what` was checked (a slot, a previous release, a file), its path; `problem` "": all is well."""

    what: str
    target: str
    problem: str


class Verification:
    """Of one store, against the root that was pinned."""

    def __init__(self, storage: Storage, pinned: bytes, settings: TrustSettings) -> None:
        """Raises StoreError where the roots cannot be read."""
        self._storage, self._limit_bytes = storage, settings.metadata_limit_bytes
        roots = read_roots(storage.folder, settings.metadata_limit_bytes, settings.roots_limit)
        self._chain = Chain(pinned, roots, self._blob, settings)

    def run(self) -> tuple[Checked, ...]:
        """One line for each committed and previous release, profile and policy. Raises StoreError for active.json."""
        active = self._storage.active()
        parts = (("committed", active.slots), ("previous", active.previous))
        releases = [
            self._checked(f"{what} {slot}", activation.target, partial(self._release, activation))
            for what, part in parts
            for slot, activation in part.items()
        ]
        files = [self._checked("file", file.target.path, partial(self._file, file)) for file in active.files]
        return (*releases, *files)

    def _release(self, activation: Activation) -> None:
        release = self._chain.activation(activation)
        home = self._storage.releases / activation.release
        for artifact in release.files(activation.variants):
            place = home / artifact.path
            if file_digest(place) != artifact.sha256:
                raise DamagedError("is not what was signed; let edge-agent sync fetch it again", file=place)

    def _file(self, file: Installed) -> None:
        self._chain.file(file.target, file.evidence, file.root)

    def _blob(self, digest: str) -> bytes:
        return self._storage.blobs.read(digest, self._limit_bytes)

    @staticmethod
    def _checked(what: str, target: str, run: Callable[[], None]) -> Checked:
        try:
            run()
        except (Distrust, StoreError, OSError) as error:
            return Checked(what, target, str(error))
        return Checked(what, target, "")
