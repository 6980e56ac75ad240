"""A whole fleet in one process against a controller, with everything real but the models."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.open_files import allow_open_files
from tests.load.actor import Actor
from tests.load.belief import Belief
from tests.load.casting import Character, cast
from tests.load.identities import FleetIdentities, read_identities, write_identities
from tests.load.settings import Settings
from tests.load.stage import Stage
from tests.load.tally import Tally, summary
from tests.load.wire import device_context, find_server

FILES_BESIDE = 64
"""Files open in addition to the connections."""
LOOK_S = 0.1
"""Time between two checks for the end of the simulation, each with an update of the progress bar."""


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters of one simulation.

    `tokens`: None if the controller knows the devices' serials. `operator`: an API token that makes tokens.
    `authority`: PEM of the trusted authorities. `keep`: file of the identities. `reported`: file of what each device
    reported. The simulation ends after `seconds`, or once all devices that can have committed.
    """

    settings: Settings
    replicas: Sequence[str] = ()
    tokens: Sequence[str] | None = None
    authority: str = ""
    keep: Path | None = None
    seconds: float | None = None
    until_committed: bool = False
    operator: str = ""
    reported: Path | None = None


ShowProgress = Callable[[Tally], None]


async def simulate(run: Run, shown: ShowProgress = lambda _: None) -> dict[str, Any]:
    """Run the simulation; return its summary (`tally.summary`). Raises ConfigurationError.

    Failures of single devices are counted, not raised. `shown` is called ten times a second. Cancelled, the simulation
    ends as if its time were over.
    """
    _open_files(run.settings.devices if run.settings.keep_alive else run.settings.at_once)
    characters, kept = cast(run.settings), read_identities(run.keep) if run.keep else FleetIdentities()
    stage = await _stage(run, kept)
    actors = [Actor(character, stage) for character in characters]
    tasks = [asyncio.create_task(actor.run()) for actor in actors]
    try:
        with suppress(asyncio.CancelledError):
            await _watched(run, stage, characters, tasks, shown)
    finally:
        stage.stopping.set()
        await _ended(tasks, run.settings.timeout_s)
        if run.keep:
            found = (actor.identity() for actor in actors)
            write_identities(run.keep, stage.belief.pinned.decode(), [one for one in found if one])
        if run.reported:
            _write_reported(run.reported, actors)
    return summary(stage.tally, characters, stage.at_s, run.settings.seed)


async def _stage(run: Run, kept: FleetIdentities) -> Stage:
    settings, belief = run.settings, Belief()
    urls = (settings.url, *run.replicas)
    servers = [await find_server(url, settings.timeout_s, spread=settings.spread) for url in urls]
    if kept.pinned:
        belief.pin(json.loads(kept.pinned))
    tls = any(server.tls for server in servers)
    return Stage(
        settings,
        tuple(servers),
        run.authority,
        belief,
        None if run.tokens is None else list(reversed(run.tokens)),
        {identity.character: identity for identity in kept.identities},
        device_context(run.authority, b"") if tls else None,
        asyncio.Semaphore(settings.at_once),
        int(time.time()),
        run.operator,
    )


def _open_files(connections: int) -> None:
    """Allow that many connections and the files of this process. Raises ConfigurationError if they are too many."""
    wanted = connections + FILES_BESIDE
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        problem = f"{connections} connections at a time need {wanted} open files and {allowed} are allowed"
        raise ConfigurationError(f"{problem}; raise it (ulimit -Hn), or leave --keep-alive out, or lower --at-once")


def _write_reported(file: Path, actors: Sequence[Actor]) -> None:
    lines = ({"device": a.device.name, **asdict(rows)} for a in actors for rows in a.device.spool.reported())
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


async def _watched(
    run: Run, stage: Stage, characters: Sequence[Character], tasks: Sequence[asyncio.Task[None]], shown: ShowProgress
) -> None:
    """Return when the simulation is over."""
    end_s = float("inf") if run.seconds is None else run.seconds
    while stage.at_s < end_s:
        shown(stage.tally)
        over, _ = await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in over:
            task.result()  # raise defects of the simulation itself
        if len(over) == len(tasks) or (run.until_committed and stage.tally.settled(characters)):
            break
    shown(stage.tally)


async def _ended(tasks: Sequence[asyncio.Task[None]], limit_s: float) -> None:
    """Let devices finish their requests for at most `limit_s`, then cancel them."""
    _, late = await asyncio.wait(tasks, timeout=limit_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
