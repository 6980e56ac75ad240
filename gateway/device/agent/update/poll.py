"""One poll: refresh the signed metadata, fetch this device's assignment and verify it.

Everything is verified before any of it is kept. Floors and the assignment are kept in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from gateway.common.domain.activation import Activation, Installed
from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT, Assignment, Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release_paths import release_prefix
from gateway.common.domain.settings_release import SETTINGS_LIMIT_BYTES
from gateway.common.domain.signed_release import RELEASE_LIMIT_BYTES, SignedRelease, declared, disagreement
from gateway.common.domain.software_release import SOFTWARE_LIMIT_BYTES, fitting
from gateway.common.transfer.source import FetchError, RepositorySource
from gateway.common.trust import clock
from gateway.common.trust.assignment import DIRECTOR, read_signers, verify_assignment
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.floors import ASSIGNMENT, keys_of, raised_floors, role_floor
from gateway.common.trust.paths import release_path
from gateway.common.trust.slots import check_signature, check_slot
from gateway.common.trust.targets import (
    ONLINE,
    Withdrawal,
    check_hardware,
    check_offer,
    check_release,
    check_settings,
    check_software,
    check_target,
    floor_of,
    read_withdrawal,
)
from gateway.device.agent.clock import Clocks, read_clocks
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.control import DaemonClient
from gateway.device.agent.fetch.fetch import fetch_blob
from gateway.device.agent.fetch.repository import SignedRepository, SignedTarget, as_target
from gateway.device.agent.state.identity import DeviceIdentity
from gateway.device.agent.state.policy import read_policies
from gateway.device.agent.state.storage import Storage
from gateway.device.agent.update.reference import Times, attestation_fact, read_times
from gateway.device.store.journal_rows import Accepted, Floors
from gateway.device.store.materialised import materialise
from gateway.device.store.this_machine import this_machine

ETAG = "etag"
"""Name of the fact: ETag of the last accepted assignment."""


class Poll:
    """One poll: `ask` once, then `activation` and `installed` for each item to install.

    `assigned_by`: source and path of this device's assignment. `offline`: repository and assignment were carried here
    on a medium.
    """

    def __init__(
        self,
        storage: Storage,
        identity: DeviceIdentity,
        source: RepositorySource,
        control: DaemonClient,
        config: AgentConfig,
        *,
        assigned_by: tuple[RepositorySource, str],
        offline: bool,
        clocks: Callable[[], Clocks] = read_clocks,
    ) -> None:
        self._storage, self._identity, self._source = storage, identity, source
        self._assigned_by = assigned_by
        self._control, self._config, self._offline = control, config, offline
        self._grace_d = config.trust.offline_validity_d if offline else 0.0
        self._clocks, self._attested = clocks, dict[str, str]()
        self._floors = storage.journal.floors()
        self._repository: SignedRepository | None = None
        self._found: dict[str, SignedTarget] = {}

    def ask(self) -> Assignment:
        """Return the accepted assignment, new or known. Raise Distrust, FetchError, StoreError.

        Releases are checked by `new`, each for its own slot: an error of one owner affects no slot of another.
        The director's keys may be replaced between the request for metadata and the request for the assignment. After
        WRONG_KEY both are requested once more.
        """
        try:
            return self._ask()
        except Distrust as error:
            if error.reason is not Reason.WRONG_KEY or self._offline:
                raise
        return self._ask()

    def _ask(self) -> Assignment:
        limit = timedelta(hours=self._config.trust.attested_validity_h)
        times = read_times(self._storage.journal, self._clocks(), limit, offline=self._offline)
        self._repository = repository = self._refreshed(times)
        known = self._storage.journal.accepted()
        content, etag = self._fetch(times, known)
        assignment = self._believed(content, times, known)
        if known is not None and content == known.content:
            self._storage.journal.raise_floors(Floors(repository.risen_floors(), {}, self._time_floor(times)))
            return assignment
        for target in assignment.files:
            self._find(target)
        director = read_signers(content, repository.targets, assignment.device, self._config.trust)
        numbers = raised_floors(ASSIGNMENT, assignment.version, director, self._floors.numbers)
        risen = self._risen_versions(assignment)
        floors = Floors({**repository.risen_floors(), **numbers}, risen, self._time_floor(times, assignment.expires))
        self._storage.journal.accept(assignment, content, floors)
        self._storage.journal.keep_facts({ETAG: etag, **self._attested})
        return assignment

    def activation(self, slot: str, target: Target) -> Activation:
        """Return an activation whose document and manifest are here and verified, and that this device can run.

        Its evidence is kept. Raise Distrust, FetchError, StoreError, UnreachableError.
        """
        found = self._find(target)
        content = self._read(target, found, RELEASE_LIMIT_BYTES)
        release = check_release(content, target)
        activation = self._kept(slot, found, content)
        self._bring_manifest(activation, release)
        candidates = self._control.plan(activation)
        check_hardware(release, {candidate["variant"] for candidate in candidates if candidate["fits"]})
        return activation

    def new(self, slot: str, target: Target) -> Activation:
        """Return the `activation` of a release that its owner and the policies allow in this slot. Raise as it does."""
        check_offer(target, self._look_up(target.path).target, self._floor)
        activation = self.activation(slot, target)
        check_activation(self._storage, activation)
        return activation

    def software(self, target: Target) -> Activation:
        """Return a release of the programs whose document is here and verified, and that this device can install.

        Raise Distrust, FetchError, StoreError.
        """
        found, content = self._offered(target, SOFTWARE_LIMIT_BYTES)
        release = check_software(content, target)
        try:
            fitting(release, this_machine())
        except ValueError as error:
            raise Distrust(Reason.WRONG_HARDWARE, f"the software release {target.path}", str(error)) from None
        return self._kept(SOFTWARE_SLOT, found, content)

    def settings(self, target: Target) -> Activation:
        """Return a release of settings whose document is here and verified. Raise Distrust, FetchError, StoreError."""
        found, content = self._offered(target, SETTINGS_LIMIT_BYTES)
        check_settings(content, target)
        return self._kept(SETTINGS_SLOT, found, content)

    def withdrawal(self, path: str) -> Withdrawal | None:
        """Return the owner's withdrawal of a release; None also if it cannot be fetched or verified now."""
        with suppress(Distrust, FetchError):
            return read_withdrawal(self._look_up(path).target)
        return None

    def recovered(self, activation: Activation) -> Activation:
        """Return a damaged installed release as it is signed now, with document, manifest and evidence restored.

        Raise as `activation` does.
        """
        target = as_target(self._look_up(activation.target))
        if target.sha256 != activation.release:
            raise Distrust(Reason.SWAPPED, activation.target, "what is signed now is not what was installed")
        return replace(self.activation(activation.slot, target), variants=activation.variants)

    def installed(self, target: Target) -> Installed:
        """Return a profile or policy that is here and verified, with its evidence.

        Raise Distrust, FetchError, StoreError.
        """
        found = self._find(target)
        blobs = self._storage.blobs
        blobs.put(self._read(target, found, self._config.trust.metadata_limit_bytes))
        return Installed(target, tuple(blobs.put(proof) for proof in found.evidence), found.root)

    def staying(self, file: Installed) -> Installed | None:
        """Return a policy that is no longer assigned, as it is signed now; None if it is no longer signed.

        Raise Distrust, FetchError, StoreError.
        """
        try:
            target = as_target(self._look_up(file.target.path))
        except Distrust as error:
            if error.reason is Reason.UNSIGNED:
                return None
            raise
        return file if target == file.target else self.installed(target)

    # ---- request -----------------------------------------------------------------------------------------------------
    def _refreshed(self, times: Times) -> SignedRepository:
        repository = SignedRepository(
            self._storage.metadata,
            self._source,
            self._identity.root,
            times.beginning,
            grace=timedelta(days=self._grace_d),
            floors=self._floors.numbers,
        )
        repository.refresh()
        return repository

    def _fetch(self, times: Times, known: Accepted | None) -> tuple[bytes, str]:
        """Return the document and its ETag; the document comes from the journal if it has not changed.

        It is verified again each time: a server that always answers "not modified" must not extend it beyond its
        expiry.
        """
        etag = self._storage.journal.fact(ETAG) or "" if known and not times.nonce else ""
        query = {"nonce": times.nonce} if times.nonce else None
        source, path = self._assigned_by
        document = source.read(path, self._config.trust.assignment_limit_bytes, etag=etag, query=query)
        if document.content is None:
            return known.content if known else b"", etag
        return document.content, document.etag

    # ---- assignment --------------------------------------------------------------------------------------------------
    def _believed(self, content: bytes, times: Times, known: Accepted | None) -> Assignment:
        repository = self._signed_repository
        keys = keys_of(repository.targets, DIRECTOR)
        assignment = verify_assignment(
            content,
            repository.targets,
            device=self._identity.device,
            now=times.beginning,
            last_version=role_floor(ASSIGNMENT, keys, self._floors.numbers),
            last_digest=known.digest if known else "",
            offline_validity_d=self._grace_d,
            settings=self._config.trust,
        )
        self._settle(repository, assignment, times)
        return assignment

    def _settle(self, repository: SignedRepository, assignment: Assignment, times: Times) -> None:
        """Check all expiries against the attested time, if a nonce was sent.

        The answer attests the time if it repeats the nonce. A server of plain files does not repeat it: then the system
        clock is used. Raise Distrust.
        """
        if not times.nonce:
            return
        where, expiries = f"the assignment for {assignment.device}", repository.expiries()
        if assignment.nonce == times.nonce:
            offline = [expiry for role, expiry in expiries.items() if role not in ONLINE]
            now = clock.attested_time(assignment.issued, times.floor, offline)
            self._attested = attestation_fact(now, self._clocks().boot)
        elif assignment.nonce:
            raise Distrust(Reason.WRONG_NONCE, where, "it does not repeat the nonce that this device sent")
        else:
            now = clock.reference_time(times.system, times.floor)
        for what, expiry in (*expiries.items(), ("assignment", assignment.expires)):
            if now >= expiry:
                raise Distrust(Reason.EXPIRED, what, f"it expired at {expiry:%FT%TZ}; the time here is {now:%FT%TZ}")

    def _risen_versions(self, assignment: Assignment) -> dict[str, str]:
        """Return floors of the assigned models by "owner/model".

        Releases that are damaged or cannot be fetched affect their own slots only; `new` reports them.
        """
        risen: dict[str, str] = {}
        for target in assignment.slots.values():
            with suppress(Distrust, FetchError):
                self._look_up(target.path)
                path = release_path(target.path)
                if floor := self._floor(path.owner, path.model):
                    risen[f"{path.owner}/{path.model}"] = floor
        return risen

    def _time_floor(self, times: Times, *more: datetime) -> datetime:
        expiries = (*self._signed_repository.expiries().values(), *more)
        return clock.raised_floor(times.floor, times.system, expiries, synchronised=times.synchronised)

    # ---- signed metadata ---------------------------------------------------------------------------------------------
    @property
    def _signed_repository(self) -> SignedRepository:
        if self._repository is None:
            raise FetchError(f"{self._source.name} could not be asked what is signed; ask again when it answers")
        return self._repository

    def _look_up(self, path: str) -> SignedTarget:
        if path not in self._found:
            self._found[path] = self._signed_repository.find(path)
        return self._found[path]

    def _floor(self, owner: str, model: str) -> str:
        """Return the floor of a model, from its owner's releases and from what this device has seen."""
        persisted = self._floors.versions.get(f"{owner}/{model}", "")
        prefix = release_prefix(owner, model)
        roles = [found.role for path, found in self._found.items() if path.startswith(prefix)]
        return floor_of(roles[0], owner, model, persisted) if roles else persisted

    def _find(self, target: Target) -> SignedTarget:
        found = self._look_up(target.path)
        check_target(target, found.target)
        return found

    def _offered(self, target: Target, limit_bytes: int) -> tuple[SignedTarget, bytes]:
        """Return the document of a release that its owner allows. Raise Distrust, FetchError, StoreError."""
        check_offer(target, self._look_up(target.path).target, self._floor)
        found = self._find(target)
        return found, self._read(target, found, limit_bytes)

    def _kept(self, slot: str, found: SignedTarget, content: bytes) -> Activation:
        """Keep a verified document with its evidence. Return its activation. Raise StoreError."""
        blobs = self._storage.blobs
        evidence = tuple(blobs.put(proof) for proof in found.evidence)
        return Activation(slot, found.target.path, blobs.put(content), (), evidence, found.root)

    def _read(self, target: Target, found: SignedTarget, limit_bytes: int) -> bytes:
        """Return the signed document, from the store if it is there."""
        blobs = self._storage.blobs
        if blobs.has(target.sha256, target.size_bytes) and blobs.verify(target.sha256):
            return blobs.read(target.sha256, limit_bytes)
        return self._signed_repository.read(found)

    def _bring_manifest(self, activation: Activation, release: SignedRelease) -> None:
        """Fetch what is needed to choose a variant: the manifest, and no variant yet."""
        blobs = self._storage.blobs
        for artifact in release.files():
            fetch_blob(self._source, blobs, artifact.sha256, artifact.size_bytes)
        text = blobs.read(release.manifest.sha256, RELEASE_LIMIT_BYTES).decode("utf-8", "replace")
        where = f"the manifest of {release.target}"
        try:
            different = disagreement(release, declared(release, text, where))
        except ConfigurationError as error:
            raise Distrust(Reason.DAMAGED, where, str(error)) from error
        if different:
            raise Distrust(Reason.SWAPPED, where, different)
        materialise(activation.release, release, (), blobs, self._storage.releases)


def check_activation(storage: Storage, activation: Activation) -> None:
    """Raise Distrust unless the release may take its slot. Its documents must be here. Raise StoreError."""
    slot, running = activation.slot, storage.active().slots.get(activation.slot)
    policies, _ = read_policies(storage)  # one that cannot be read holds every change
    release, manifest = _documents(storage, activation)
    if running is None:
        check_slot(slot, release, None, policies.values())
        return
    present, present_manifest = _documents(storage, running)
    check_slot(slot, release, present, policies.values())
    check_signature(release, manifest, present, present_manifest)


def _documents(storage: Storage, activation: Activation) -> tuple[SignedRelease, ModelManifest]:
    release = storage.release(activation)
    text = storage.blobs.read(release.manifest.sha256, RELEASE_LIMIT_BYTES).decode("utf-8", "replace")
    return release, declared(release, text, f"the manifest of {release.target}")
