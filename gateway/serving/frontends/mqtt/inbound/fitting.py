"""Checks that a route fits its model, and the form of its windows. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.serving.frontends.mqtt.inbound.timed import idle_expiry_ns, sample_timing
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.windows.rings import Padding, WindowShape
from gateway.serving.frontends.mqtt.windows.samples import GapPolicy
from gateway.serving.frontends.mqtt.windows.sensors import Windows


def window_shape(route: MqttRoute, manifest: ModelManifest) -> WindowShape | None:
    """Return the shape of the route's windows; its own sizes have precedence over the manifest's.

    Return None if each message is an input of its own. Raises RequestError UNAVAILABLE if route and model do not fit.
    """
    if route.window.has_sessions:
        return _session_shape(route, manifest)
    window = manifest.window
    size_rows = route.size_rows or (window.size_rows if window else 0)
    if not size_rows:
        if route.hop_rows:
            raise _unfit(route, "has no [window]; set size_rows together with hop_rows, or remove hop_rows")
        if route.time.joins:
            raise _unfit(route, "has no [window], and join makes rows of windows; set size_rows, 1 for single rows")
        return None
    hop_rows = route.hop_rows or (window.hop_rows if window else size_rows)
    return WindowShape(size_rows, _channels(route, manifest), hop_rows)


def _session_shape(route: MqttRoute, manifest: ModelManifest) -> WindowShape:
    """Return the shape of the longest session, after which another one begins."""
    window, taken = manifest.window, window_rows(manifest.inputs[0])
    size_rows = route.size_rows or (window.size_rows if window else taken or 0)
    if not size_rows:
        raise _unfit(route, "takes any number of rows; set size_rows to the most rows of a session")
    if taken is not None and size_rows > taken:
        raise _unfit(route, f"takes {taken} rows; set size_rows to at most that, or remove it")
    if route.window.least_rows > size_rows:
        raise _unfit(route, f"gets at most {size_rows} rows; set least_rows to at most that")
    return WindowShape(size_rows, _channels(route, manifest), size_rows)


def window_rows(spec: TensorSpec) -> int | None:
    """Return the number of rows of a window that a model takes; None: any number."""
    axes = spec.shape[-2:][::-1] if spec.layout == "NCL" else spec.shape[-2:]
    return axes[0] if len(axes) > 1 and axes[0] > 0 else None


def padding(route: MqttRoute, manifest: ModelManifest, shape: WindowShape) -> Padding | None:
    """Return how sessions become as long as the model takes; None: they stay as they are."""
    taken = window_rows(manifest.inputs[0])
    if not route.window.has_sessions or (taken is None and not route.window.pad):
        return None
    return Padding(taken or shape.size_rows, route.window.pad or "zero")


def new_windows(
    route: MqttRoute,
    manifest: ModelManifest,
    shape: WindowShape,
    order: Sequence[int] | None,
    counters: Counter[str],
) -> Windows:
    """Return empty windows of rows in `order`. Raises RequestError UNAVAILABLE if route and model do not fit."""
    return Windows(
        shape,
        route.max_sensors,
        idle_expiry_ns(route, manifest),
        counters,
        timing=sample_timing(route, manifest, order),
        by_sequence=bool(route.time.sequence),
        resets=GapPolicy(route.time.gap) is GapPolicy.RESET,
    )


def _channels(route: MqttRoute, manifest: ModelManifest) -> int:
    """Return the number of channels of a row."""
    spec = manifest.inputs[0]
    channels = len(manifest.window.channels) if manifest.window else spec.shape[-2 if spec.layout == "NCL" else -1]
    if channels < 1:
        raise _unfit(route, "does not say how many channels a sample has; give its manifest a [window]")
    return channels


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
    return RequestError(Fault.UNAVAILABLE, f"route '{route.name}': model '{route.model}' {problem} (EG-605)")
