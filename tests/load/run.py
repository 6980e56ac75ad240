"""`python -m tests.load run`: simulate devices, show their progress, then the load that they caused."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from fleet.disk import read_bounded
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.program import FINDING, OK, UNREACHABLE
from gateway.common.terminal.tables import counted, print_facts, print_json, print_table, progress
from tests.load.machine import MachineReading, read, spent
from tests.load.settings import BehaviourShares, Settings
from tests.load.simulate import Run, ShowProgress, simulate
from tests.load.tally import Tally

FILE_LIMIT_BYTES = 64 * 2**20
"""Size of a file with tokens for a million devices."""


def command(arguments: argparse.Namespace) -> int:
    """Simulate devices. Return 3 if the controller never answered.

    Return 1 if something was served that was not signed, if no device was enrolled, or if not all devices committed
    that should.
    """
    run, pids = _run(arguments), arguments.pid
    database = Path(arguments.database) if arguments.database else None
    before = read(pids, database)
    with _bars(run.settings.devices) as shown:
        found = asyncio.run(simulate(run, shown))
    found |= watched(before, pids, database, found["requests"])
    if arguments.json:
        print_json(found)
    else:
        _print(found)
    return _code(found, settled=found["settled"] or not run.until_committed)


def watched(before: MachineReading, pids: Sequence[int], database: Path | None, requests: int) -> dict[str, Any]:
    """Return the findings with the load on the controller; without, if its process is no longer there."""
    try:
        return spent(before, read(pids, database), requests, pids=bool(pids), database=bool(database))
    except ConfigurationError as error:
        print(f"the load on the controller is not known: {error}", file=sys.stderr)
        return spent(before, read((), None), requests, pids=False, database=False)


def _code(found: Mapping[str, Any], *, settled: bool) -> int:
    if not found["requests"]:
        return UNREACHABLE
    outside = found["states"].get("turned away", 0) == found["devices"]
    return FINDING if found["distrusted"] or outside or not settled else OK


def _run(arguments: argparse.Namespace) -> Run:
    """Return what the options describe. Raise ConfigurationError, OSError."""
    settings = Settings(
        arguments.url[0],
        arguments.devices,
        seed=arguments.seed,
        prefix=arguments.prefix,
        shares=BehaviourShares(**{each.name: getattr(arguments, each.name) for each in fields(BehaviourShares)}),
        poll_s=arguments.poll,
        download_s=arguments.download,
        probation_s=arguments.probation,
        at_once=arguments.at_once,
        keep_alive=arguments.keep_alive,
        resume=arguments.resume,
        refresh=arguments.refresh,
        quiet=arguments.quiet,
    )
    return Run(
        settings,
        arguments.url[1:],
        _text(arguments.tokens).split() if arguments.tokens else None,
        _text(arguments.ca) if arguments.ca else "",
        Path(arguments.keep) if arguments.keep else None,
        arguments.seconds,
        arguments.until_committed,
        _text(arguments.operator).strip() if arguments.operator else "",
        Path(arguments.reported) if arguments.reported else None,
    )


def _text(file: str) -> str:
    """Read a text file, or standard input for "-". Raise ConfigurationError, OSError."""
    try:
        return sys.stdin.read() if file == "-" else read_bounded(Path(file), FILE_LIMIT_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigurationError("is not a text file", file=file) from None


@contextmanager
def _bars(count: int) -> Iterator[ShowProgress]:
    """Show progress bars of devices that are enrolled, were offered a release, and committed it."""
    with progress() as bars:
        tasks = [bars.add_task(name, total=count) for name in ("enrolled ", "offered  ", "committed")]

        def shown(tally: Tally) -> None:
            done = (len(tally.states), len(tally.offers), len(tally.ends))
            for task, completed in zip(tasks, done, strict=True):
                bars.update(task, completed=completed)

        yield shown


# ---- for people ------------------------------------------------------------------------------------------------------
def _print(found: Mapping[str, Any]) -> None:
    print_facts(list(_facts(found)))
    statuses = {
        what: ", ".join(f"{n:,} × {status}" for status, n in by.items()) for what, by in found["answers"].items()
    }
    rows = [(what, statuses.get(what, ""), *_times(spread)) for what, spread in found["latency_ms"].items()]
    if rows:
        print()
        print_table(("asked", "answers", "p50 ms", "p90 ms", "p99 ms", "most ms"), rows)
    for problem, count in found["problems"].items():
        print(f"{count:,} × {problem}")


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "devices", f"{found['devices']:,}: " + ", ".join(f"{n:,} {part}" for part, n in found["parts"].items())
    yield "they are", ", ".join(f"{n:,} {state}" for state, n in found["states"].items())
    yield "requests", f"{found['requests']:,} in {found['seconds']:,.1f} s: {found['requests_per_s']:,.1f} a second"
    yield "telemetry", f"{counted(found['telemetry_rows'], 'row')} acknowledged"
    if found["committed"]:
        spread = found["offer_to_committed_s"]
        yield "offer to committed", f"{spread['p50']:,.2f} s, at most {spread['max']:,.2f} s"
        yield "all of them", f"{found['first_offer_to_last_commit_s']:,.1f} s from the first offer to the last commit"
    if controller := found.get("controller"):
        busy = f"{controller['busy']:.0%} of a core, {controller['cpu_ms_per_request']:.2f} ms a request"
        yield "controller", f"{busy}, {controller['rss_bytes'] / 2**20:,.0f} MiB"
    yield "simulator", f"{found['simulator_busy']:.0%} of a core"
    if size := found.get("database_bytes"):
        yield "database", f"{size['before'] / 2**20:,.1f} MiB before, {size['after'] / 2**20:,.1f} MiB after"


def _times(spread: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(f"{spread[name]:,.1f}" for name in ("p50", "p90", "p99", "max"))
