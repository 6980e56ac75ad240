"""Checks that a route fits its model, and the shape of its windows. Pure functions."""

from __future__ import annotations

from gateway.domain.errors import Fault, RequestError
from gateway.domain.manifest import ModelManifest
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.windows.rings import WindowShape


def window_shape(route: MqttRoute, manifest: ModelManifest) -> WindowShape | None:
    """Return the shape of the route's windows; its own sizes have precedence over the manifest's.

    Return None if each message is an input of its own. Raises RequestError UNAVAILABLE if route and model do not fit.
    """
    window, spec = manifest.window, manifest.inputs[0]
    size_rows = route.size_rows or (window.size_rows if window else 0)
    if not size_rows:
        if route.hop_rows:
            raise _unfit(route, "has no [window]; set size_rows together with hop_rows, or remove hop_rows")
        return None
    channels = len(window.channels) if window else spec.shape[-2 if spec.layout == "NCL" else -1]
    if channels < 1:
        raise _unfit(route, "does not say how many channels a sample has; give its manifest a [window]")
    return WindowShape(size_rows, channels, route.hop_rows or (window.hop_rows if window else size_rows))


def channel_order(route: MqttRoute, manifest: ModelManifest, shape: WindowShape | None) -> list[int] | None:
    """Return the places of the route's channels in the order of the model's [window]; None: the same order.

    Raises RequestError UNAVAILABLE if number or names of the channels do not fit the model.
    """
    if not route.channel or shape is None:
        return None
    if len(route.channel) != shape.channels:
        raise _unfit(route, f"takes {shape.channels} channels, but the route has {len(route.channel)}")
    names = [channel.name for channel in route.channel]
    if not any(names) or manifest.window is None:
        return None
    if sorted(names) != sorted(manifest.window.channels):
        known = ", ".join(manifest.window.channels)
        raise _unfit(route, f"has channels {known:.200}; name each of them once in the route's channels")
    return [names.index(name) for name in manifest.window.channels]


def check_outputs(route: MqttRoute, manifest: ModelManifest) -> None:
    """Raise RequestError UNAVAILABLE if the route names an output that the model does not have."""
    missing = [name for name in route.outputs if manifest.output(name) is None]
    if missing:
        known = ", ".join(spec.name for spec in manifest.outputs)
        raise _unfit(route, f"has no output '{missing[0]}'; its outputs are {known}: correct the route's outputs")


def _unfit(route: MqttRoute, problem: str) -> RequestError:
    return RequestError(Fault.UNAVAILABLE, f"route '{route.name}': model '{route.model}' {problem}")
