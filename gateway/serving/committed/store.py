"""The agent's store as the daemon reads it: committed slots, single releases and profiles, all verified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.common.domain.activation import Activation, Installed
from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.profile import Profile, read_profile
from gateway.common.domain.release import Release
from gateway.common.store.active import ACTIVE_FILE, Active, read_active
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import StoreError
from gateway.common.store.plain import file_digest
from gateway.common.store.settings import LibrarySettings
from gateway.serving.committed.ask import ask_release_verifier, ask_settings_verifier
from gateway.serving.committed.release import planned_release, refused_release, signed_release
from gateway.serving.committed.release_verifier import SignatureProblems
from gateway.serving.committed.settings import SignedReleaseSettings
from gateway.serving.committed.settings_verifier import VerifiedSettings

NO_FLEET = "this device is part of no fleet; set [fleet] store, and run edge-agent bootstrap"
PROFILES = "profiles/"
PROFILE_LIMIT_BYTES = 256 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedSlot:
    """Committed slot. `release` serves or has a `problem`; then `previous` may serve, if it is sound."""

    release: Release
    previous: Release | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Slots by name, and device profiles by path with their digests."""

    slots: Mapping[str, CommittedSlot] = field(default_factory=dict)
    profiles: Mapping[str, str] = field(default_factory=dict)


class CommittedStore:
    """Reader of the store on disk.

    An item that was verified once is not verified again by this process: it is named by digests, and its root by
    version.
    """

    def __init__(self, settings: SignedReleaseSettings, library: LibrarySettings) -> None:
        self._settings, self._library = settings, library
        self._sound: set[Activation | Installed] = set()
        self._root = ""
        self._judging = asyncio.Lock()

    @property
    def present(self) -> bool:
        """True if this device belongs to a fleet: a store is configured, and `edge-agent bootstrap` wrote a root."""
        settings = self._settings
        return bool(settings.store) and (_may_be_there(settings.root_file) or _may_be_there(self._active_file))

    async def committed(self) -> Committed:
        """Return what is committed now.

        Raise StoreError if it is not readable, VariantError (transient) if nothing could be verified.
        """
        active = await self._active()
        judgement = await self._judged(active)
        self._sound &= {*active.slots.values(), *active.previous.values(), *active.files}
        slots = {slot: await asyncio.to_thread(self._slot, slot, active, judgement) for slot in active.slots}
        return Committed(slots, _profiles(active))

    async def previous(self, slot: str) -> Release | None:
        """Return the release that served `slot` before the committed one, if it is here and sound."""
        try:
            activation = (await self._active()).previous.get(slot)
            return None if activation is None else await self.release(activation)
        except (StoreError, VariantError):
            return None

    async def profiles(self) -> tuple[Profile, ...]:
        """Return device profiles that are installed and sound. Problems of others are logged. Never raises."""
        try:
            active = await self._active()
            judgement = await self._judged(active) if _profiles(active) else SignatureProblems()
        except (StoreError, VariantError) as error:
            _log.error("device profiles of the fleet are not used: %s", error)
            return ()
        found = [self._profile(one, judgement) for one in active.files if one.target.path.startswith(PROFILES)]
        return tuple(profile for profile in found if profile is not None)

    async def release(self, activation: Activation, *, planned: bool = False) -> Release:
        """Return one verified release; with `planned`, only its manifest must be here. Raise VariantError."""
        if not self.present:
            raise VariantError(NO_FLEET)
        try:
            judgement = await self._judged(Active({activation.slot: activation}))
        except ValueError as error:
            raise VariantError(str(error)) from error
        if problem := judgement.slots[activation.slot]:
            raise VariantError(problem)
        read = planned_release if planned else signed_release
        return await asyncio.to_thread(read, activation, self._settings.folder, self._library)

    async def settings(self, activation: Activation) -> VerifiedSettings:
        """Return one release of settings, with what the device's policies permit. Raises VariantError."""
        if not self.present:
            raise VariantError(NO_FLEET)
        async with self._judging:
            return await ask_settings_verifier(self._settings, activation)

    async def _active(self) -> Active:
        if not self._settings.store:
            return Active()
        return await asyncio.to_thread(read_active, self._active_file)

    @property
    def _active_file(self) -> Path:
        return self._settings.folder / ACTIVE_FILE

    async def _judged(self, active: Active) -> SignatureProblems:
        """Verify one set at a time: results under an earlier root of trust must not be kept under another."""
        async with self._judging:
            return await self._verified_alone(active)

    async def _verified_alone(self, active: Active) -> SignatureProblems:
        """Verify the items that are not known to be sound. After a change of the root of trust none is known."""
        root = await asyncio.to_thread(self._root_digest)
        if root != self._root:
            self._root, self._sound = root, set()
        asked = Active(
            {slot: one for slot, one in active.slots.items() if one not in self._sound},
            {slot: one for slot, one in active.previous.items() if one not in self._sound},
            tuple(one for one in active.files if one not in self._sound),
        )
        answer = await ask_release_verifier(self._settings, asked)
        self._sound |= {one for slot, one in asked.slots.items() if not answer.slots[slot]}
        self._sound |= {one for slot, one in asked.previous.items() if not answer.previous[slot]}
        self._sound |= {one for one in asked.files if not answer.files[one.target.path]}
        return SignatureProblems(
            {slot: answer.slots.get(slot, "") for slot in active.slots},
            {slot: answer.previous.get(slot, "") for slot in active.previous},
            {one.target.path: answer.files.get(one.target.path, "") for one in active.files},
        )

    def _root_digest(self) -> str:
        try:
            return file_digest(self._settings.root_file)
        except OSError:  # the verifying process reports the reason
            return ""

    def _slot(self, slot: str, active: Active, judgement: SignatureProblems) -> CommittedSlot:
        activation, previous = active.slots[slot], active.previous.get(slot)
        try:
            return CommittedSlot(self._read(activation, judgement.slots[slot]))
        except VariantError as error:
            refused = refused_release(activation, self._settings.folder, str(error))
        try:
            return CommittedSlot(refused, self._read(previous, judgement.previous[slot]) if previous else None)
        except VariantError:
            return CommittedSlot(refused)

    def _read(self, activation: Activation, problem: str) -> Release:
        if problem:
            raise VariantError(problem)
        return signed_release(activation, self._settings.folder, self._library)

    def _profile(self, one: Installed, judgement: SignatureProblems) -> Profile | None:
        path, problem = one.target.path, judgement.files[one.target.path]
        if problem:
            _log.error("the fleet's device profile is not used: %s", problem)
            return None
        try:
            content = LocalBlobs(self._settings.folder / "blobs").read(one.target.sha256, PROFILE_LIMIT_BYTES)
            return read_profile(content.decode("utf-8"), path)
        except (ConfigurationError, StoreError, ValueError) as error:
            _log.error("the fleet's device profile %s is not used: %s", path, error)
            return None


def _may_be_there(file: Path) -> bool:
    """Return True if the file exists or is not accessible; reading it then fails with the reason."""
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _profiles(active: Active) -> dict[str, str]:
    return {one.target.path: one.target.sha256 for one in active.files if one.target.path.startswith(PROFILES)}
