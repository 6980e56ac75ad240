"""Implementation of the port Serving: what may serve on this device, and the update agent's commands.

Signed releases come from the store. Releases in the model directory are marked as unsigned and cannot take the name of
a slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.common.domain.manifest import Variant
from gateway.common.domain.pipeline import RUNTIME
from gateway.common.domain.release import Release
from gateway.common.domain.routing import version_order
from gateway.common.domain.selection import Candidate
from gateway.common.store.errors import StoreError
from gateway.serving import assembly
from gateway.serving.assembly import MachineSurvey
from gateway.serving.committed.merge import MergedReleases, merge_releases
from gateway.serving.committed.settings import SignedReleaseSettings
from gateway.serving.committed.store import Committed, CommittedSlot, CommittedStore
from gateway.serving.config import Config
from gateway.serving.domain.ports import IndexEntry, Loaded, Replayed, SettingsTrials, VersionStatus
from gateway.serving.domain.vitals import Vitals
from gateway.serving.engine.engine import Engine
from gateway.serving.engine.loader import Loader
from gateway.serving.engine.repository import ModelRepository
from gateway.serving.frontends.control.settings import ControlServerSettings

if TYPE_CHECKING:
    from gateway.serving.frontends.control.server import ControlFrontend
    from gateway.serving.frontends.pools import Pools

UNSIGNED = "unsigned: it is in the model directory and has no signature"

_log = logging.getLogger(__name__)


class Fleet:
    """Access of daemon and agent to the model repository. Make it in a running loop; close it before the repository.

    What cannot be read or verified is tried again until it can: a start with too little memory or a late disk ends in
    the same state as any other.
    """

    def __init__(
        self, store: CommittedStore, repository: ModelRepository, loader: Loader, settings: SignedReleaseSettings
    ) -> None:
        self._store, self._repository, self._loader = store, repository, loader
        self._settings = settings
        self._hand: Sequence[Release] = ()
        self._served: Mapping[tuple[str, str], Release] = {}
        """Releases as they were last synchronised, without those that have changed since."""
        self._committed = Committed()
        self._profiles: Mapping[str, str] | None = None
        self._changing = asyncio.Lock()
        self._retry: asyncio.Task[None] | None = None
        repository.decided = self._decided
        self.problem = ""
        """Problem of the last attempt to read what is committed ("": none)."""

    # ---- for the daemon ----------------------------------------------------------------------------------------------
    async def synchronise(self, hand: Sequence[Release], *, changed_only: bool = False) -> None:
        """Serve what is committed, and what may serve of the model directory (`hand`).

        `changed_only`: only `hand` is new. Releases that are as they were stay as they are: unloaded by name, refused,
        or undecided until their next attempt. If the store is not readable, what served continues to serve; `problem`
        has the reason.
        """
        for release in hand:
            for remark in release.remarks:
                _log.warning("%s %s: %s", release.name, release.version, remark)
        async with self._changing:
            self._hand = hand
            if not changed_only or self._profiles is None:  # None: nothing was read
                await self._read()
            await self._serve(changed_only=changed_only)
        self._retry_if_needed()

    async def close(self) -> None:
        """Stop retries."""
        if self._retry is not None:
            self._retry.cancel()
            await asyncio.wait({self._retry})

    async def of_model(self, model: str, read: Callable[[], Sequence[Release]]) -> tuple[Release, ...]:
        """Return the releases of one model, for a caller that loads it again by name.

        `read` reads the model's folder; it runs on a thread.
        """
        hand = await asyncio.to_thread(read)
        return tuple(release for release in self._merged(hand).every if release.name == model)

    def waits_for_restart(self) -> str:
        """Return what is installed and takes effect only after a restart ("": nothing)."""
        was, now = self._profiles or {}, self._committed.profiles
        changed = sorted(path for path in {*was, *now} if was.get(path) != now.get(path))
        return f"device profiles changed: {', '.join(changed)}; restart edge-gateway" if changed else ""

    # ---- Serving -----------------------------------------------------------------------------------------------------
    async def plan(self, activation: Activation) -> Sequence[Candidate]:
        """Implement `Serving.plan`."""
        release = await self._store.release(activation, planned=True)
        if release.pipeline is not None:
            variant = Variant(RUNTIME, RUNTIME, "none", ())
            return (Candidate(variant, "cpu", 1, True, "a pipeline runs where its models do"),)
        return self._loader.candidates(await self._loader.manifest(release))

    async def load(self, activation: Activation) -> Loaded:
        """Implement `Serving.load`."""
        fetch = partial(self._store.release, activation)
        try:
            return await self._repository.stage(activation.slot, activation.version, fetch)
        except ConfigurationError as error:
            raise VariantError(str(error)) from error

    async def route(self, model: str, weights: Mapping[str, int], *, shadow: str = "", lease_s: float) -> None:
        """Implement `Serving.route`."""
        self._repository.route(model, weights, shadow=shadow, lease_s=lease_s)

    async def replay(self, model: str, version: str) -> Replayed:
        """Implement `Serving.replay`. Raise VariantError if its golden set cannot be read."""
        try:
            return await self._repository.replay(model, version)
        except (ConfigurationError, OSError) as error:
            raise VariantError(str(error)) from error

    async def unload(self, model: str, version: str, drain_s: float) -> None:
        """Implement `Serving.unload`."""
        await self._repository.unstage(model, version, drain_s)

    async def commit(self) -> None:
        """Implement `Serving.commit`.

        Raise RequestError UNAVAILABLE if what is committed is not readable; what served continues to serve.
        """
        async with self._changing:
            await self._read()
            if not self.problem:
                await self._serve()
        self._retry_if_needed()
        if self.problem:
            raise RequestError(Fault.UNAVAILABLE, self.problem)

    # ---- synchronisation ---------------------------------------------------------------------------------------------
    async def _read(self) -> None:
        try:
            self._committed = await self._store.committed()
        except (StoreError, VariantError) as error:
            self.problem, self._profiles = str(error), self._profiles or {}
            _log.error("what is committed cannot be served: %s", error)
            return
        self.problem = ""
        if self._profiles is None:
            self._profiles = self._committed.profiles

    def _retry_if_needed(self, *, now: bool = False) -> None:
        if (self.problem or now) and (self._retry is None or self._retry.done()):
            self._retry = asyncio.create_task(self._try_again(0.0 if now else self._settings.retry_s), name="committed")

    def _decided(self) -> None:
        """Serve what is committed again: if a release has decided, the one that stood in for it may have to go."""
        self._retry_if_needed(now=any(slot.previous for slot in self._committed.slots.values()))

    async def _try_again(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._settings.retry_s
            async with self._changing:
                await self._read()
                if not self.problem:
                    await self._serve()
                    break
        _log.info("what is committed serves now")

    async def _serve(self, *, changed_only: bool = False) -> None:
        """Synchronise without denied releases, so that they stop serving; then with them, to list the reasons."""
        found = self._merged(self._hand)
        self._served = {key: one for key, one in _by_key(found).items() if self._served.get(key) == one}
        same = self._served if changed_only else {}
        for problem in found.unlisted:
            _log.error("not served: %s", problem)
        await self._repository.synchronise((*found.signed, *found.admitted), same=same)
        if await self._let_previous_step_in(same):
            found = self._merged(self._hand)
            await self._repository.synchronise((*found.signed, *found.admitted), again=False, same=same)
        if found.denied:
            await self._repository.synchronise(found.every, again=False, same=same)
        self._served = _by_key(found)

    async def _let_previous_step_in(self, same: Mapping[tuple[str, str], Release]) -> bool:
        """Serve previous releases in place of committed ones that are verified but cannot be opened.

        A renewed runtime is a possible cause. An undecided release is tried again, and `_decided` follows. Return True
        if there is such a slot.
        """
        standings = {(one.model, one.version): one for one in self._repository.standings()}
        slots = dict(self._committed.slots)
        for name, slot in self._committed.slots.items():
            standing = standings.get(key := (name, slot.release.version))
            if same.get(key) == slot.release or self._repository.opens(slot.release):  # or unloaded by name
                continue
            if slot.release.problem or standing is None or standing.state != "UNAVAILABLE":
                continue
            if (previous := await self._store.previous(name)) is not None:
                refused = replace(slot.release, manifest=None, pipeline=None, problem=standing.reason)
                slots[name] = CommittedSlot(slot.release if standing.undecided else refused, previous)
        found = slots != self._committed.slots
        self._committed = replace(self._committed, slots=slots)
        return found

    def _merged(self, hand: Iterable[Release]) -> MergedReleases:
        standings = self._repository.standings()
        serving = {(one.model, one.version) for one in standings if one.state == "READY" and _is_signed(one)}
        return merge_releases(self._committed, hand, unsigned=self._settings.unsigned, serving=serving)


class MarkedRepository:
    """Implementation of Repository for callers: the engine's own, with unsigned models of a fleet's device marked."""

    def __init__(self, repository: ModelRepository, store: CommittedStore) -> None:
        self._repository, self._store = repository, store
        self.versions, self.load, self.unload = repository.versions, repository.load, repository.unload

    def index(self) -> Sequence[IndexEntry]:
        """Implement `Repository.index`."""
        if not self._store.present:  # checked each time: a device may be bootstrapped while it serves
            return self._repository.index()
        signed = {(one.model, one.version) for one in self._repository.standings() if _is_signed(one)}
        return [
            replace(line, reason=UNSIGNED)
            if line.state == "READY" and not line.reason and (line.name, line.version) not in signed
            else line
            for line in self._repository.index()
        ]


def control_frontend(  # noqa: PLR0917  the daemon wires ports, device and settings in this order
    fleet: Fleet,
    repository: ModelRepository,
    engine: Engine,
    surveyed: MachineSurvey,
    vitals: Callable[[], Vitals],
    problem: Callable[[], str],
    broker: Callable[[], bool | None],
    trials: SettingsTrials,
    settings: ControlServerSettings,
    pools: Pools,
    cameras: Callable[[], Sequence[Mapping[str, Any]]],
) -> ControlFrontend:
    """Wire the control API; `problem`, `broker` and `cameras` as in `About`."""
    from gateway.serving.frontends.control.about import About
    from gateway.serving.frontends.control.server import ControlFrontend
    from gateway.serving.hardware.probe import inventory_json

    name = surveyed.profile_name
    inventory = inventory_json(surveyed.inventory, name)
    about = About(name or "", inventory, vitals, fleet.waits_for_restart, problem, broker, cameras)
    return ControlFrontend(fleet, repository, engine, trials, about, settings, pools)


async def releases_here(config: Config, model: str = "") -> tuple[Release, ...]:
    """Return every release that a daemon would find on this device, or all of one model. For commands.

    Raise ConfigurationError if model directory or store is not readable.
    """
    read = partial(assembly.releases_of, config, model) if model else partial(assembly.releases, config)
    try:
        committed = await CommittedStore(config.fleet, config.library).committed()
    except (StoreError, VariantError) as error:
        raise ConfigurationError(str(error)) from error
    found = merge_releases(committed, await asyncio.to_thread(read), unsigned=config.fleet.unsigned)
    releases = [release for release in found.every if model in {"", release.name}]
    return tuple(sorted(releases, key=lambda release: (release.name, version_order(release.version))))


def _by_key(found: MergedReleases) -> dict[tuple[str, str], Release]:
    return {(one.name, one.version): one for one in found.every}


def _is_signed(standing: VersionStatus) -> bool:
    return standing.placement is not None and standing.placement.signed
