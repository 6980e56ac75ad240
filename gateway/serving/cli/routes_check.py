"""Result of one message on a route: its rows, and what becomes of them if nothing else comes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, fits
from gateway.common.domain.tensor import Tensor, finish
from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.inbound.fitting import channel_order, window_shape
from gateway.serving.frontends.mqtt.inbound.payloads.channels import Values
from gateway.serving.frontends.mqtt.inbound.timed import sequences_of, times_of
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.contents import timestamp
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttWindow
from gateway.serving.frontends.mqtt.windows.rings import WindowShape


@dataclass(frozen=True, slots=True)
class RouteCheck:
    """Result for one message: sensor, rows, and the model inputs that it completes. `problem`: why it is refused."""

    route: MqttRoute
    topic: str
    sensor: str = ""
    rows: tuple[tuple[float, ...], ...] = ()
    stamps: dict[str, list[str]] = field(default_factory=dict)
    """Time and sequence number of each row, as far as the route reads them, by the name of their column."""
    inputs: int = 0
    window: str = ""
    windows: tuple[tuple[int, int], ...] = ()
    """Rows of each window that ends, and rows that are added to it, if nothing else comes."""
    joined: tuple[tuple[float, ...], ...] = ()
    """Rows that are joined by time, if nothing else comes."""
    tensor: str = ""
    problem: str = ""
    remark: str = ""


def check(route: MqttRoute, manifest: ModelManifest | None, message: Message) -> RouteCheck:
    """Return what the route makes of one message, if nothing else comes."""
    decoder = new_decoder(route, manifest)
    checked, ready = _decoded(decoder, message)
    if checked.problem or manifest is None:
        return checked
    ready += decoder.expire()
    windows = tuple(
        (len(each.window.rows), each.padded_rows)
        for each in ready
        if each.window is not None and each.padded_rows is not None
    )
    spec = manifest.inputs[0]  # the one that the daemon sends to
    if (
        checked.tensor
        and not spec.takes_encoded
        and not all(fits(each.tensor.array.shape, spec.shape) for each in ready)
    ):
        problem = (
            f"INVALID: input '{spec.name}' of model '{route.model}' takes {spec.datatype.label} {list(spec.shape)}"
        )
        return replace(checked, problem=f"{problem}, not {checked.tensor}")
    joined = _joined(route, manifest, message) if route.time.joins else ()
    return replace(checked, inputs=len(ready), windows=windows, joined=joined)


def new_decoder(route: MqttRoute, manifest: ModelManifest | None) -> RouteDecoder:
    """Return a decoder that knows one model, or none."""

    def describe(_model: str, _version: str) -> ModelManifest:
        if manifest is None:
            raise RequestError(Fault.NOT_FOUND, f"model '{route.model}' was not found; set its folder with --models")
        return manifest

    return RouteDecoder(route, describe, Counter())


def decoded(decoder: RouteDecoder, message: Message) -> RouteCheck:
    """Return what a decoder makes of a message, after those before it."""
    return _decoded(decoder, message)[0]


def _decoded(decoder: RouteDecoder, message: Message) -> tuple[RouteCheck, list[Ready]]:
    checked = RouteCheck(decoder.route, message.topic)
    try:
        reading = decoder.begin(message)
        sample = finish(decoder.steps(message, reading))
        ready = list(decoder.complete(message, reading, sample).ready)
    except RequestError as refused:
        return replace(checked, problem=f"{refused.fault.value}: {refused.message}"), []
    checked = replace(checked, sensor=sample.sensor, inputs=len(ready))
    content = sample.content
    if isinstance(content, Tensor):
        return replace(checked, tensor=f"{content.datatype.label} {list(content.array.shape)}"), ready
    count = len(decoder.route.channel) or content.shape[1]
    rows = tuple(tuple(row) for row in content[:, :count].tolist())
    stamps = _stamps(decoder.route, content[:, count:].astype(np.float64), message)
    remark = "" if rows else "no row: values are missing, and `missing` of their channels leaves the row out"
    window = _window(decoder.route, reading.windows.shape) if reading.windows else ""
    return replace(checked, rows=rows, stamps=stamps, window=window, remark=remark), ready


def _stamps(route: MqttRoute, values: Values, message: Message) -> dict[str, list[str]]:
    """Return time and sequence number of each row, as text."""
    stamps = dict[str, list[str]]()
    if route.time.path:
        stamps["time"] = [timestamp(time_ns) for time_ns in times_of(route.time, values, message)]
    if route.time.sequence:
        stamps["number"] = [str(number) for number in sequences_of(route.time, values)]
    return stamps


def _window(route: MqttRoute, shape: WindowShape) -> str:
    """Return a description of the route's windows."""
    if route.window.has_sessions:
        return f"at most {shape.size_rows} rows, ends after {route.window.session_gap_s:g} s without samples"
    return f"{shape.size_rows} rows, a new one every {shape.hop_rows}"


def _joined(route: MqttRoute, manifest: ModelManifest, message: Message) -> tuple[tuple[float, ...], ...]:
    """Return the rows that a message gives if nothing else comes, with the channels in the order of the route."""
    single = replace(route, size_rows=1, hop_rows=1, window=MqttWindow())
    decoder = new_decoder(single, manifest)
    found = [*_decoded(decoder, message)[1], *decoder.expire()]
    order = channel_order(single, manifest, window_shape(single, manifest)) or range(len(route.channel))
    places = [order.index(place) for place in range(len(route.channel))]
    return tuple(tuple(each.window.rows[0, places].tolist()) for each in found if each.window)


def as_json(checked: RouteCheck) -> dict[str, Any]:
    """Return the result for programs. A value that comes from other messages is null."""
    rows = [[None if math.isnan(value) else value for value in row] for row in checked.rows]
    channels = [{"path": each.path, "name": each.name, "unit": each.unit} for each in checked.route.channel]
    facts: dict[str, Any] = {"route": checked.route.name}
    facts |= {"topic": checked.topic, "sensor": checked.sensor, "channels": channels}
    facts |= {"rows": rows, "tensor": checked.tensor, "window": checked.window, "inputs": checked.inputs}
    facts |= checked.stamps
    if checked.route.window.has_sessions:
        facts["windows"] = [{"rows": rows, "padded_samples": padded} for rows, padded in checked.windows]
    if checked.route.time.joins:
        facts["joined"] = checked.joined
    return {**facts, "problem": checked.problem or None, "remark": checked.remark or None}
