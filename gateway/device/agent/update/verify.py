"""Verification of every signature and byte of what is committed, without network and clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway.common.domain.activation import Activation
from gateway.common.store.errors import DamagedError, StoreError
from gateway.common.store.plain import file_digest
from gateway.common.store.roots import read_roots
from gateway.common.trust.chain import Chain
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.settings import TrustSettings
from gateway.device.agent.state.storage import Storage


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of one check. `what`: slot, previous release or file. `problem`: "" if the check passed."""

    what: str
    target: str
    problem: str


class Verification:
    """Verification of one store against the pinned root."""

    def __init__(self, storage: Storage, pinned: bytes, settings: TrustSettings) -> None:
        """Read the roots. Raise StoreError if they are not readable."""
        self._storage, limit_bytes = storage, settings.metadata_limit_bytes
        roots = read_roots(storage.folder, limit_bytes, settings.roots_limit)
        self._chain = Chain(pinned, roots, lambda digest: storage.blobs.read(digest, limit_bytes), settings)

    def run(self) -> tuple[Checked, ...]:
        """Return one result for each committed and previous release, profile and policy.

        Raise StoreError if active.json is not readable.
        """
        active = self._storage.active()
        parts = (("committed", active.slots), ("previous", active.previous))
        releases = [
            self._checked(f"{what} {slot}", activation.target, partial(self._release, activation))
            for what, part in parts
            for slot, activation in part.items()
        ]
        files = [
            self._checked("file", file.target.path, partial(self._chain.file, file.target, file.evidence, file.root))
            for file in active.files
        ]
        return (*releases, *files)

    def _release(self, activation: Activation) -> None:
        release = self._chain.activation(activation)
        home = self._storage.releases / activation.release
        for artifact in release.files(activation.variants):
            place = home / artifact.path
            if file_digest(place) != artifact.sha256:
                raise DamagedError("is not what was signed; run edge-agent sync to fetch it again", file=place)

    @staticmethod
    def _checked(what: str, target: str, run: Callable[[], object]) -> Checked:
        try:
            run()
        except (Distrust, StoreError, OSError) as error:
            return Checked(what, target, str(error))
        return Checked(what, target, "")
