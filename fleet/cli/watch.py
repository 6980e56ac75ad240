"""`edge-fleet rollouts watch`: progress bars of waves on a terminal, lines elsewhere."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fleet.cli.remote import client
from fleet.cli.rollouts_view import COMING, DONE, FREE, LOST, bar, headline, line, notes, outcome, wave_rows
from fleet.client.client import Client, Json, path_of
from gateway.domain.errors import UnreachableError
from gateway.terminal.tables import plain

if TYPE_CHECKING:
    from rich.console import Group

LOOK_S = 1.0
"""Seconds between two requests."""
AWAY_LIMIT_S = 600.0
"""Longest time for which a controller may be away, for example for an update or a restart."""
COLOURS = {DONE: "green", COMING: "yellow", LOST: "red bold", FREE: "dim"}
BAR_LOW, BAR_HIGH = 10, 40
"""Width of a bar, in columns."""
Show = Callable[[Json], None]


def watch(arguments: argparse.Namespace) -> int:
    """Watch until the rollout is over or halted. Return 0 if it finished, 1 if it was aborted or halted.

    Raise UnreachableError if --timeout comes first.
    """
    asked, path = client(arguments), path_of("rollouts", arguments.rollout)
    with _shown(arguments) as show:
        for view in _views(asked, path, arguments.timeout):
            show(view)
            code = outcome(view)
            if code is not None:
                return code
    raise UnreachableError(f"{arguments.rollout} is not over after {arguments.timeout:g} s")


def _views(asked: Client, path: str, timeout_s: float | None) -> Iterator[Json]:
    """Yield the rollout again and again.

    If the controller never answered, raise UnreachableError at once; if it answered before, wait for it.
    """
    begun_s, answered_s = time.monotonic(), -AWAY_LIMIT_S
    while True:
        try:
            yield asked.ask("GET", path)
            answered_s = time.monotonic()
        except UnreachableError as error:
            if time.monotonic() - answered_s >= AWAY_LIMIT_S:
                raise
            print(f"waiting: {plain(str(error))}", file=sys.stderr)
        if timeout_s is not None and time.monotonic() - begun_s >= timeout_s:
            return
        time.sleep(LOOK_S)


@contextmanager
def _shown(arguments: argparse.Namespace) -> Iterator[Show]:
    if arguments.json or not sys.stdout.isatty():
        yield _lines(as_json=arguments.json)
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:

        def show(view: Json) -> None:
            live.update(picture(view, live.console.width), refresh=True)

        yield show


def _lines(*, as_json: bool) -> Show:
    """Return a function that prints one line for each change."""
    last = ""

    def show(view: Json) -> None:
        nonlocal last
        now = datetime.now(UTC)
        said = line(view, now)
        seen = json.dumps(view) if as_json else said
        if seen != last:
            last = seen
            print(json.dumps(view) if as_json else f"{now.astimezone():%H:%M:%S} {said}", flush=True)

    return show


def picture(view: Json, width: int) -> Group:
    """Return a headline, a bar for each wave, and notes; no wider than the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1), expand=False)
    table.add_column(justify="right", no_wrap=True)
    bar_width = max(BAR_LOW, min(BAR_HIGH, width // 3))
    table.add_column(width=bar_width, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for row in wave_rows(view):
        filled = Text()
        for sign in bar(row, bar_width):
            filled.append(sign, COLOURS[sign])
        count = f"{row.committed}/{row.expected}" if row.expected else "-"
        table.add_row(Text(row.label, "bold" if row.opened else "dim"), filled, count, Text(row.states))
    title = Text(f"{view['name']} {view['id']}", "bold")
    said = [Text(note, "bold yellow") for note in notes(view, datetime.now(UTC))]
    return Group(title, Text(headline(view)), table, *said)
