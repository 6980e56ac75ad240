"""`edge-fleet telemetry`: telemetry of devices."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from fleet.cli.following import AWAY_LIMIT_S, GAP, POSITION, follow, wait_or_raise
from fleet.cli.remote import bounded, client, listed, local, one_line, short
from fleet.client.client import Client, Json, Query, ServerSentMessage, path_of
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.terminal.tables import plain

LOOK_S = 2.0
"""Seconds between two checks for new rows."""
LAST = 10
"""Number of past rows, events or alerts that are shown before new ones."""
EVENT_CHANGES = ["device.event"]
ALERT_CHANGES = {
    None: ["alert.opened", "alert.closed"],
    "open": ["alert.opened"],
    "closed": ["alert.closed"],
}
"""Changes of alerts that lead to each state; None: all."""
ELSEWHERE = frozenset({"attempt", "began", "changed", "release", "slot", "step", "target", "version"})


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    chosen = {"streams": _streams, "rows": _rows, "newest": _newest, "devices": _devices}
    chosen |= {"events": _events, "alerts": _alerts}
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
        after = arguments.after
        if not after:
            last = list(asked.pages(f"{path}/newest", {"limit": min(arguments.limit, LAST)}))
            _print_lines(arguments, reversed(last), _row)
            after = _place(last[0]) if last else ""
        for row in _coming(asked, path, after):
            _print_lines(arguments, [row], _row)
        return 0
    found = bounded(asked.pages(path, {"after": arguments.after or ""}), arguments.limit)
    return _show(arguments, found)


def _newest(arguments: argparse.Namespace) -> int:
    path = path_of("devices", arguments.device, "telemetry", arguments.stream, "newest")
    return _show(arguments, list(client(arguments).pages(path, {"limit": arguments.limit})))


def _devices(arguments: argparse.Namespace) -> int:
    """Show the last row of a stream of each device."""
    pages = client(arguments).pages(path_of("telemetry", arguments.stream, "newest"), {"query": arguments.query})
    none = f"no device has rows of {arguments.stream}" + (", of those that match" if arguments.query else "")
    columns = ("device", "row", "at", "kind", "says")
    return listed(arguments, "rows", bounded(pages, arguments.limit), columns, _device_row, none=none)


def _device_row(one: Json) -> tuple[str, ...]:
    return one["device"], *_row(one)


def _show(arguments: argparse.Namespace, found: list[Json]) -> int:
    none = f"no rows of {arguments.stream}; edge-fleet telemetry streams {arguments.device} lists what there is"
    return listed(arguments, "rows", found, ("row", "at", "kind", "says"), _row, none=none)


def _row(one: Json) -> tuple[str, str, str, str]:
    return _place(one), local(one["at"]), one["kind"], one_line(one["document"])


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
            wait_or_raise(error, answered_s)
        time.sleep(LOOK_S)


def _print_lines(arguments: argparse.Namespace, found: Iterable[Json], row: Callable[[Json], Sequence[str]]) -> None:
    for one in found:
        print(json.dumps(one) if arguments.json else plain("  ".join(row(one))), flush=True)


def _events(arguments: argparse.Namespace) -> int:
    query = {name: getattr(arguments, name) for name in ("device", "kind", "rollout", "query")}
    asked = client(arguments)
    pages = _past(arguments, asked, "events", query)
    if arguments.follow:
        wanted = {"kind": EVENT_CHANGES} | {name: query[name] for name in ("device", "rollout", "query")}
        return _followed(
            arguments, follow(asked, wanted), pages, _event_row, lambda one: arguments.kind in {None, one["kind"]}
        )
    return listed(
        arguments,
        "events",
        bounded(pages, arguments.limit),
        ("at", "device", "event", "what"),
        _event_row,
        none="no such events" if any(query.values()) else "no events",
    )


def _past(arguments: argparse.Namespace, asked: Client, path: str, query: Query) -> Iterator[Json]:
    """Yield events or alerts, newest first, as many at a time as are shown."""
    limit = {"limit": min(arguments.limit, LAST)} if arguments.follow else {}
    return asked.pages(path_of(path), {**query, **limit}, cursor="before")


def _followed(
    arguments: argparse.Namespace,
    messages: Iterable[ServerSentMessage],
    newest: Iterator[Json],
    row: Callable[[Json], Sequence[str]],
    fits: Callable[[Json], bool],
) -> int:
    """Print line by line until Ctrl-C: the newest ones once the stream is open, then each new one."""
    printed: list[Json] | None = None
    for message in messages:
        if printed is None:
            printed = [*islice(newest, min(arguments.limit, LAST))][::-1]
            _print_lines(arguments, printed, row)
        elif message.event not in {"", POSITION, GAP} and message.data not in printed and fits(message.data):
            _print_lines(arguments, [message.data], row)
    return 0


def _event_row(one: Json) -> tuple[str, ...]:
    # Values that the event shows elsewhere are left out.
    document = {name: value for name, value in one["document"].items() if name not in ELSEWHERE}
    reason = document.pop("reason", "")
    words = f"{reason}; {one_line(document)}".strip("; ") if isinstance(reason, str) else one_line(one["document"])
    about = short(one["target"]) or one["slot"]
    return local(one["at"]), one["device"], one["kind"], ": ".join(part for part in (about, words) if part)


def _alerts(arguments: argparse.Namespace) -> int:
    query = {name: getattr(arguments, name) for name in ("state", "rule", "device", "query")}
    asked = client(arguments)
    pages = _past(arguments, asked, "alerts", query)
    if arguments.follow:
        if arguments.state == "pending":
            raise ConfigurationError("--follow shows alerts as they open and close; leave out --state pending")
        wanted = {"kind": ALERT_CHANGES[arguments.state]} | {name: query[name] for name in ("device", "query")}
        return _followed(
            arguments, follow(asked, wanted), pages, _alert_row, lambda one: arguments.rule in {None, one["rule"]}
        )
    columns = ("since", "state", "alert", "device", "says")
    none = "no such alerts" if any(query.values()) else "no alerts"
    return listed(arguments, "alerts", bounded(pages, arguments.limit), columns, _alert_row, none=none)


def _alert_row(one: Json) -> tuple[str, ...]:
    about = "" if one["subject"] in one["summary"] else f" ({one['subject']})"
    return local(one["since"]), one["state"], one["rule"], one["device"], f"{one['summary']}{about}"


def _place(one: Json) -> str:
    """Return the position of a row, as `--after` takes it."""
    return f"{one['boot_epoch']}.{one['seq']}"
