"""Fake of `gateway.device.agent.control.DaemonClient` in memory: it records calls and fails on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.common.domain.activation import Activation

Document = dict[str, Any]


class SimulatedControl:
    """Fake control API.

    The next call of a method raises `fail[method]`; every call raises `always[method]`. `plan` offers `variants` in
    this order, those in `refused` as not eligible. `serving` is the version of the slot that answers, with its
    `counters` by version. `on_commit` is called where the daemon would read the committed releases.
    """

    def __init__(self, variants: tuple[str, ...] = ("only",), on_commit: Callable[[], None] = lambda: None) -> None:
        self.variants, self.refused, self.on_commit = variants, set[str](), on_commit
        self.told: list[tuple[Any, ...]] = []
        self.fail: dict[str, Exception] = {}
        self.always: dict[str, Exception] = {}
        self.p50_us: float | None = None
        self.models: list[Document] = []
        self.counters: dict[str, Document] = {}
        self.replayed: Document = {"rows": 0, "passed": True, "reason": "it has no golden set"}
        self.instance, self.rss_bytes = "first", 1000
        self.temperatures: dict[str, float] = {}

    def named(self, method: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a method."""
        return [call[1:] for call in self.told if call[0] == method]

    def serve(self, slot: str, version: str, weight: int = 100, *, signed: bool = True) -> None:
        """Add a ready version. Not `signed`: from a model folder without signature."""
        model = {"model": slot, "version": version, "state": "READY", "signed": signed, "weight": weight}
        self.models.append(model)

    # ---- Control -----------------------------------------------------------------------------------------------------
    def status(self) -> Document:
        self._called("status")
        return {"instance": self.instance, "rss_bytes": self.rss_bytes, "models": list(self.models)}

    def vitals(self) -> Document:
        self._called("vitals")
        return {"temperatures_c": self.temperatures, "throttled": None}

    def statistics(self, slot: str) -> dict[str, Document]:
        self._called("statistics", slot)
        return dict(self.counters)

    def plan(self, activation: Activation) -> list[Document]:
        self._called("plan", activation)
        return [
            {"variant": name, "fits": True, "eligible": name not in self.refused, "reason": f"{name} was tried"}
            for name in self.variants
        ]

    def load(self, activation: Activation) -> Document:
        self._called("load", activation)
        return {"variant": activation.variants[-1], "measured": self.p50_us and {"p50_us": self.p50_us}}

    def route(self, slot: str, weights: Mapping[str, int], shadow: str = "", lease_s: float = 0.0) -> None:
        self._called("route", slot, dict(weights), shadow, lease_s)

    def replay(self, slot: str, version: str) -> Document:
        self._called("replay", slot, version)
        return dict(self.replayed)

    def unload(self, slot: str, version: str, drain_s: float) -> None:
        self._called("unload", slot, version, drain_s)

    def commit(self) -> Document:
        self._called("commit")
        self.on_commit()
        return {}

    def _called(self, method: str, *arguments: Any) -> None:
        self.told.append((method, *arguments))
        error = self.fail.pop(method, None) or self.always.get(method)
        if error is not None:
            raise error
