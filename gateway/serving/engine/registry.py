"""Models and versions that are served, staged, loading or refused, with reasons. Used on the event loop, no lock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.pipeline import keeps_state
from gateway.common.domain.routing import newest_version, version_order
from gateway.serving.domain.ports import IndexEntry, VersionStatus
from gateway.serving.domain.sharing import WHOLE, WeightedRoundRobin, percentages
from gateway.serving.engine.response_cache import CachedTarget, ResponseCache
from gateway.serving.engine.split import Split
from gateway.serving.engine.target import ModelTarget, RequestTarget
from gateway.serving.engine.versions import Attempt, LoadedVersion, VersionChange, VersionRecord, attempted, changed

Record = VersionRecord[ModelTarget]
NEW: Record = VersionRecord()
"""Record of an unknown version."""


@dataclass(frozen=True, slots=True)
class Route:
    """Shares of the requests that name no version, and the shadow version ("": none)."""

    turns: WeightedRoundRobin
    shadow: str = ""

    @property
    def weights(self) -> Mapping[str, int]:
        """Return each version's weight; versions with weight 0 are left out."""
        return self.turns.weights

    def only(self, version: str) -> bool:
        """Return True if `version` gets all requests and there is no shadow."""
        return not self.shadow and list(self.weights) == [version]


@dataclass(slots=True)
class ModelEntry:
    """Versions of one model.

    `records`: the record of each version. `committed`: the version that the fleet committed ("": none). `routes`:
    servables by the version that a request names. The key "" is the route's choice, else the committed version, else
    the newest. `cache`: answers that are kept.
    """

    records: dict[str, Record] = field(default_factory=dict)
    routes: dict[str, RequestTarget] = field(default_factory=dict)
    committed: str = ""
    route: Route | None = None
    cache: ResponseCache | None = None

    @property
    def serving(self) -> dict[str, ModelTarget]:
        """Return the servables that answer requests, by version."""
        return {version: held.target for version, one in self.records.items() if (held := one.serving)}

    @property
    def default(self) -> str | None:
        """Return the version that answers requests without a version if there is no route; None if none serves."""
        serving = self.serving
        return self.committed if self.committed in serving else newest_version(serving)

    @property
    def loaded(self) -> dict[str, ModelTarget]:
        """Return every loaded version once. A serving version replaces a staged one of the same name."""
        held = {version: one.serving or one.staged for version, one in self.records.items()}
        return {version: one.target for version, one in held.items() if one}

    @property
    def reachable(self) -> set[str]:
        """Return the versions that a request may name."""
        return self.routes.keys() - {""}

    @property
    def weights(self) -> Mapping[str, int]:
        """Return the percentage of the requests that name no version, by version."""
        if self.route is not None:
            return percentages(self.route.weights)
        return {} if (default := self.default) is None else {default: WHOLE}

    def record(self, version: str) -> Record:
        """Return the record of a version."""
        return self.records.get(version, NEW)

    def note(self, version: str, record: Record) -> None:
        """Store the record of a version; remove it if it is empty."""
        if record.is_empty:
            self.records.pop(version, None)
        else:
            self.records[version] = record

    def serve(self, version: str, held: LoadedVersion[ModelTarget], *, committed: bool = False) -> ModelTarget | None:
        """Let a servable answer for its version from now on, and for the model if it is `committed`.

        Return the servable that it replaces, or None.
        """
        record = self.record(version)
        if record.staged is not None and record.staged.target is held.target:
            old = self._change(version, VersionChange.TAKE_OVER)
        else:
            old = self._change(version, VersionChange.SERVE, held)
        if committed:
            self.committed = version
        self.settle()
        return None if old is held.target else old

    def stage(self, version: str, held: LoadedVersion[ModelTarget]) -> ModelTarget | None:
        """Keep a servable as staged. Return the one that it replaces."""
        old = self._change(version, VersionChange.STAGE, held)
        self.settle()
        return old

    def withdraw(self, version: str, reason: str = "") -> ModelTarget | None:
        """Stop serving a version, for `reason`. Return its servable, or None."""
        servable = self._change(version, VersionChange.WITHDRAW) if self.record(version).serving else None
        if reason:
            self.attempt(version, Attempt.REFUSED, reason)
        self.committed = "" if version == self.committed else self.committed
        self.settle()
        return servable

    def unstage(self, version: str) -> ModelTarget | None:
        """Remove a staged version. Return its servable."""
        servable = self._change(version, VersionChange.UNSTAGE)
        self.settle()
        return servable

    def forget(self, version: str) -> None:
        """Forget a version that was removed from disk, except its staged release."""
        self.note(version, replace(NEW, staged=self.record(version).staged))

    def attempt(self, version: str, attempt: Attempt, reason: str = "") -> None:
        """Record the stage of the newest release of a version, with the reason if it does not serve."""
        self.note(version, attempted(self.record(version), attempt, reason))

    def count_hang(self, version: str) -> int:
        """Count a run that did not end. Return how many there were since the last load by hand."""
        record = self.record(version)
        self.note(version, replace(record, hangs=record.hangs + 1))
        return record.hangs + 1

    def _change(
        self, version: str, change: VersionChange, held: LoadedVersion[ModelTarget] | None = None
    ) -> ModelTarget | None:
        record, old = changed(self.record(version), change, held)
        self.note(version, record)
        return old.target if old else None

    def settle(self) -> None:
        """Update `routes` to the loaded versions; a route loses versions that are not loaded.

        Requests that collect for a version are submitted again: it may not be the one that answers them now.
        """
        loaded = self.loaded
        for servable in loaded.values():
            servable.close_batches()
        self.route = _healed(self.route, loaded)
        serving = self.serving
        if self.cache is not None:
            self.cache.keep({target.contents for target in loaded.values()})
            cached = {
                version: each if keeps_state(each.manifest) else cast("ModelTarget", CachedTarget(each, self.cache))
                for version, each in loaded.items()
            }
            loaded, serving = cached, {version: cached[version] for version in serving}
        routes: dict[str, RequestTarget] = dict(serving)
        if (default := self.default) is not None:
            routes[""] = serving[default]
        if self.route is not None:
            sharing = {version: loaded[version] for version in self.route.weights}
            routes |= sharing
            shadow = loaded.get(self.route.shadow)
            plain = shadow is None and len(sharing) == 1
            routes[""] = next(iter(sharing.values())) if plain else Split(sharing, self.route.turns, shadow)
        self.routes = routes


class Registry:
    """Index of all models. Read once per request; changed by the repository and by the leases of its routes."""

    def __init__(self, retry_after_s: float, caches: Mapping[str, ResponseCache] = MappingProxyType({})) -> None:
        self._entries: dict[str, ModelEntry] = {}
        self.caches = caches
        self._retry_after_s = retry_after_s
        self.is_read = True
        """Whether the models of this device are known: False until a daemon has read them for the first time."""

    def entry(self, model: str) -> ModelEntry:
        """Return the entry of `model`; create it if there is none."""
        return self._entries.setdefault(model, ModelEntry(cache=self.caches.get(model)))

    def known(self, model: str) -> ModelEntry:
        """Return the entry of `model`.

        Raises RequestError NOT_FOUND with the text that clients match (Triton's), UNAVAILABLE at the start.
        """
        entry = self._entries.get(model)
        if entry is None and not self.is_read:
            what = f"model '{model:.200}' is loading: the gateway starts and reads its models; try again"
            raise RequestError(Fault.UNAVAILABLE, what, retry_after_s=self._retry_after_s, is_loading=True)
        if entry is None:
            raise RequestError(Fault.NOT_FOUND, f"Request for unknown model: '{model:.200}' is not found")
        return entry

    def find(self, model: str, version: str = "") -> RequestTarget:
        """Return the target that answers now. Raises RequestError NOT_FOUND, or UNAVAILABLE with the reason."""
        try:
            return self._entries[model].routes[version]
        except KeyError:
            raise self._absent(model, version, self.known(model)) from None

    def record(self, model: str, version: str) -> Record:
        """Return the record of a version."""
        entry = self._entries.get(model)
        return NEW if entry is None else entry.record(version)

    def records(self) -> Iterator[Record]:
        """Iterate over the records of all versions."""
        for entry in self._entries.values():
            yield from entry.records.values()

    def serving(self, model: str, version: str) -> ModelTarget | None:
        """Return the servable that serves a version, or None."""
        held = self.record(model, version).serving
        return held.target if held else None

    def targets(self) -> Iterator[ModelTarget]:
        """Iterate over all loaded servables."""
        for record in self.records():
            yield from (held.target for held in (record.staged, record.serving) if held)

    def loaded(self) -> Iterator[tuple[ModelTarget, int]]:
        """Iterate over each loaded version once, with its weight, sorted by model and version."""
        for name in sorted(self._entries):
            entry = self._entries[name]
            loaded, weights = entry.loaded, entry.weights
            yield from ((loaded[version], weights.get(version, 0)) for version in sorted(loaded, key=version_order))

    def listed(self) -> set[tuple[str, str]]:
        """Return model and version of every version that serves, may serve soon, or is refused."""
        return {(name, v) for name, entry in self._entries.items() for v, one in entry.records.items() if one.is_listed}

    def staged(self) -> set[tuple[str, str]]:
        """Return model and version of every staged version."""
        return {(name, v) for name, entry in self._entries.items() for v, one in entry.records.items() if one.staged}

    def tidy(self, model: str) -> None:
        """Forget a model without known versions."""
        if not self.entry(model).records:
            del self._entries[model]

    def index(self) -> list[IndexEntry]:
        """Return each version that callers may name once: as serving, else as loading, else with its obstacle."""
        lines = []
        for name, entry in sorted(self._entries.items()):
            known = {version for version, one in entry.records.items() if one.attempt is not Attempt.NONE}
            lines += [_line(name, version, entry) for version in sorted(entry.reachable | known, key=version_order)]
        return lines

    def standings(self) -> list[VersionStatus]:
        """Return every version once, including staged ones."""
        return [line for name in sorted(self._entries) for line in _standings(name, self._entries[name])]

    def _absent(self, model: str, version: str, entry: ModelEntry) -> RequestError:
        listed = {name: one for name, one in entry.records.items() if one.is_listed}
        if version and entry.record(version).attempt is Attempt.NONE:
            what = f"Request for unknown model: '{model}' version {version:.200} is not found"
            return RequestError(Fault.NOT_FOUND, what)
        if entry.records and not listed:
            return RequestError(Fault.NOT_FOUND, f"Request for unknown model: '{model:.200}' is not found")
        named = f"'{model}' version {version}" if version else f"'{model}'"
        asked, now_ns = [one for name, one in listed.items() if version in {"", name}], time.monotonic_ns()
        if loads := [one.obstacle(now_ns) for one in asked if one.is_loading]:
            what = f"model {named} is loading: {loads[-1]}; try again"
        else:
            reasons = "; ".join(filter(None, (one.obstacle(now_ns) for one in asked)))
            what = f"model {named} is not ready: {reasons or 'it is being unloaded'}"
        is_loading = any(one.is_loading or one.attempt is Attempt.UNDECIDED for one in asked)
        return RequestError(Fault.UNAVAILABLE, what, retry_after_s=self._retry_after_s, is_loading=is_loading)


def _healed(route: Route | None, loaded: Mapping[str, ModelTarget]) -> Route | None:
    """Return the route without unloaded versions: the others get their share. None if no version is left."""
    if route is None:
        return None
    weights = {version: weight for version, weight in route.weights.items() if version in loaded}
    shadow = route.shadow if route.shadow in loaded else ""
    if not weights or (len(weights) == len(route.weights) and shadow == route.shadow):
        return route if weights else None
    turns = route.turns if len(weights) == len(route.weights) else WeightedRoundRobin(weights)
    return Route(turns, "" if list(weights) == [shadow] else shadow)


def _line(name: str, version: str, entry: ModelEntry) -> IndexEntry:
    record, reason = entry.record(version), entry.record(version).obstacle(time.monotonic_ns())
    if version in entry.reachable:
        kind = "undecided" if record.retry else "refused"
        held, retry = record.serving, record.retry
        is_same = held is not None and (
            record.serves(retry.release) if retry else bool(reason) and not held.target.fits
        )
        words = f"it is {kind} with the models that serve now" if is_same else f"a newer file is {kind}"
        state = "UNAVAILABLE" if held is not None and held.target.refusal else "READY"
        placed = held or record.staged
        degraded = placed.target.placement.degraded if placed else ""
        refusal = held.target.refusal if held is not None else ""
        reasons = (f"{words}: {record.reason}" if record.reason else refusal, degraded and f"degraded: {degraded}")
        return IndexEntry(name, version, state, "; ".join(filter(None, reasons)))
    return IndexEntry(name, version, "LOADING" if record.is_loading else "UNAVAILABLE", reason)


def _standings(name: str, entry: ModelEntry) -> Iterator[VersionStatus]:
    loaded, weights = entry.loaded, entry.weights
    for version in sorted(entry.records, key=version_order):
        line, servable = _line(name, version, entry), loaded.get(version)
        hidden = servable is not None and version not in entry.reachable
        yield VersionStatus(
            name,
            version,
            "LOADED" if hidden else line.state,
            line.reason,
            weights.get(version, 0),
            servable.placement if servable else None,
            undecided=entry.record(version).attempt is Attempt.UNDECIDED,
        )
