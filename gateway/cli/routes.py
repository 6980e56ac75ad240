"""Verb `edge-gateway routes`: what a route makes of a message, stored or on the broker, and a proposal of a route."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.cli.common import committed_settings, overrides
from gateway.cli.explain import find_release
from gateway.cli.files import read_file
from gateway.cli.mqtt_choice import select_broker, select_route
from gateway.cli.routes_tail import tail
from gateway.config import Config, gateway_id, load_config
from gateway.domain.errors import ConfigurationError, Fault, RequestError
from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Tensor, finish
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.feed import RouteDecoder
from gateway.frontends.mqtt.routes.proposal import propose, write_toml
from gateway.terminal.program import FINDING, OK
from gateway.terminal.tables import counted, plain, print_facts, print_json, print_table

ROWS_SHOWN = 20
"""Most rows in a table."""


@dataclasses.dataclass(frozen=True, slots=True)
class RouteCheck:
    """Result for one message: sensor, rows, and the model inputs that it completes. `problem`: why it is refused."""

    route: MqttRoute
    topic: str
    sensor: str = ""
    rows: tuple[tuple[float, ...], ...] = ()
    inputs: int = 0
    window: str = ""
    tensor: str = ""
    problem: str = ""
    remark: str = ""


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
        return OK
    config = _config(arguments)
    route = select_route(config, arguments.route or "", topic, arguments.broker or "")
    message = Message(topic or example_topic(route), payload, content_type=content_type)
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
    routes = tuple(route for route in broker.settings.route if arguments.route in {None, route.name})
    manifests = asyncio.run(_manifests(config, routes))
    decoders = {route.name: _decoder(route, manifests[route.name]) for route in routes}

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


def check(route: MqttRoute, manifest: ModelManifest | None, message: Message) -> RouteCheck:
    """Return what the route makes of one message."""
    return decoded(_decoder(route, manifest), message)


def _decoder(route: MqttRoute, manifest: ModelManifest | None) -> RouteDecoder:
    def describe(_model: str, _version: str) -> ModelManifest:
        if manifest is None:
            raise RequestError(Fault.NOT_FOUND, f"model '{route.model}' was not found; set its folder with --models")
        return manifest

    return RouteDecoder(route, describe, Counter())


def decoded(decoder: RouteDecoder, message: Message) -> RouteCheck:
    """Return what a decoder makes of a message, after those before it."""
    checked = RouteCheck(decoder.route, message.topic)
    try:
        reading = decoder.begin(message)
        sample = finish(decoder.steps(message, reading))
        inputs = sum(1 for _ in decoder.complete(message, reading, sample).ready)
    except RequestError as refused:
        return dataclasses.replace(checked, problem=f"{refused.fault.value}: {refused.message}")
    content = sample.content
    if isinstance(content, Tensor):
        shown = f"{content.datatype.label} {list(content.array.shape)}"
        return dataclasses.replace(checked, sensor=sample.sensor, inputs=inputs, tensor=shown)
    shape = reading.windows.shape if reading.windows else None
    window = f"{shape.size_rows} rows, a new one every {shape.hop_rows}" if shape else ""
    rows = tuple(tuple(row) for row in content.tolist())
    remark = "" if rows else "no row: values are missing, and `missing` of their channels leaves the row out"
    return dataclasses.replace(checked, sensor=sample.sensor, rows=rows, inputs=inputs, window=window, remark=remark)


async def _manifest(config: Config, route: MqttRoute) -> tuple[ModelManifest | None, str]:
    """Return the manifest of a route's model, and a remark if it is not known."""
    try:
        release = await find_release(config, route.model, route.version)
    except (ConfigurationError, RequestError) as error:
        return _assumed(route), f"windows and shapes were not checked: {error}"
    if release.manifest is None:
        return _assumed(route), f"windows and shapes were not checked: model '{route.model}' has no manifest"
    return release.manifest, ""


def _assumed(route: MqttRoute) -> ModelManifest | None:
    """Return a manifest that takes rows of the route's channels; None for a route without channels."""
    from gateway.domain.manifest import ROWS, TensorSpec
    from gateway.domain.tensor import Datatype

    if not route.channel:
        return None
    rows = TensorSpec("rows", Datatype.FP32, (ROWS, len(route.channel)))
    return ModelManifest(route.model, route.version or "1", (rows,), (rows,), ())


def as_json(checked: RouteCheck) -> dict[str, Any]:
    """Return the result for programs. A value that `missing = "last"` takes from before is null."""
    rows = [[None if math.isnan(value) else value for value in row] for row in checked.rows]
    channels = [{"path": each.path, "name": each.name, "unit": each.unit} for each in checked.route.channel]
    facts: dict[str, Any] = {"route": checked.route.name}
    facts |= {"topic": checked.topic, "sensor": checked.sensor, "channels": channels}
    facts |= {"rows": rows, "tensor": checked.tensor, "window": checked.window, "inputs": checked.inputs}
    return {**facts, "problem": checked.problem or None, "remark": checked.remark or None}


def _print(checked: RouteCheck) -> None:
    facts = [("route", checked.route.name), ("topic", checked.topic)]
    if checked.problem:
        print_facts([*facts, ("refused", checked.problem)])
        return
    facts += [("sensor", checked.sensor), ("tensor", checked.tensor), ("window", checked.window)]
    facts += [("rows", "" if checked.tensor else f"{len(checked.rows)}"), ("inputs", f"{checked.inputs}")]
    print_facts([(name, value) for name, value in [*facts, ("remark", checked.remark)] if value])
    if checked.rows:
        print()
        _print_rows(checked)


def _print_rows(checked: RouteCheck) -> None:
    names = [each.name or each.path for each in checked.route.channel] or [
        f"[{i}]" for i in range(len(checked.rows[0]))
    ]
    units = [f" {each.unit}".rstrip() for each in checked.route.channel] or [""] * len(names)
    table = [
        (str(number), *(_shown(value, unit) for value, unit in zip(row, units, strict=True)))
        for number, row in enumerate(checked.rows[:ROWS_SHOWN])
    ]
    print_table(("row", *names), table)
    if len(checked.rows) > ROWS_SHOWN:
        print(f"… and {counted(len(checked.rows) - ROWS_SHOWN, 'more row')}; --json prints all")


def _shown(value: float, unit: str) -> str:
    return "last value" if math.isnan(value) else f"{value:g}{unit}"
