"""What may serve on this device, and what the update agent commands: implements the port Serving.

Signed releases come from the store, whatever lies in the model directory beside them is marked unsigned, and cannot
take the name of a slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gateway.committed.store import Committed, Slot, Store
from gateway.domain.activation import Activation
from gateway.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.domain.ports import IndexEntry, Loaded, Standing
from gateway.domain.release import Release
from gateway.domain.selection import Candidate
from gateway.engine.loader import Loader
from gateway.engine.repository import ModelRepository
from gateway.store.errors import StoreError

UNSIGNED = "unsigned: it lies in the model directory, and nobody signed it"

_log = logging.getLogger(__name__)


class Fleet:
    """The one way to the model repository: for the daemon, for callers and for the agent.

    `allows_unsigned`: whether what nobody signed may serve.
    """

    def __init__(
        self, store: Store, repository: ModelRepository, loader: Loader, *, allows_unsigned: Callable[[], bool]
    ) -> None:
        self._store, self._repository, self._loader = store, repository, loader
        self._allows_unsigned = allows_unsigned
        self._hand: Sequence[Release] = ()
        self._committed = Committed()
        self._profiles: Mapping[str, str] | None = None
        self._changing = asyncio.Lock()
        self.problem = ""
        """Why what is committed could not be read when it was last asked for ("": it could)."""

    # ---- for the daemon ----------------------------------------------------------------------------------------------
    async def synchronise(self, hand: Sequence[Release]) -> None:
        """Serve what is committed, and what lies in the model directory (`hand`) as far as it may. Where nothing can be
        read of the store, what served goes on; `problem` says why."""
        async with self._changing:
            self._hand = hand
            await self._read()
            await self._serve()

    def of_model(self, model: str, hand: Sequence[Release]) -> tuple[Release, ...]:
        """What one model is made of: for a caller that loads it again by name."""
        admitted, denied = self._sorted_out(hand)
        signed = [release for release in self._signed() if release.name == model]
        return (*signed, *admitted, *denied)

    def waits_for_restart(self) -> str:
        """What is installed that only a restart takes over ("": nothing)."""
        was, now = self._profiles or {}, self._committed.profiles
        changed = sorted(path for path in {*was, *now} if was.get(path) != now.get(path))
        return f"device profiles changed: {', '.join(changed)}; restart edge-gateway" if changed else ""

    # ---- Serving -----------------------------------------------------------------------------------------------------
    async def plan(self, activation: Activation) -> Sequence[Candidate]:
        """Serving.plan."""
        release = await self._store.release(activation, planned=True)
        return self._loader.candidates(await self._loader.manifest(release))

    async def load(self, activation: Activation) -> Loaded:
        """Serving.load."""
        release = await self._store.release(activation)
        try:
            return await self._repository.stage(release)
        except ConfigurationError as error:
            raise VariantError(str(error)) from error

    async def route(self, model: str, weights: Mapping[str, int], *, shadow: str = "", lease_s: float) -> None:
        """Serving.route."""
        self._repository.route(model, weights, shadow=shadow, lease_s=lease_s)

    async def unload(self, model: str, version: str, drain_s: float) -> None:
        """Serving.unload."""
        await self._repository.unstage(model, version, drain_s)

    async def commit(self) -> None:
        """Serving.commit. RequestError UNAVAILABLE where what is committed cannot be read: what served goes on."""
        async with self._changing:
            await self._read()
            if self.problem:
                raise RequestError(Fault.UNAVAILABLE, self.problem)
            await self._serve()

    # ---- what serves -------------------------------------------------------------------------------------------------
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

    async def _serve(self) -> None:
        """First without what is denied, so that it ends where it served; then with it, so that the index says why."""
        admitted, denied = self._sorted_out(self._hand)
        signed = self._signed()
        await self._repository.synchronise((*signed, *admitted))
        if denied:
            await self._repository.synchronise((*signed, *admitted, *denied))

    def _sorted_out(self, hand: Iterable[Release]) -> tuple[list[Release], list[Release]]:
        """What lies in the model directory: what may serve, and what may not with the reason."""
        admitted, denied = [], []
        taken = {(release.name, release.version) for release in self._signed()}
        for release in hand:
            problem = self._denial(release)
            if not problem:
                admitted.append(release)
            elif (release.name, release.version) not in taken:  # the index has one line for a version
                denied.append(replace(release, manifest=None, bare=None, problem=problem))
            else:
                _log.warning("%s %s in the model directory: %s", release.name, release.version, problem)
        return admitted, denied

    def _denial(self, release: Release) -> str:
        if release.name in self._committed.slots:
            return "unsigned, and the fleet serves a signed model of this name here; give it another name"
        if not (self._allows_unsigned() or release.problem):
            return "unsigned: let its owner sign and publish it, or set [fleet] unsigned = true"
        return ""

    def _signed(self) -> list[Release]:
        standings = self._repository.standings()
        serving = {(one.model, one.version) for one in standings if one.state == "READY" and _is_signed(one)}
        return [release for slot in self._committed.slots.values() for release in _chosen(slot, serving)]


class Listed:
    """Implements Repository for callers on a device of a fleet: as the engine's own, and what is unsigned says so."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self.versions, self.load, self.unload = repository.versions, repository.load, repository.unload

    def index(self) -> Sequence[IndexEntry]:
        """Repository.index."""
        signed = {(one.model, one.version) for one in self._repository.standings() if _is_signed(one)}
        return [_marked(line, signed=(line.name, line.version) in signed) for line in self._repository.index()]


def _chosen(slot: Slot, serving: set[tuple[str, str]]) -> list[Release]:
    """A slot's release; the previous one as well where that is refused and not loaded from before."""
    release, previous = slot.release, slot.previous
    if previous is None or (release.name, release.version) in serving:
        return [release]
    if previous.version == release.version:
        _log.error("%s %s: %s; the previous release serves instead", release.name, release.version, release.problem)
        return [previous]
    told = f"{release.problem}; the previous release, version {previous.version}, serves instead"
    return [replace(release, problem=told), previous]


def _is_signed(standing: Standing) -> bool:
    return standing.placement is not None and standing.placement.signed


def _marked(line: IndexEntry, *, signed: bool) -> IndexEntry:
    return line if signed or line.reason or line.state != "READY" else replace(line, reason=UNSIGNED)
