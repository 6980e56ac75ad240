"""Verb `edge-gateway routes`: what a route makes of a message, stored or on the broker, and a proposal of a route."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec, fits
from gateway.common.domain.tensor import Datatype, Tensor, finish
from gateway.common.terminal.program import FINDING, OK
from gateway.common.terminal.tables import counted, plain, print_facts, print_json, print_table
from gateway.serving.cli.common import committed_settings, overrides, warn
from gateway.serving.cli.explain import find_release
from gateway.serving.cli.files import read_file
from gateway.serving.cli.mqtt_choice import NamedBroker, select_broker, select_route
from gateway.serving.cli.subscriber import subscribed
from gateway.serving.config import Config, gateway_id, load_config
from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.inbound.fitting import channel_order, window_shape
from gateway.serving.frontends.mqtt.inbound.proposal import propose, write_toml
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.inbound.timed import sequences_of, times_of
from gateway.serving.frontends.mqtt.messages import Message, Subscription
from gateway.serving.frontends.mqtt.outbound.contents import timestamp
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttWindow
from gateway.serving.frontends.mqtt.settings.topic_filters import read_filter
from gateway.serving.frontends.mqtt.windows.rings import WindowShape

ROLE = "tail"
Show = Callable[[MqttRoute, Message], None]


ROWS_SHOWN = 20
"""Most rows in a table."""


def command(arguments: argparse.Namespace) -> int:
    """Check, propose or follow; return 1 if the checked message is refused."""
    if arguments.action == "tail":
        return _tail(arguments)
    if not arguments.sample:
        raise ConfigurationError("missing; name a file with one message, or - for standard input", table="--sample")
    payload = read_file(arguments.sample)
    topic, content_type = arguments.topic or "", arguments.content_type or ""
    if arguments.action == "new":
        print(plain(write_toml(propose(payload, topic, content_type, arguments.model or ""))))
        try:
            if arguments.model:
                asyncio.run(find_release(_config(arguments), arguments.model, ""))
        except (ConfigurationError, RequestError) as error:
            warn(f"warning: {error}")
        return OK
    config = _config(arguments)
    route = select_route(config, arguments.route or "", topic, arguments.broker or "")
    message = Message(topic or example_topic(route), payload, content_type=content_type)
    message.arrived_ns, message.wall_ns = time.monotonic_ns(), time.time_ns()
    manifest, remark = asyncio.run(_manifest(config, route))
    checked = check(route, manifest, message)
    checked = dataclasses.replace(checked, remark="; ".join(filter(None, (checked.remark, remark))))
    print_json(as_json(checked)) if arguments.json else _print(checked)
    return FINDING if checked.problem else OK


def _config(arguments: argparse.Namespace) -> Config:
    return overrides(arguments)(load_config(Path(arguments.file) if arguments.file else None, committed_settings()))


def _tail(arguments: argparse.Namespace) -> int:
    config = _config(arguments)
    broker = select_broker(config, arguments)
    routes = tuple(each for each in broker.settings.route if each.topics and arguments.route in {None, each.name})
    if arguments.route and not routes:
        select_route(config, arguments.route, "")  # it is one of cameras
    manifests = asyncio.run(_manifests(config, routes))
    decoders = {route.name: new_decoder(route, manifests[route.name]) for route in routes}

    def show(route: MqttRoute, message: Message) -> None:
        checked = decoded(decoders[route.name], message)
        if arguments.json:
            print(plain(json.dumps(as_json(checked), ensure_ascii=False)), flush=True)
        else:
            print(plain(_line(checked)), flush=True)

    with suppress(KeyboardInterrupt):
        asyncio.run(tail(broker, gateway_id(config), routes, arguments.count, show))
    return OK


async def _manifests(config: Config, routes: Sequence[MqttRoute]) -> dict[str, ModelManifest | None]:
    return {route.name: (await _manifest(config, route))[0] for route in routes}


def _line(checked: RouteCheck) -> str:
    """Return a message on one line: topic, route, sensor, rows (null: the last value) or refusal."""
    if checked.problem:
        line = f"{checked.topic}  {checked.route.name}  refused: {checked.problem}"
    else:
        found = checked.tensor or json.dumps(as_json(checked)["rows"])
        line = f"{checked.topic}  {checked.route.name}/{checked.sensor}  {found}"
    return " ".join(line.splitlines())


def example_topic(route: MqttRoute) -> str:
    """Return a topic that the route takes."""
    levels = route.topics[0].split("/")
    levels = levels[2:] if levels[0] == "$share" else levels
    return "/".join("sensor" if level in {"+", "#"} else level for level in levels)


async def _manifest(config: Config, route: MqttRoute) -> tuple[ModelManifest | None, str]:
    """Return the manifest of a route's model, and a remark if it is not known."""
    try:
        release = await find_release(config, route.model, route.version)
    except (ConfigurationError, RequestError) as error:
        return _assumed(route), f"windows and shapes were not checked: {error}"
    if release.pipeline is not None:
        inputs = tuple(TensorSpec(each.name, each.datatype, (ROWS, *each.shape)) for each in release.pipeline.inputs)
        return ModelManifest(release.name, release.version, inputs, inputs, (), batch=True), ""
    if release.manifest is None:
        return _assumed(route), f"windows and shapes were not checked: model '{route.model}' has no manifest"
    return release.manifest.seen, ""


def _assumed(route: MqttRoute) -> ModelManifest | None:
    """Return a manifest that takes rows of the route's channels; None for a route without channels."""
    if not route.channel:
        return None
    rows = TensorSpec("rows", Datatype.FP32, (ROWS, len(route.channel)))
    return ModelManifest(route.model, route.version or "1", (rows,), (rows,), ())


def _print(checked: RouteCheck) -> None:
    facts = [("route", checked.route.name), ("topic", checked.topic)]
    if checked.problem:
        print_facts([*facts, ("refused", checked.problem), *(("remark", each) for each in (checked.remark,) if each)])
        return
    facts += [("sensor", checked.sensor), ("tensor", checked.tensor), ("window", checked.window)]
    facts += [("rows", "" if checked.tensor else f"{len(checked.rows)}"), ("inputs", f"{checked.inputs}")]
    facts += [("ends", _ends(checked))]
    print_facts([(name, value) for name, value in [*facts, ("remark", checked.remark)] if value])
    if checked.rows:
        print()
        _print_rows(checked, checked.rows, "row")
    if checked.joined:
        print()
        _print_rows(checked, checked.joined, "joined row")


def _ends(checked: RouteCheck) -> str:
    """Return the windows that end if nothing else comes."""
    if not checked.route.window.has_sessions:
        return ""
    return ", ".join(
        counted(rows, "row") + (f" and {padded} added" if padded else "") for rows, padded in checked.windows
    )


def _print_rows(checked: RouteCheck, rows: Sequence[Sequence[float]], title: str) -> None:
    names = [each.name or each.path for each in checked.route.channel] or [f"[{i}]" for i in range(len(rows[0]))]
    units = [f" {each.unit}".rstrip() for each in checked.route.channel] or [""] * len(names)
    absent = "other messages" if checked.route.time.joins else "last value"
    table = [
        (str(number), *(_with_unit(value, unit, absent) for value, unit in zip(row, units, strict=True)))
        for number, row in enumerate(rows[:ROWS_SHOWN])
    ]
    stamps = checked.stamps if rows is checked.rows else {}
    lines = [(*line, *(column[number] for column in stamps.values())) for number, line in enumerate(table)]
    print_table((title, *names, *stamps), lines)
    if len(rows) > ROWS_SHOWN:
        print(f"… and {counted(len(rows) - ROWS_SHOWN, 'more row')}; --json prints all")


def _with_unit(value: float, unit: str, absent: str) -> str:
    return absent if math.isnan(value) else f"{value:g}{unit}"


async def tail(broker: NamedBroker, gateway: str, routes: tuple[MqttRoute, ...], count: int, show: Show) -> None:
    """Call `show` with every message of `routes`; end after `count` messages (0: never).

    Raises ConfigurationError for files that cannot be read, and UnreachableError if the broker does not accept the
    connection.
    """
    router, ended = Router(routes, gateway), asyncio.Event()
    printed, failed = 0, list[Exception]()

    def receive(message: Message) -> None:
        nonlocal printed
        for route in router.routes(message.topic):
            if ended.is_set():
                return
            try:
                show(route, message)
            except Exception as error:  # noqa: BLE001  a callback of the connection: raised again where it is awaited
                failed.append(error)
            printed += 1
            ended.set() if failed or printed == count else None

    # Without `$share/<group>/`: a member of the group would take messages from the gateways.
    filters = tuple(Subscription("/".join(read_filter(each.filter).levels), 0) for each in router.subscriptions)
    async with subscribed(broker, ROLE, f"{gateway}-{ROLE}", filters, receive):
        await ended.wait()
    if failed:
        raise failed[0]


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
    values = content[:, count:].astype(np.float64)
    stamps = dict[str, list[str]]()
    if decoder.route.time.path:
        stamps["time"] = [timestamp(time_ns) for time_ns in times_of(decoder.route.time, values, message)]
    if decoder.route.time.sequence:
        stamps["number"] = [str(number) for number in sequences_of(decoder.route.time, values)]
    remark = "" if rows else "no row: values are missing, and `missing` of their channels leaves the row out"
    window = _window(decoder.route, reading.windows.shape) if reading.windows else ""
    return replace(checked, rows=rows, stamps=stamps, window=window, remark=remark), ready


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
