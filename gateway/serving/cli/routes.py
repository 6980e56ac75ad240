"""Verb `edge-gateway routes`: what a route makes of a message, stored or on the broker, and a proposal of a route."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.terminal.program import FINDING, OK
from gateway.common.terminal.tables import counted, plain, print_facts, print_json, print_table
from gateway.serving.cli.common import committed_settings, overrides, warn
from gateway.serving.cli.explain import find_release
from gateway.serving.cli.files import read_file
from gateway.serving.cli.mqtt_choice import NamedBroker, select_broker, select_route
from gateway.serving.cli.routes_check import RouteCheck, as_json, check, decoded, new_decoder
from gateway.serving.cli.subscriber import subscribed
from gateway.serving.config import Config, gateway_id, load_config
from gateway.serving.frontends.mqtt.inbound.proposal import propose, write_toml
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message, Subscription
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.topic_filters import read_filter

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
        _check_model(arguments)
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


def _check_model(arguments: argparse.Namespace) -> None:
    """Print that the model of a proposed route is not on this device: the route may be for another one."""
    try:
        if arguments.model:
            asyncio.run(find_release(_config(arguments), arguments.model, ""))
    except (ConfigurationError, RequestError) as error:
        warn(f"warning: {error}")


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
