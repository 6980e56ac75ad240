"""The store as the daemon reads it: what is committed, single releases on the agent's word, profiles; all judged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.committed.ask import ask_judge, ask_settings_judge
from gateway.committed.judge import Judgement
from gateway.committed.release import planned_release, refused_release, signed_release
from gateway.committed.settings import FleetSettings
from gateway.committed.settings_judge import JudgedSettings
from gateway.domain.activation import Activation, Installed
from gateway.domain.errors import ConfigurationError, VariantError
from gateway.domain.profile import Profile, read_profile
from gateway.domain.release import Release
from gateway.store.active import ACTIVE_FILE, Active, read_active
from gateway.store.blobs import Blobs
from gateway.store.errors import StoreError
from gateway.store.plain import file_digest
from gateway.store.settings import LibrarySettings

NO_FLEET = "this device is part of no fleet; set [fleet] store, and run edge-agent bootstrap"
PROFILES = "profiles/"
PROFILE_LIMIT_BYTES = 256 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as it is committed: `release` serves, or has a `problem`; then `previous`, where it is sound, may."""

    release: Release
    previous: Release | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Slots by name; device profiles by path with the digest of what is installed."""

    slots: Mapping[str, Slot] = field(default_factory=dict)
    profiles: Mapping[str, str] = field(default_factory=dict)


class Store:
    """Reads the disk only, when asked. What was judged to hold once is not judged again by this process: it is named by
    digests, and the root that vouched for it by its version."""

    def __init__(self, settings: FleetSettings, library: LibrarySettings) -> None:
        self._settings, self._library = settings, library
        self._sound: set[Activation | Installed] = set()
        self._root = ""
        self._judging = asyncio.Lock()

    @property
    def present(self) -> bool:
        """Whether this device is part of a fleet: a store is named, and `edge-agent bootstrap` laid a root there."""
        settings = self._settings
        return bool(settings.store) and (_may_be_there(settings.root_file) or _may_be_there(self._active_file))

    async def committed(self) -> Committed:
        """What is committed now. Raises StoreError where that cannot be read; VariantError (transient) where nothing
        could be judged."""
        active = await self._active()
        judgement = await self._judged(active)
        self._sound &= {*active.slots.values(), *active.previous.values(), *active.files}
        slots = {slot: await asyncio.to_thread(self._slot, slot, active, judgement) for slot in active.slots}
        return Committed(slots, _profiles(active))

    async def previous(self, slot: str) -> Release | None:
        """What served `slot` before what is committed, if that is here and sound."""
        try:
            activation = (await self._active()).previous.get(slot)
            return None if activation is None else await self.release(activation)
        except (StoreError, VariantError):
            return None

    async def profiles(self) -> tuple[Profile, ...]:
        """Device profiles that are installed and sound; the log says what is wrong with the others. Never raises."""
        try:
            active = await self._active()
            judgement = await self._judged(active) if _profiles(active) else Judgement()
        except (StoreError, VariantError) as error:
            _log.error("device profiles of the fleet are not used: %s", error)
            return ()
        found = [self._profile(one, judgement) for one in active.files if one.target.path.startswith(PROFILES)]
        return tuple(profile for profile in found if profile is not None)

    async def release(self, activation: Activation, *, planned: bool = False) -> Release:
        """One release, judged; with `planned` only its manifest need be here. Raises VariantError."""
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

    async def settings(self, activation: Activation) -> JudgedSettings:
        """Return one release of settings, with what the device's policies permit. Raises VariantError."""
        if not self.present:
            raise VariantError(NO_FLEET)
        async with self._judging:
            return await ask_settings_judge(self._settings, activation)

    async def _active(self) -> Active:
        if not self._settings.store:
            return Active()
        return await asyncio.to_thread(read_active, self._active_file)

    @property
    def _active_file(self) -> Path:
        return self._settings.folder / ACTIVE_FILE

    async def _judged(self, active: Active) -> Judgement:
        """One at a time: what an earlier root of trust vouched for must not be kept under another."""
        async with self._judging:
            return await self._judged_alone(active)

    async def _judged_alone(self, active: Active) -> Judgement:
        """Ask of what is not known to be sound; another root of trust than before makes all of it unknown."""
        root = await asyncio.to_thread(self._root_digest)
        if root != self._root:
            self._root, self._sound = root, set()
        asked = Active(
            {slot: one for slot, one in active.slots.items() if one not in self._sound},
            {slot: one for slot, one in active.previous.items() if one not in self._sound},
            tuple(one for one in active.files if one not in self._sound),
        )
        told = await ask_judge(self._settings, asked)
        self._sound |= {one for slot, one in asked.slots.items() if not told.slots[slot]}
        self._sound |= {one for slot, one in asked.previous.items() if not told.previous[slot]}
        self._sound |= {one for one in asked.files if not told.files[one.target.path]}
        return Judgement(
            {slot: told.slots.get(slot, "") for slot in active.slots},
            {slot: told.previous.get(slot, "") for slot in active.previous},
            {one.target.path: told.files.get(one.target.path, "") for one in active.files},
        )

    def _root_digest(self) -> str:
        try:
            return file_digest(self._settings.root_file)
        except OSError:  # the judge says why nothing can be believed
            return ""

    def _slot(self, slot: str, active: Active, judgement: Judgement) -> Slot:
        activation, previous = active.slots[slot], active.previous.get(slot)
        try:
            return Slot(self._read(activation, judgement.slots[slot]))
        except VariantError as error:
            refused = refused_release(activation, self._settings.folder, str(error))
        try:
            return Slot(refused, self._read(previous, judgement.previous[slot]) if previous else None)
        except VariantError:
            return Slot(refused)

    def _read(self, activation: Activation, problem: str) -> Release:
        if problem:
            raise VariantError(problem)
        return signed_release(activation, self._settings.folder, self._library)

    def _profile(self, one: Installed, judgement: Judgement) -> Profile | None:
        path, problem = one.target.path, judgement.files[one.target.path]
        if problem:
            _log.error("the fleet's device profile is not used: %s", problem)
            return None
        try:
            content = Blobs(self._settings.folder / "blobs").read(one.target.sha256, PROFILE_LIMIT_BYTES)
            return read_profile(content.decode("utf-8"), path)
        except (ConfigurationError, StoreError, ValueError) as error:
            _log.error("the fleet's device profile %s is not used: %s", path, error)
            return None


def _may_be_there(file: Path) -> bool:
    """Also where we may not look: then reading it fails, and says why."""
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _profiles(active: Active) -> dict[str, str]:
    return {one.target.path: one.target.sha256 for one in active.files if one.target.path.startswith(PROFILES)}
