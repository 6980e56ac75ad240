"""`edge-fleet telemetry`: telemetry of devices."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator

from fleet.cli.remote import bounded, client, listed, local, said, short
from fleet.client.client import Client, Json, path_of
from gateway.domain.errors import UnreachableError
from gateway.terminal.tables import plain

LOOK_S = 2.0
"""Seconds between two checks for new rows."""
AWAY_LIMIT_S = 600.0
"""Longest time for which a controller may be away while its rows are followed."""
ELSEWHERE = frozenset({"attempt", "began", "changed", "release", "slot", "step", "target", "version"})


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    chosen = {"streams": _streams, "rows": _rows, "newest": _newest, "events": _events, "alerts": _alerts}
    return chosen[arguments.action](arguments)


def _streams(arguments: argparse.Namespace) -> int:
    found = list(client(arguments).pages(path_of("devices", arguments.device, "telemetry")))
    columns = ("stream", "boot", "reached", "rows", "size", "lost", "missing")
    return listed(arguments, "streams", found, columns, _stream_row, none=f"{arguments.device} has sent nothing yet")


def _stream_row(one: Json) -> tuple[str, ...]:
    numbers = (str(one[name]) for name in ("boot_epoch", "contiguous", "rows"))
    missing = ", ".join(f"{first}-{last}" for first, last in one["gaps"]) or "-"
    return one["stream"], *numbers, f"{one['size_bytes'] / 1024:.1f} KiB", str(one["lost"]), missing


def _rows(arguments: argparse.Namespace) -> int:
    asked, path = client(arguments), path_of("devices", arguments.device, "telemetry", arguments.stream)
    if arguments.follow:
        return _follow(arguments, asked, path)
    found = bounded(asked.pages(path, {"after": arguments.after or ""}), arguments.limit)
    return _show(arguments, found)


def _newest(arguments: argparse.Namespace) -> int:
    path = path_of("devices", arguments.device, "telemetry", arguments.stream, "newest")
    return _show(arguments, list(client(arguments).pages(path, {"limit": arguments.limit})))


def _show(arguments: argparse.Namespace, found: list[Json]) -> int:
    none = f"no rows of {arguments.stream}; edge-fleet telemetry streams {arguments.device} lists what there is"
    return listed(arguments, "rows", found, ("row", "at", "kind", "says"), _row, none=none)


def _row(one: Json) -> tuple[str, str, str, str]:
    return _place(one), local(one["at"]), one["kind"], said(one["document"])


def _follow(arguments: argparse.Namespace, asked: Client, path: str) -> int:
    """Print the last rows, then new ones, until Ctrl-C; with --json one JSON document per line."""
    after = arguments.after
    if not after:
        last = list(asked.pages(f"{path}/newest", {"limit": min(arguments.limit, 10)}))
        _lines(arguments, reversed(last))
        after = _place(last[0]) if last else ""
    for row in _coming(asked, path, after):
        _lines(arguments, [row])
    return 0


def _coming(asked: Client, path: str, after: str) -> Iterator[Json]:
    """Yield rows after `after`, without end. Wait for a controller that answered and is away for a while.

    Raise UnreachableError.
    """
    answered_s = -AWAY_LIMIT_S
    while True:
        try:
            for row in asked.pages(path, {"after": after}):
                yield row
                after = _place(row)
            answered_s = time.monotonic()
        except UnreachableError as error:
            if time.monotonic() - answered_s >= AWAY_LIMIT_S:
                raise
            print(f"waiting: {plain(str(error))}", file=sys.stderr)
        time.sleep(LOOK_S)


def _lines(arguments: argparse.Namespace, rows: Iterable[Json]) -> None:
    for row in rows:
        line = json.dumps(row) if arguments.json else plain("  ".join(_row(row)))
        print(line, flush=True)


def _events(arguments: argparse.Namespace) -> int:
    query = {name: getattr(arguments, name) for name in ("device", "kind", "rollout", "query")}
    found = bounded(client(arguments).pages(path_of("events"), query, cursor="before"), arguments.limit)
    return listed(
        arguments,
        "events",
        found,
        ("at", "device", "event", "what"),
        _event_row,
        none="no such events" if any(query.values()) else "no events",
    )


def _event_row(one: Json) -> tuple[str, ...]:
    return local(one["at"]), one["device"], one["kind"], _happened(one)


def _happened(one: Json) -> str:
    """Return what happened, such as "acme/meter-reader/2: 3 of 40 runs failed".

    Values that the event shows elsewhere are left out.
    """
    document = {name: value for name, value in one["document"].items() if name not in ELSEWHERE}
    reason = document.pop("reason", "")
    words = f"{reason}; {said(document)}".strip("; ") if isinstance(reason, str) else said(one["document"])
    about = short(one["target"]) or one["slot"]
    return ": ".join(part for part in (about, words) if part)


def _alerts(arguments: argparse.Namespace) -> int:
    query = {name: getattr(arguments, name) for name in ("state", "rule", "device", "query")}
    found = bounded(client(arguments).pages(path_of("alerts"), query, cursor="before"), arguments.limit)
    columns = ("since", "state", "alert", "device", "says")
    return listed(
        arguments, "alerts", found, columns, _alert_row, none="no such alerts" if any(query.values()) else "no alerts"
    )


def _alert_row(one: Json) -> tuple[str, ...]:
    about = "" if one["subject"] in one["summary"] else f" ({one['subject']})"
    return local(one["since"]), one["state"], one["rule"], one["device"], f"{one['summary']}{about}"


def _place(one: Json) -> str:
    """Return the position of a row, as `--after` takes it."""
    return f"{one['boot_epoch']}.{one['seq']}"
