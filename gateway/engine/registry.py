"""Models and versions that are served, staged, loading or refused, with reasons. Used on the event loop, no lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gateway.domain.errors import Fault, RequestError
from gateway.domain.ports import IndexEntry, Standing
from gateway.domain.routing import newest_version, version_order
from gateway.domain.sharing import WHOLE, Turns, percentages
from gateway.engine.servable import Servable
from gateway.engine.split import Split


@dataclass(frozen=True, slots=True)
class Route:
    """Shares of the requests that name no version, and the shadow version ("": none)."""

    turns: Turns
    shadow: str = ""

    @property
    def weights(self) -> Mapping[str, int]:
        """Return each version's weight; versions with weight 0 are left out."""
        return self.turns.weights

    def only(self, version: str) -> bool:
        """Return True if `version` gets all requests and there is no shadow."""
        return not self.shadow and list(self.weights) == [version]


@dataclass(slots=True)
class Entry:
    """Versions of one model.

    `serving`: answer requests. `staged`: loaded, and answer only what a `route` gives them. `loading`: will serve.
    `refused`: reasons why they do not serve. `committed`: the version that the fleet committed ("": none). `routes`:
    servables by the version that a request names. The key "" is the route's choice, else the committed version, else
    the newest.
    """

    serving: dict[str, Servable] = field(default_factory=dict)
    staged: dict[str, Servable] = field(default_factory=dict)
    routes: dict[str, Servable | Split] = field(default_factory=dict)
    loading: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    committed: str = ""
    route: Route | None = None

    @property
    def default(self) -> str | None:
        """Return the version that answers requests without a version if there is no route; None if none serves."""
        return self.committed if self.committed in self.serving else newest_version(self.serving)

    @property
    def loaded(self) -> dict[str, Servable]:
        """Return every loaded version once. A serving version replaces a staged one of the same name."""
        return {**self.staged, **self.serving}

    @property
    def reachable(self) -> set[str]:
        """Return the versions that a request may name."""
        return self.routes.keys() - {""}

    @property
    def weights(self) -> Mapping[str, int]:
        """Return the percentage of the requests that name no version, by version."""
        if self.route is not None:
            return percentages(self.route.weights)
        return {} if self.default is None else {self.default: WHOLE}

    def serve(self, version: str, servable: Servable, *, committed: bool = False) -> None:
        """Let a servable answer for its version from now on, and for the model if it is `committed`."""
        self.serving[version] = servable
        if committed:
            self.committed = version
        self.settle()

    def stage(self, version: str, servable: Servable) -> Servable | None:
        """Keep a servable as staged. Return the one that it replaces."""
        old = self.staged.get(version)
        self.staged[version] = servable
        self.settle()
        return old

    def withdraw(self, version: str) -> Servable | None:
        """Stop serving a version. Return its servable."""
        servable = self.serving.pop(version, None)
        self.committed = "" if version == self.committed else self.committed
        self.settle()
        return servable

    def unstage(self, version: str) -> Servable | None:
        """Remove a staged version. Return its servable."""
        servable = self.staged.pop(version, None)
        self.settle()
        return servable

    def settle(self) -> None:
        """Update `routes` to the loaded versions; a route loses versions that are not loaded.

        Requests that collect for a version are submitted again: it may not be the one that answers them now.
        """
        loaded = self.loaded
        for servable in loaded.values():
            servable.raw.close()
        self.route = _healed(self.route, loaded)
        routes: dict[str, Servable | Split] = dict(self.serving)
        if (default := self.default) is not None:
            routes[""] = self.serving[default]
        if self.route is not None:
            sharing = {version: loaded[version] for version in self.route.weights}
            routes |= sharing
            shadow = loaded.get(self.route.shadow)
            plain = shadow is None and len(sharing) == 1
            routes[""] = next(iter(sharing.values())) if plain else Split(sharing, self.route.turns, shadow)
        self.routes = routes


class Registry:
    """Index of all models. Read once per request; changed by the repository and by the leases of its routes."""

    def __init__(self, retry_after_s: float) -> None:
        self._entries: dict[str, Entry] = {}
        self._retry_after_s = retry_after_s

    def entry(self, model: str) -> Entry:
        """Return the entry of `model`; create it if there is none."""
        return self._entries.setdefault(model, Entry())

    def known(self, model: str) -> Entry:
        """Return the entry of `model`. Raises RequestError NOT_FOUND with the text that clients match (Triton's)."""
        entry = self._entries.get(model)
        if entry is None:
            raise RequestError(Fault.NOT_FOUND, f"Request for unknown model: '{model:.200}' is not found")
        return entry

    def find(self, model: str, version: str = "") -> Servable | Split:
        """Return what answers now. Raises RequestError NOT_FOUND, or UNAVAILABLE with the reason."""
        try:
            return self._entries[model].routes[version]
        except KeyError:
            raise self._absent(model, version, self.known(model)) from None

    def serving(self, model: str, version: str) -> Servable | None:
        """Return the servable that serves a version, or None."""
        entry = self._entries.get(model)
        return None if entry is None else entry.serving.get(version)

    def servables(self) -> Iterator[Servable]:
        """Iterate over all loaded servables; those of one model staged first."""
        for entry in self._entries.values():
            yield from (*entry.staged.values(), *entry.serving.values())

    def loaded(self) -> Iterator[tuple[Servable, int]]:
        """Iterate over each loaded version once, with its weight, sorted by model and version."""
        for name in sorted(self._entries):
            entry = self._entries[name]
            loaded, weights = entry.loaded, entry.weights
            yield from ((loaded[version], weights.get(version, 0)) for version in sorted(loaded, key=version_order))

    def settled(self) -> set[tuple[str, str]]:
        """Return model and version of everything that serves, loads or is refused."""
        return {(name, v) for name, e in self._entries.items() for v in (*e.serving, *e.loading, *e.refused)}

    def forget(self, model: str, version: str) -> None:
        """Forget a version that is gone from disk."""
        self.entry(model).refused.pop(version, None)
        self.tidy(model)

    def tidy(self, model: str) -> None:
        """Forget a model that has no version serving, loading, staged or refused."""
        entry = self.entry(model)
        if not (entry.serving or entry.staged or entry.loading or entry.refused):
            del self._entries[model]

    def index(self) -> list[IndexEntry]:
        """Return each version that callers may name once: as serving, else as loading, else as refused."""
        return [line for name in sorted(self._entries) for line in _lines(name, self._entries[name])]

    def standings(self) -> list[Standing]:
        """Return every version once, including staged ones."""
        return [line for name in sorted(self._entries) for line in _standings(name, self._entries[name])]

    def _absent(self, model: str, version: str, entry: Entry) -> RequestError:
        if version and version not in entry.loading and version not in entry.refused:
            return RequestError(
                Fault.NOT_FOUND, f"Request for unknown model: '{model}' version {version:.200} is not found"
            )
        if entry.staged and not (entry.loading or entry.refused):
            return RequestError(Fault.NOT_FOUND, f"Request for unknown model: '{model:.200}' is not found")
        reasons = [reason for name, reason in entry.refused.items() if version in {"", name}]
        what = "; ".join(reasons) or ("it is loading" if entry.loading else "it is being unloaded")
        named = f"'{model}' version {version}" if version else f"'{model}'"
        return RequestError(Fault.UNAVAILABLE, f"model {named} is not ready: {what}", retry_after_s=self._retry_after_s)


def _healed(route: Route | None, loaded: Mapping[str, Servable]) -> Route | None:
    """Return the route without unloaded versions: the others get their share. None if no version is left."""
    if route is None:
        return None
    weights = {version: weight for version, weight in route.weights.items() if version in loaded}
    shadow = route.shadow if route.shadow in loaded else ""
    if not weights or (len(weights) == len(route.weights) and shadow == route.shadow):
        return route if weights else None
    turns = route.turns if len(weights) == len(route.weights) else Turns(weights)
    return Route(turns, "" if list(weights) == [shadow] else shadow)


def _lines(name: str, entry: Entry) -> list[IndexEntry]:
    versions = sorted({*entry.reachable, *entry.loading, *entry.refused}, key=version_order)
    return [_line(name, version, entry) for version in versions]


def _line(name: str, version: str, entry: Entry) -> IndexEntry:
    refused = entry.refused.get(version, "")
    if version in entry.reachable:
        return IndexEntry(name, version, "READY", refused and f"a newer file is refused: {refused}")
    if version in entry.loading:
        return IndexEntry(name, version, "LOADING")
    return IndexEntry(name, version, "UNAVAILABLE", refused)


def _standings(name: str, entry: Entry) -> Iterator[Standing]:
    loaded, weights = entry.loaded, entry.weights
    for version in sorted({*loaded, *entry.loading, *entry.refused}, key=version_order):
        line, servable = _line(name, version, entry), loaded.get(version)
        hidden = servable is not None and version not in entry.reachable
        yield Standing(
            name,
            version,
            "LOADED" if hidden else line.state,
            line.reason,
            weights.get(version, 0),
            servable.placement if servable else None,
        )
