"""Single requests of devices, over and over: what each costs the controller."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from gateway.common.domain.assignment import Target
from tests.load.casting import HARDWARE, Behaviour, Character
from tests.load.conversation import LINES, TELEMETRY
from tests.load.device import SimulatedDevice
from tests.load.identities import SimulatedIdentity, read_identities
from tests.load.line import DeviceHttpClient
from tests.load.spool import body
from tests.load.tally import Spread, Tally
from tests.load.wire import Response, device_context, find_server

WORKERS = 16
CROWD = 512
"""Devices that take turns: as many TLS contexts and open connections."""
SLOT = "meter-reader"
TARGET = Target(f"models/acme/{SLOT}/1/release", 900, "ab" * 32)


def cpu_s(pid: int) -> float:
    """Return user and system time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@dataclass
class Member:
    """A device that is enrolled, with two lines: `resuming` goes on with TLS sessions."""

    identity: SimulatedIdentity
    line: DeviceHttpClient
    resuming: DeviceHttpClient
    device: SimulatedDevice
    etag: str = ""


Asking = Callable[[Member, int], Awaitable[Response]]
"""A member and a number that no other call gets, to the answer."""


@dataclass(frozen=True)
class Step:
    """Step of a measurement.

    `keep`: connections stay open. Else each request has a connection of its own and a full handshake, or, where it
    goes by the `resuming` line, one of a TLS session that was there before (`resume`).
    """

    name: str
    ask: Asking
    keep: bool = False
    resume: bool = False
    status: int = 200


@dataclass
class Sample:
    """Figures of one pass."""

    per_s: float
    cpu_ms: float
    p50_ms: float
    p99_ms: float
    answers: Counter[int]


async def _unchanged(member: Member, _: int) -> Response:
    return await _asked(member, member.line)


async def _resumed(member: Member, _: int) -> Response:
    return await _asked(member, member.resuming)


async def _asked(member: Member, line: DeviceHttpClient) -> Response:
    headers = (("If-None-Match", member.etag),) if member.etag else ()
    answer = await line.ask("poll", "GET", member.identity.assignment, b"", headers)
    member.etag = answer.headers.get("etag", member.etag)
    return answer


async def _anew(member: Member, _: int) -> Response:
    return await member.line.ask("poll", "GET", member.identity.assignment)


async def _signed(member: Member, number: int) -> Response:
    return await member.line.ask("poll", "GET", f"{member.identity.assignment}?nonce=n{number:022}")


async def _metadata(member: Member, _: int) -> Response:
    return await member.line.ask("file", "GET", f"{member.identity.repository}/metadata/timestamp.json")


def _told(rows: int) -> Asking:
    """Return a request of `rows` vitals and statistics, as agents send them with each poll."""

    async def tell(member: Member, _: int) -> Response:
        spool, now = member.device.spool, datetime.now(UTC)
        while len(spool) < rows:
            member.device.tell_numbers(now)
        answer = await member.line.ask("tell", "POST", TELEMETRY, body(spool.batch(rows)), LINES)
        if answer.status == 200:
            spool.drop(spool.batch(rows))
        return answer

    return tell


async def _state(member: Member, _: int) -> Response:
    """Report a slot whose update goes on: another state each time."""
    now = member.device.slots[SLOT].state
    member.device.step(SLOT, "probation" if now == "downloading" else "downloading", datetime.now(UTC))
    rows = member.device.spool.batch(1000)
    answer = await member.line.ask("tell", "POST", TELEMETRY, body(rows), LINES)
    if answer.status == 200:
        member.device.spool.drop(rows)
    return answer


STEPS: Sequence[Step] = (
    Step("poll, 304", _unchanged, status=304),
    Step("poll, 304, TLS session resumed", _resumed, resume=True, status=304),
    Step("poll, 304, connection kept", _unchanged, keep=True, status=304),
    Step("poll, 200, kept document", _anew, keep=True),
    Step("poll, 200, signed anew", _signed, keep=True),
    Step("timestamp.json, connection kept", _metadata, keep=True),
    Step("telemetry of 2 rows, connection kept", _told(2), keep=True),
    Step("telemetry of 100 rows, connection kept", _told(100), keep=True),
    Step("telemetry: a slot's state, connection kept", _state, keep=True),
)


class Crowd:
    """Devices that a step asks with, made by `gathered`."""

    def __init__(self, members: Sequence[Member], tally: Tally, pid: int) -> None:
        self._members, self._tally, self._pid = members, tally, pid
        self._numbers = itertools.count()

    @staticmethod
    async def gathered(url: str, authority: str, kept: Path, pid: int) -> Crowd:
        """Return a crowd of devices that were enrolled before."""
        door, tally, epoch = await find_server(url, 60.0, spread=True), Tally(), int(time.time())
        members = []
        for number, identity in enumerate(read_identities(kept).identities[:CROWD]):
            contexts = [device_context(authority, identity.identity.encode()) for _ in range(2)]
            lines = [DeviceHttpClient((door,), tally, number, contexts[at], at=0, resume=bool(at)) for at in range(2)]
            device = SimulatedDevice(
                Character(number, identity.character, Behaviour.HONEST, HARDWARE[number % 7]), epoch
            )
            device.name = identity.device
            device.restore({SLOT: [TARGET.path, TARGET.size_bytes, TARGET.sha256]}, datetime.now(UTC))
            members.append(Member(identity, *lines, device))
        return Crowd(members, tally, pid)

    def close(self) -> None:
        """Hang up."""
        for member in self._members:
            member.line.close()
            member.resuming.close()

    async def sample(self, step: Step, seconds: float) -> Sample:
        """Return what the controller spends on a step. All connections that are to stay open are opened before."""
        self.close()
        await self._everybody(_unchanged)
        if not step.keep:
            self.close()
        if step.resume:
            await self._everybody(_resumed)
            self.close()
        spread, answers, idle = Spread(), Counter[int](), deque(self._members)
        spent_s, began = cpu_s(self._pid), time.monotonic()

        async def work() -> None:
            while time.monotonic() - began < seconds:
                member = idle.popleft()
                at = time.monotonic()
                answer = await step.ask(member, next(self._numbers))
                spread.add(time.monotonic() - at)
                answers[answer.status] += 1
                if not step.keep:
                    member.line.close()
                    member.resuming.close()
                idle.append(member)

        await asyncio.gather(*(work() for _ in range(min(WORKERS, len(self._members)))))
        passed, spent_s = time.monotonic() - began, cpu_s(self._pid) - spent_s
        if set(answers) != {step.status}:
            raise SystemExit(f"{step.name}: {dict(answers)}; nothing but {step.status} was to be measured")
        times = [1000.0 * spread.percentile(percent) for percent in (50, 99)]
        return Sample(spread.count / passed, 1000.0 * spent_s / spread.count, *times, answers)

    async def _everybody(self, ask: Asking) -> None:
        for first in range(0, len(self._members), WORKERS):
            await asyncio.gather(*(ask(member, 0) for member in self._members[first : first + WORKERS]))
