"""MQTT brokers for tests: mosquitto on a free loopback port, and a relay that refuses MQTT 5."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.common.timeouts import timeout

BASE = """
listener {port} 127.0.0.1
allow_anonymous {anonymous}
persistence true
persistence_location {folder}/
autosave_interval 1
autosave_on_changes true
user {user}
{extra}
"""
START_S = 10.0
TURNS = 5  # event loop iterations from an accepted connection to its task, or from a closed one to its socket
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Mosquitto:
    """Mosquitto as a child process. `extra` are further lines of its configuration."""

    def __init__(self, folder: Path, extra: str = "", *, anonymous: bool = True) -> None:
        self.port = free_port()
        self.folder = folder
        self._config = folder / "mosquitto.conf"
        user = pwd.getpwuid(os.getuid()).pw_name
        anonymous_word = str(anonymous).lower()
        self._config.write_text(
            BASE.format(port=self.port, folder=folder, extra=extra, anonymous=anonymous_word, user=user)
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Return the process id, or None before the start."""
        return self._process.pid if self._process is not None else None

    async def forget(self) -> None:
        """Restart without the persisted state: sessions and their messages are lost."""
        await self.kill()
        (self.folder / "mosquitto.db").unlink(missing_ok=True)
        await self.start()

    async def start(self) -> None:
        """Start, or restart with the persisted state. Return when it accepts connections."""
        environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin"}
        program = shutil.which("mosquitto", path=environment["PATH"])
        if program is None:
            raise FileNotFoundError("mosquitto is not installed: apt-get install mosquitto mosquitto-clients")
        with (self.folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(self._config)], stdout=log, stderr=log)
        async with timeout(START_S):
            while not await _answers(self.port):
                if self._process.poll() is not None:
                    raise ChildProcessError((self.folder / "mosquitto.log").read_text())
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """Kill it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def stop(self) -> None:
        """Stop it by SIGTERM; it persists its state."""
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)


@asynccontextmanager
async def mosquitto(folder: Path, extra: str = "", *, anonymous: bool = True) -> AsyncIterator[Mosquitto]:
    """Run mosquitto; kill it at the end."""
    broker = Mosquitto(folder, extra, anonymous=anonymous)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.kill()


@asynccontextmanager
async def scripted(talk: Talk) -> AsyncIterator[int]:
    """Run a server on a loopback port that calls `talk` for each connection. Close all connections at the end."""
    serving = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_talked(talk, reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)
        task.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await _turns()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await _turns()


async def _talked(talk: Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the peer may leave at any time
        await talk(reader, writer)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Relay:
    """Interruptible relay to `broker`.

    `old`: it refuses MQTT 5 with CONNACK code 1 (MQTT 3.1.1, 3.1.2.2). `rude`: it closes the connection instead, as
    some brokers before 2019 do. `closing`: so many connections are closed as they are accepted, as a proxy does whose
    broker is away. `versions` keeps the version of each attempt, `delivered` all that the broker sent, `taken`
    all that was sent to it.
    """

    def __init__(self, broker: Mosquitto, *, old: bool = False, rude: bool = False) -> None:
        self.port = 0
        self._broker, self._old, self._rude = broker, old or rude, rude
        self.closing = 0
        self.versions: list[int] = []
        self.delivered, self.taken = bytearray(), bytearray()
        self._ways: set[asyncio.Task[None]] = set()
        self._open, self._delivers = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._delivers.set()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Hold packets to the broker back until `release`. A `cut` discards them."""
        self._open.clear()

    def release(self) -> None:
        """Forward what was held back."""
        self._open.set()

    def stall(self) -> None:
        """Hold packets from the broker back until a `cut`, which discards them."""
        self._delivers.clear()

    async def cut(self) -> None:
        """Abort all connections. New ones are accepted."""
        ways = tuple(self._ways)
        for way in ways:
            way.cancel()
        if ways:
            await asyncio.wait(ways)
        self._open.set()
        self._delivers.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = asyncio.ensure_future(self._carry(reader, writer))
        self._ways.add(way)
        way.add_done_callback(self._ways.discard)
        try:
            await asyncio.wait({way})
        finally:
            way.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = await reader.readuntil(b"MQTT") + await reader.readexactly(1)
        self.versions.append(opening[-1])
        if self.closing > 0:
            self.closing -= 1
            return
        if self._old and opening[-1] != 4:
            if not self._rude:
                writer.write(b"\x20\x02\x00\x01")
                await writer.drain()
            return
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
        upstream_writer.write(opening)
        pumps = [
            asyncio.ensure_future(_pump(reader, upstream_writer, self._open, self.taken)),
            asyncio.ensure_future(_pump(upstream_reader, writer, self._delivers, self.delivered)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            upstream_writer.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


@asynccontextmanager
async def relay(broker: Mosquitto, *, old: bool = False, rude: bool = False) -> AsyncIterator[Relay]:
    """Run a relay to `broker`."""
    way = Relay(broker, old=old, rude=rude)
    async with scripted(way.serve) as way.port:
        yield way


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_: asyncio.Event, seen: bytearray
) -> None:
    while content := await reader.read(65_536):
        seen += content
        await open_.wait()
        writer.write(content)
        await writer.drain()


async def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        return True
    return False
