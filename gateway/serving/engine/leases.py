"""Leased routes: shares of the requests that name no version, valid for as long as the lease is renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import LeaseRanOut, Publish, RouteChanged
from gateway.serving.domain.sharing import WeightedRoundRobin, check_weights
from gateway.serving.engine.registry import ModelEntry, Registry, Route


class Leases:
    """Routes of a registry with a limited time. Used on the event loop; one timer per leased route."""

    def __init__(self, registry: Registry, limit_s: float, publish: Publish) -> None:
        self._registry, self._limit_s, self._publish = registry, limit_s, publish
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def route(self, model: str, weights: Mapping[str, int], shadow: str, lease_s: float) -> None:
        """Implement `Serving.route`: apply the route as a whole. Raises RequestError INVALID or NOT_FOUND.

        Nothing has changed after an error. A route that equals the default needs no lease. A route with the same
        weights continues the turns of the old one.
        """
        entry = self._registry.known(model)
        self._check(model, entry, weights, shadow, lease_s)
        old, before = entry.route, _weights(entry)
        turns = old.turns if old is not None and old.weights == _some(weights) else WeightedRoundRobin(weights)
        route = Route(turns, shadow)
        entry.route = None if _is_default(route, entry) else route
        entry.settle()
        self._cancel(model)
        if entry.route is not None:
            loop = asyncio.get_running_loop()
            self._timers[model] = loop.call_later(lease_s, self._run_out, model)
        if _weights(entry) != before:
            self._publish(RouteChanged(model, *_weights(entry)))

    def settle(self, model: str, before: Route | None, reason: str) -> None:
        """Report the route's change after `model` gained or lost a version; `before` is the route before that.

        Ends the route if it equals the default now.
        """
        entry = self._registry.entry(model)
        route = entry.route
        if route is not None and _is_default(route, entry):
            entry.route = None
            entry.settle()
        if entry.route is None:
            self._cancel(model)
        if before is not None and route is not before:
            self._publish(RouteChanged(model, *_weights(entry), reason))

    def end(self, model: str, reason: str) -> None:
        """End the route: the default version answers again."""
        entry = self._registry.entry(model)
        before, entry.route = entry.route, None
        entry.settle()
        self.settle(model, before, reason)

    def close(self) -> None:
        """Cancel the timers of all leases."""
        for model in list(self._timers):
            self._cancel(model)

    def _check(self, model: str, entry: ModelEntry, weights: Mapping[str, int], shadow: str, lease_s: float) -> None:
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


def _weights(entry: ModelEntry) -> tuple[Mapping[str, int], str]:
    """Return each version's weight and the shadow version."""
    return dict(entry.weights), entry.route.shadow if entry.route else ""


def _is_default(route: Route, entry: ModelEntry) -> bool:
    return entry.default is not None and route.only(entry.default)


def _invalid(model: str, problem: str) -> RequestError:
    return RequestError(Fault.INVALID, f"model '{model:.200}': {problem}")
