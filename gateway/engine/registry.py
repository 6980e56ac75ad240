"""What is served, what is loading, what is refused and why: by model name and version. Lives on the loop, no lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.domain.errors import Fault, RequestError
from gateway.domain.ports import IndexEntry
from gateway.domain.routing import newest_version, version_order
from gateway.engine.servable import Servable


@dataclass(slots=True)
class Entry:
    """One model's versions: `serving` answer requests, `loading` will, `refused` say why they do not.

    `routes` is `serving` as requests name it: with "" for the newest.
    """

    serving: dict[str, Servable] = field(default_factory=dict)
    routes: dict[str, Servable] = field(default_factory=dict)
    loading: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    def serve(self, version: str, servable: Servable) -> None:
        """Let a servable answer for its version from now on."""
        self.serving[version] = servable
        self._route()

    def withdraw(self, version: str) -> Servable | None:
        """Let a version answer no more; returns what did."""
        servable = self.serving.pop(version, None)
        self._route()
        return servable

    def _route(self) -> None:
        newest = newest_version(self.serving)
        self.routes = dict(self.serving) if newest is None else {**self.serving, "": self.serving[newest]}


class Registry:
    """Looked up once per request; changed only by the repository."""

    def __init__(self, retry_after_s: float) -> None:
        self._entries: dict[str, Entry] = {}
        self._retry_after_s = retry_after_s

    def entry(self, model: str) -> Entry:
        """The entry of `model`, made when absent."""
        return self._entries.setdefault(model, Entry())

    def known(self, model: str) -> Entry:
        """The entry of `model`. Raises RequestError NOT_FOUND with the text that clients match (Triton's)."""
        entry = self._entries.get(model)
        if entry is None:
            raise RequestError(Fault.NOT_FOUND, f"Request for unknown model: '{model:.200}' is not found")
        return entry

    def find(self, model: str, version: str = "") -> Servable:
        """What answers now. Raises RequestError NOT_FOUND, or UNAVAILABLE with the reason."""
        try:
            return self._entries[model].routes[version]
        except KeyError:
            raise self._absent(model, version, self.known(model)) from None

    def servables(self) -> Iterator[Servable]:
        """All that serve, sorted by model and version."""
        for name in sorted(self._entries):
            serving = self._entries[name].serving
            yield from (serving[version] for version in sorted(serving, key=version_order))

    def forget(self, model: str, version: str) -> None:
        """Drop what is remembered of a version that is gone from disk."""
        self.entry(model).refused.pop(version, None)
        self.tidy(model)

    def tidy(self, model: str) -> None:
        """Drop a model of which nothing serves, loads or is refused."""
        entry = self.entry(model)
        if not (entry.serving or entry.loading or entry.refused):
            del self._entries[model]

    def index(self) -> list[IndexEntry]:
        """Every version once: what serves before what loads before what is refused."""
        return [line for name in sorted(self._entries) for line in _lines(name, self._entries[name])]

    def _absent(self, model: str, version: str, entry: Entry) -> RequestError:
        if version and version not in entry.loading and version not in entry.refused:
            return RequestError(
                Fault.NOT_FOUND, f"Request for unknown model: '{model}' version {version:.200} is not found"
            )
        reasons = [reason for name, reason in entry.refused.items() if version in {"", name}]
        what = "; ".join(reasons) or ("it is loading" if entry.loading else "it is being unloaded")
        named = f"'{model}' version {version}" if version else f"'{model}'"
        return RequestError(Fault.UNAVAILABLE, f"model {named} is not ready: {what}", retry_after_s=self._retry_after_s)


def _lines(name: str, entry: Entry) -> list[IndexEntry]:
    versions = sorted({*entry.serving, *entry.loading, *entry.refused}, key=version_order)
    return [_line(name, version, entry) for version in versions]


def _line(name: str, version: str, entry: Entry) -> IndexEntry:
    refused = entry.refused.get(version, "")
    if version in entry.serving:
        return IndexEntry(name, version, "READY", refused and f"a newer file is refused: {refused}")
    if version in entry.loading:
        return IndexEntry(name, version, "LOADING")
    return IndexEntry(name, version, "UNAVAILABLE", refused)
