"""View of `edge-gateway watch`: the lines of its table for a terminal's width and height, and its JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from gateway.common.terminal.tables import ColumnWidth, counted, fitted, plain
from gateway.serving.cli.watch_metrics import LinkMetrics
from gateway.serving.cli.watch_table import ROWS_LIMIT, WINDOW_S, SensorLine, TableSnapshot

if TYPE_CHECKING:
    from rich.text import Text

COLUMNS = ("route", "sensor", "results/s", "lag", "age", "errors", "last result")
CUT = {"route", "sensor", "last result"}
"""Columns that are cut on a narrow terminal; the others are numbers, to the right."""
NUMBER_WIDTH = 6
"""Least width of the other columns, so that few redraws move them."""
GAP_WIDTH = 2
"""Width of the gap between two columns."""
LEAST_LINES = 3
"""Least number of sensors on a low terminal."""
HOUR_S, DAY_S, DAYS_S = 3_600, 86_400, 172_800
GAUGES = {"outbox": "outbox", "queued": "queued", "running": "running", "sensors": "sensors with windows"}
"""Gauges of the link, beyond its health, and their words."""


@dataclass(frozen=True, slots=True)
class WatchedState:
    """Snapshot of the view. `link`: problems of the verb's own connection to the broker."""

    gateway: str
    broker: str
    wall_s: float
    table: TableSnapshot
    metrics: LinkMetrics
    link: tuple[str, ...] = ()


def as_json(state: WatchedState) -> dict[str, Any]:
    """Return what is shown, for programs."""
    table, metrics = state.table, state.metrics
    return {
        "at": _moment(state.wall_s),
        "gateway": state.gateway,
        "broker": {"url": state.broker, "problems": list(state.link)},
        "status": table.status or None,
        "window_s": WINDOW_S,
        "sensors": [_line_json(each) for each in table.lines],
        "sensors_removed": table.removed,
        "daemon": {
            "asked": metrics.where or None,
            "problem": metrics.problem or None,
            "link": dict(metrics.link),
            "drops": dict(metrics.drops),
        },
    }


def _line_json(line: SensorLine) -> dict[str, Any]:
    last = line.last
    return {
        "route": line.route,
        "sensor": line.sensor,
        "results": line.results,
        "results_per_s": round(line.results_per_s, 3),
        "lag_s": _rounded(line.lag_s),
        "age_s": _rounded(line.age_s),
        "last": last.text if last else None,
        "label": last.label if last else None,
        "score": last.score if last else None,
        "errors": line.errors,
        "last_error": line.last_error or None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def picture(state: WatchedState, width: int, height: int | None = None) -> list[Text]:
    """Return the lines of the whole view, each at most `width` columns wide. `height`: most lines; None: all."""
    from rich.text import Text

    local = datetime.fromtimestamp(state.wall_s, timezone.utc).astimezone()
    title = f"gateway {state.gateway}  status {state.table.status or 'unknown'}  {local:%H:%M:%S}  {state.broker}"
    head = [Text(plain(title), "bold"), Text()]
    tail = [Text(), *(line for note, important in notes(state) for line in _note(note, important, width))]
    lines = state.table.lines
    if height is not None:
        most = max(LEAST_LINES, height - len(head) - len(tail) - 2)  # the line of names, and that of the rest
        lines = lines[: most + 1] if len(lines) <= most + 1 else lines[:most]
    body = _table(lines, width)
    if rest := len(state.table.lines) - len(lines):
        body.append(Text(f"… and {counted(rest, 'more sensor')}; select with --route or --sensor", "dim"))
    picture = [*head, *body, *tail]
    for line in picture:
        line.truncate(width, overflow="ellipsis")
    return picture[:height]


def notes(state: WatchedState) -> list[tuple[str, bool]]:
    """Return the lines below the table, and which of them are problems."""
    found = [(f"this connection: {problem}", True) for problem in state.link[:LEAST_LINES]]
    if state.table.removed:
        removed = counted(state.table.removed, "sensor")
        found.append((f"removed from the table: {removed} received least recently; it has {ROWS_LIMIT}", False))
    elif state.table.lines:
        found.append((f"sensors: {len(state.table.lines):,}", False))
    found += _metrics_notes(state.metrics)
    error, age_s = state.table.last_error, state.table.last_error_age_s
    if error is not None:
        place = f"{error.route}/{error.sensor}" if error.route else error.sensor
        found.append((f"last error {duration(age_s)} ago: {place}: {error.text}", True))
    return found


def _metrics_notes(metrics: LinkMetrics) -> list[tuple[str, bool]]:
    if metrics.problem:
        return [(f"link and drops: unknown, no metrics of the gateway: {metrics.problem}", True)]
    connected, problems = metrics.link.get("connected", 0), metrics.link.get("problems", 0)
    health = "complete" if connected else f"{counted(problems, 'problem')}, see the gateway's log"
    gauges = ", ".join(f"{words} {metrics.link[name]:,}" for name, words in GAUGES.items() if name in metrics.link)
    drops = ", ".join(f"{name} {count:,}" for name, count in sorted(metrics.drops.items()) if count)
    return [
        (f"link: {health}; {gauges}", not connected),
        (f"drops since the gateway's start: {drops or 'none'}", bool(drops)),
    ]


def _note(text: str, important: bool, width: int) -> Iterator[Text]:
    from rich.text import Text

    for line in textwrap.wrap(plain(text), width, max_lines=LEAST_LINES, placeholder=" …", subsequent_indent="  "):
        yield Text(line, "yellow" if important else "")


def _table(lines: Sequence[SensorLine], width: int) -> list[Text]:
    """Return the line of names and one line for each sensor."""
    from rich.cells import cell_len
    from rich.text import Text

    cells = [COLUMNS, *(_cells(each) for each in lines)]
    needs = []
    for name, column in zip(COLUMNS, zip(*cells, strict=True), strict=True):
        longest = max(NUMBER_WIDTH, *map(cell_len, column))
        least = 1 if name in CUT else longest
        needs.append(ColumnWidth(longest, least, least))
    widths = fitted(needs, width - GAP_WIDTH * (len(COLUMNS) - 1))
    made = []
    for number, row in enumerate(cells):
        line = Text(style="" if number else "bold")
        for name, text, wide in zip(COLUMNS, row, widths, strict=True):
            cell = Text(text)
            cell.truncate(wide, overflow="ellipsis")
            cell.align("left" if name in CUT else "right", wide)
            line.append_text(cell).append(" " * GAP_WIDTH)
        line.rstrip()
        made.append(line)
    if not lines:
        made.append(Text("no result or error was received yet", "dim"))
    return made


def _cells(line: SensorLine) -> tuple[str, ...]:
    rate = f"{line.results_per_s:.1f}" if line.last else "-"
    last = line.last.text if line.last else "-"
    times = duration(line.lag_s), duration(line.age_s)
    texts = (line.route or "-", line.sensor, rate, *times, f"{line.errors:,}", last)
    return tuple(plain(" ".join(text.split())) for text in texts)


def duration(seconds: float | None) -> str:
    """Return a time in the largest unit that fits it; "-" for None."""
    if seconds is None:
        return "-"
    size = abs(seconds)
    if size < 10:
        return f"{seconds:.1f} s"
    if size < 120:
        return f"{seconds:.0f} s"
    if size < 2 * HOUR_S:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR_S:.0f} h" if size < DAYS_S else f"{seconds / DAY_S:,.0f} d"
