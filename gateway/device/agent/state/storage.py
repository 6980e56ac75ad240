"""The device's store as the agent uses it: one folder, locked by one agent at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT
from gateway.common.domain.signed_release import RELEASE_LIMIT_BYTES, SignedRelease, read_release
from gateway.common.domain.software_release import SOFTWARE_LIMIT_BYTES, read_software
from gateway.common.files import durable
from gateway.common.files.locks import sole_writer
from gateway.common.logs import get_logger
from gateway.common.store.active import ACTIVE_FILE, Active, read_active, write_active
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import StoreError, store_errors
from gateway.common.store.plain import file_digest
from gateway.device.agent import events
from gateway.device.agent.config import AgentConfig, check_bootstrapped
from gateway.device.agent.state.slot_state import read_state
from gateway.device.store import materialised
from gateway.device.store.journal import Journal

LOCK_FILE = "agent.lock"


@dataclass(frozen=True, slots=True)
class Storage:
    """Paths and open files of the store. The lock is held while the `opened` context lasts."""

    folder: Path
    blobs: LocalBlobs
    journal: Journal

    @property
    def metadata(self) -> Path:
        """Folder of the TUF client."""
        return self.folder / "metadata"

    @property
    def releases(self) -> Path:
        """Folder with releases that a runtime can open."""
        return self.folder / "releases"

    def active(self) -> Active:
        """Return what is committed. Raise StoreError."""
        return read_active(self.folder / ACTIVE_FILE)

    def activate(self, active: Active) -> None:
        """Commit `active`. On StoreError, the earlier commit stays in force."""
        write_active(self.folder / ACTIVE_FILE, active)

    def release(self, activation: Activation) -> SignedRelease:
        """Return the signed document of a release. Raise StoreError; ValueError if it cannot be read."""
        return read_release(self.blobs.read(activation.release, RELEASE_LIMIT_BYTES))

    def whole(self, activation: Activation, *, thorough: bool) -> bool:
        """Return True if files and evidence of an activation are here; `thorough` also checks every file's digest."""
        try:
            release = self.release(activation)
            home = self.releases / activation.release
            places = [(artifact, home / artifact.path) for artifact in release.files(activation.variants)]
            sized = all(place.stat().st_size == artifact.size_bytes for artifact, place in places)
            proven = sized and all(self.blobs.verify(digest) for digest in activation.evidence)
            return proven and not (thorough and any(file_digest(p) != artifact.sha256 for artifact, p in places))
        except (StoreError, OSError, ValueError):
            return False

    def collect(self) -> None:
        """Remove what no committed, previous or coming release needs. Raise StoreError."""
        active, coming = self.active(), [update.activation for update in self.journal.updates()]
        kept = [*active.slots.values(), *active.previous.values(), *coming]
        materialised.sweep(self.releases, {activation.release for activation in kept})
        needed = {digest for activation in kept for digest in self._needed(activation)}
        needed |= {digest for file in active.files for digest in (file.target.sha256, *file.evidence)}
        needed |= self._needed_reserved()
        collected = self.blobs.collect(needed, keep_parts=needed)
        if collected.removed or collected.strangers:
            get_logger("storage").info(
                events.STORE_TIDIED,
                removed=collected.removed,
                freed_bytes=collected.freed_bytes,
                unknown=collected.strangers,
            )

    def _needed_reserved(self) -> set[str]:
        """Return digests that updates of settings and programs need while they continue."""
        states = [read_state(self.journal, slot) for slot in (SETTINGS_SLOT, SOFTWARE_SLOT)]
        needed = {digest for state in states if state.wanted for digest in (state.release, *state.evidence)}
        software = states[-1]
        return needed | self._wheels(software.release) if software.wanted else needed

    def _wheels(self, digest: str) -> set[str]:
        """Return digests of the wheels in a software release; none if its document is damaged."""
        try:
            release = read_software(self.blobs.read(digest, SOFTWARE_LIMIT_BYTES))
        except (StoreError, ValueError):
            return set()
        return {wheel.sha256 for variant in release.variants for wheel in variant.wheels}

    def _needed(self, activation: Activation) -> set[str]:
        """Return digests that an activation needs; without its files if its document is damaged."""
        documents = {activation.release, *activation.evidence}
        try:
            return documents | {artifact.sha256 for artifact in self.release(activation).files(activation.variants)}
        except (StoreError, ValueError):
            return documents


@contextmanager
def opened(folder: Path, config: AgentConfig) -> Iterator[Storage]:
    """Open and lock the store.

    Raise ConfigurationError if the device was never bootstrapped, UnreachableError while another agent holds the store,
    StoreError if it is damaged.
    """
    check_bootstrapped(folder)
    with alone(folder), opened_for_reading(folder, config) as storage:
        with store_errors(folder):
            durable.sweep(folder)
        storage.blobs.prepare()
        yield storage


@contextmanager
def opened_for_reading(folder: Path, config: AgentConfig) -> Iterator[Storage]:
    """Open the store for reading, without the lock: another agent may change it. Raise as `opened` otherwise."""
    check_bootstrapped(folder)
    journal = Journal.open(folder)
    try:
        yield Storage(folder, LocalBlobs(folder / "blobs", config.store), journal)
    finally:
        journal.close()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the agent's lock. Raise UnreachableError while another agent holds it, StoreError."""
    remedy = "wait until it ends; edge-agent status shows its work"
    with ExitStack() as stack:
        with store_errors(folder / LOCK_FILE):
            stack.enter_context(sole_writer(folder / LOCK_FILE, "edge-agent", remedy))
        yield
