"""`edge-fleet rollouts watch`: progress bars of waves on a terminal, lines elsewhere."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from fleet.cli.following import GAP, POSITION, follow, say_waiting
from fleet.cli.remote import client
from fleet.cli.rollouts_view import COMING, DONE, FREE, LOST, bar, headline, line, notes, outcome, wave_rows
from fleet.client.client import Client, Json, path_of
from gateway.common.domain.errors import UnreachableError

if TYPE_CHECKING:
    from rich.console import Group

ROLLOUT_CHANGES = ["rollout.fact", "rollout.device_fact"]
LOOK_S = 1.0
"""Pause after each view, in seconds: many devices may report during it."""
COLOURS = {DONE: "green", COMING: "yellow", LOST: "red bold", FREE: "dim"}
BAR_LOW, BAR_HIGH = 10, 40
"""Width of a bar, in columns."""
Show = Callable[[Json], None]


def watch(arguments: argparse.Namespace) -> int:
    """Watch until the rollout is over or halted. Return 0 if it finished, 1 if it was aborted or halted.

    Raise UnreachableError if --timeout comes first.
    """
    asked = client(arguments)
    with _display(arguments) as show:
        for view in _views(asked, arguments.rollout, arguments.timeout):
            show(view)
            code = outcome(view)
            if code is not None:
                return code
    raise UnreachableError(f"{arguments.rollout} is not over after {arguments.timeout:g} s")


def _views(asked: Client, rollout: str, timeout_s: float | None) -> Iterator[Json]:
    """Yield the rollout, and again after each change that the last view does not show."""
    path, until_s = path_of("rollouts", rollout), None if timeout_s is None else time.monotonic() + timeout_s
    view, is_old = asked.ask("GET", path), False  # a refusal is raised before the stream is opened
    yield view
    for message in follow(asked, {"rollout": rollout, "kind": ROLLOUT_CHANGES}, until_s, answered_s=time.monotonic()):
        is_old = is_old or message.event in {POSITION, GAP} or message.data.get("seq", 0) > view["facts"]
        if is_old:
            try:
                view, is_old = asked.ask("GET", path), False
            except UnreachableError as error:  # repeated at the next message of the stream
                say_waiting(error)
                continue
            yield view
            time.sleep(LOOK_S)
        if until_s is not None and time.monotonic() >= until_s:
            return


@contextmanager
def _display(arguments: argparse.Namespace) -> Iterator[Show]:
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
        now = datetime.now(timezone.utc)
        text = line(view, now)
        seen = json.dumps(view) if as_json else text
        if seen != last:
            last = seen
            print(json.dumps(view) if as_json else f"{now.astimezone():%H:%M:%S} {text}", flush=True)

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
    lines = [Text(note, "bold yellow") for note in notes(view, datetime.now(timezone.utc))]
    return Group(title, Text(headline(view)), table, *lines)
