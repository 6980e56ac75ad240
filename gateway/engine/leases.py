"""Routes that are lent: requests that name no version are shared as somebody asked, for as long as that is renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.domain.errors import Fault, RequestError
from gateway.domain.events import LeaseRanOut, Publish, RouteChanged
from gateway.domain.sharing import Turns, check_weights
from gateway.engine.registry import Entry, Registry, Route


class Leases:
    """Sets and ends the routes of a registry. Lives on the loop; one timer per lent route."""

    def __init__(self, registry: Registry, limit_s: float, publish: Publish) -> None:
        self._registry, self._limit_s, self._publish = registry, limit_s, publish
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def route(self, model: str, weights: Mapping[str, int], shadow: str, lease_s: float) -> None:
        """Serving.route: applied whole, or RequestError INVALID or NOT_FOUND and nothing has changed.

        What is the default anyway needs no lease. The same weights again go on where their turns are.
        """
        entry = self._registry.known(model)
        self._check(model, entry, weights, shadow, lease_s)
        old, before = entry.route, _told(entry)
        turns = old.turns if old is not None and old.weights == _some(weights) else Turns(weights)
        route = Route(turns, shadow)
        entry.route = None if _is_default(route, entry) else route
        entry.settle()
        self._cancel(model)
        if entry.route is not None:
            loop = asyncio.get_running_loop()
            self._timers[model] = loop.call_later(lease_s, self._run_out, model)
        if _told(entry) != before:
            self._publish(RouteChanged(model, *_told(entry)))

    def settle(self, model: str, before: Route | None, reason: str) -> None:
        """After `model` gained or lost a version: say what became of its route (`before`); end one that is the default
        by now."""
        entry = self._registry.entry(model)
        route = entry.route
        if route is not None and _is_default(route, entry):
            entry.route = None
            entry.settle()
        if entry.route is None:
            self._cancel(model)
        if before is not None and route is not before:
            self._publish(RouteChanged(model, *_told(entry), reason))

    def end(self, model: str, reason: str) -> None:
        """Let the default answer again."""
        entry = self._registry.entry(model)
        before, entry.route = entry.route, None
        entry.settle()
        self.settle(model, before, reason)

    def close(self) -> None:
        """Let every lease be."""
        for model in list(self._timers):
            self._cancel(model)

    def _check(self, model: str, entry: Entry, weights: Mapping[str, int], shadow: str, lease_s: float) -> None:
        check_weights(model, weights)
        if not 0 < lease_s <= self._limit_s:
            raise _invalid(model, f"a lease of {lease_s:g} s; it must be above 0 and at most {self._limit_s:g} s")
        for version in (*weights, *([shadow] if shadow else [])):
            if version not in entry.loaded:
                what = f"model '{model:.200}' version {version:.200} is not loaded; load it before it is routed to"
                raise RequestError(Fault.NOT_FOUND, what)
        if shadow and list(_some(weights)) == [shadow]:
            raise _invalid(model, f"version {shadow} answers everything, so there is nothing to compare it with")

    def _run_out(self, model: str) -> None:
        del self._timers[model]
        entry = self._registry.entry(model)
        if entry.route is not None:
            weights, entry.route = dict(entry.route.weights), None
            entry.settle()
            self._publish(LeaseRanOut(model, weights))
        self._registry.tidy(model)

    def _cancel(self, model: str) -> None:
        timer = self._timers.pop(model, None)
        if timer is not None:
            timer.cancel()


def _some(weights: Mapping[str, int]) -> dict[str, int]:
    return {version: weight for version, weight in weights.items() if weight}


def _told(entry: Entry) -> tuple[Mapping[str, int], str]:
    """Who gets how much, and who is compared."""
    return dict(entry.weights), entry.route.shadow if entry.route else ""


def _is_default(route: Route, entry: Entry) -> bool:
    return entry.default is not None and route.only(entry.default)


def _invalid(model: str, problem: str) -> RequestError:
    return RequestError(Fault.INVALID, f"model '{model:.200}': {problem}")
