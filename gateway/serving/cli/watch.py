"""Verb `edge-gateway watch`: a live table of sensors, with their results, and drops and health of the link."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from gateway.common.terminal.program import OK
from gateway.common.terminal.tables import PIPED_WIDTH, plain
from gateway.common.timeouts import wait_for
from gateway.serving.cli.common import committed_settings, overrides
from gateway.serving.cli.http_client import GatewayAddress, Keys, read_url
from gateway.serving.cli.mqtt_choice import NamedBroker, select_broker
from gateway.serving.cli.running import keys_of, local_addresses
from gateway.serving.cli.subscriber import subscribed
from gateway.serving.cli.watch_messages import WatchedTopics
from gateway.serving.cli.watch_metrics import MetricsPoller
from gateway.serving.cli.watch_table import SensorTable
from gateway.serving.cli.watch_view import WatchedState, as_json, picture
from gateway.serving.config import Config, gateway_id, load_config
from gateway.serving.frontends.mqtt.messages import Message

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ROLE = "watch"
POLL_MIN_S, POLL_MAX_S = 1.0, 2.0
"""Least and most time between two readings of the metrics."""
Show = Callable[[WatchedState], None]


def command(arguments: argparse.Namespace) -> int:
    """Watch until SIGINT or SIGTERM, or until `--count` tables were shown."""
    config = overrides(arguments)(load_config(Path(arguments.file) if arguments.file else None, committed_settings()))
    if not (config.mqtt.route or config.camera):
        raise config.error("no route is configured, so there are no sensors", "mqtt")
    places, broker = _places(config, arguments), select_broker(config, arguments)
    poller = MetricsPoller(places, broker.name, min(max(POLL_MIN_S, arguments.every), POLL_MAX_S))
    poller.start()
    try:
        with _display(as_lines=arguments.json) as show, suppress(KeyboardInterrupt):
            asyncio.run(_watch(gateway_id(config), broker, arguments, poller, show))
    finally:
        poller.stop()
    return OK


def _places(config: Config, arguments: argparse.Namespace) -> list[tuple[GatewayAddress, Keys]]:
    if arguments.url:
        return [(read_url(arguments.url), keys_of(arguments))]
    return list(local_addresses(config, arguments))


async def _watch(
    name: str, broker: NamedBroker, arguments: argparse.Namespace, poller: MetricsPoller, show: Show
) -> None:
    """Show the table every `--every` seconds."""
    url, every_s = broker.settings.url, arguments.every
    topics = WatchedTopics(broker.settings.route, name, arguments.route or "")
    table = SensorTable(time.monotonic(), part=arguments.sensor or "")
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    def receive(message: Message) -> None:
        found = topics.read(message)
        if found is not None:
            table.receive(found, time.monotonic())

    client_id = f"{name}-{ROLE}-{token_hex(2)}"  # several may watch at a time
    async with subscribed(broker, ROLE, client_id, topics.subscriptions, receive) as health:
        for printed in count(1):
            with suppress(TimeoutError):
                await wait_for(ended.wait(), every_s)
            now_s, wall_s = time.monotonic(), time.time()
            show(WatchedState(name, url, wall_s, table.snapshot(now_s, wall_s), poller.newest, tuple(health)))
            if ended.is_set() or printed == arguments.count:
                return


@contextmanager
def _display(*, as_lines: bool) -> Iterator[Show]:
    """Yield what shows the table: on a terminal in its place, otherwise one table or JSON object after the other."""
    if as_lines:
        yield lambda state: print(plain(json.dumps(as_json(state), ensure_ascii=False)), flush=True)
        return
    from rich.console import Console

    console = Console()
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        width = console.width if sys.stdout.isatty() else PIPED_WIDTH
        yield lambda state: _print(picture(state, width))
        return
    with _live(console) as show:
        yield show


@contextmanager
def _live(console: Console) -> Iterator[Show]:
    """Yield what draws the table on the terminal's alternate screen. The last table is printed after it."""
    from rich.console import Group
    from rich.live import Live

    logging.getLogger("gateway").addHandler(logging.NullHandler())  # the table has the problems of the connection
    last: WatchedState | None = None

    def show(state: WatchedState) -> None:
        nonlocal last
        last = state
        live.update(Group(*picture(state, console.width, console.height)), refresh=True)

    with Live("connecting to the broker", console=console, screen=True, auto_refresh=False) as live:
        yield show
    if last is not None:
        for line in picture(last, console.width):
            console.print(line)


def _print(lines: Sequence[Text]) -> None:
    """Print one table, and an empty line after it."""
    print("\n".join([*(line.plain for line in lines), ""]), flush=True)
