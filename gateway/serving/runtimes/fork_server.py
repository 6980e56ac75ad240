"""Parent's side of the fork servers: one for each runtime that has tasks, which ends soon after its last one."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from gateway.common.domain.python310 import SAFE_PATH

COMMAND = (sys.executable, SAFE_PATH, "-m", "gateway.serving.runtimes.trial_server")
"""Command of a server.

-P: Python searches neither the working directory nor this folder, whose `onnx.py` would hide the package.
"""
LINGER_S = 2.0
"""Time that a server without tasks waits for the next one. No other server waits when another one starts."""
END_S = 10.0
"""Time that a server has to end a process, or itself; then it is killed."""
Key = tuple[asyncio.AbstractEventLoop, str, tuple[int, int]]
"""Key of a server: loop, runtime, and the bound of its data."""
_servers: dict[Key, ForkServer] = {}


class ForkServer:
    """One fork server. `users` are the tasks under way.

    A task of the running loop keeps it, so that it ends before the loop is closed.
    """

    def __init__(self, key: Key, environment: Mapping[str, str]) -> None:
        self.key, self.users = key, 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*COMMAND, key[1]],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._control.setblocking(False)
        self._over = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(), name=f"trial server {key[1]}")
        self._keeper.add_done_callback(lambda _: self._end(0.0))  # it may be cancelled before it begins
        self._timer: asyncio.TimerHandle | None = None

    def send(self, how: bytes, sockets: list[int]) -> None:
        """Begin a task with these sockets. Raises OSError if the server has ended."""
        if self._timer is not None:
            self._timer.cancel()
        socket.send_fds(self._control, [how], sockets)
        self.users += 1

    def release(self) -> None:
        """End a task."""
        self.users -= 1
        if not self.users:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.close)

    def close(self) -> None:
        """End the server, and all of its processes, soon."""
        if _servers.get(self.key) is self:
            del _servers[self.key]
        self._over.set()

    async def ended(self) -> int:
        """Return the exit code of a server that has ended, and its processes with it, or does not respond.

        A signal other than SIGKILL is the engine's fault; an error of the server says nothing about a model.
        """
        self.close()
        await asyncio.wait({self._keeper})
        return min(self._process.returncode, 0) or -signal.SIGKILL

    async def _keep(self) -> None:
        try:
            await self._over.wait()
        finally:
            await asyncio.to_thread(self._end, END_S)

    def _end(self, limit_s: float) -> None:
        self._control.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def begin(runtime: str, how: bytes, sockets: list[int], environment: Mapping[str, str]) -> ForkServer:
    """Begin a task in the server of `runtime`, which is started if there is none. Raises OSError."""
    loop = asyncio.get_running_loop()
    key = (loop, runtime, resource.getrlimit(resource.RLIMIT_DATA))
    if (server := _servers.get(key)) is not None:
        with suppress(OSError):
            server.send(how, sockets)
            return server
        server.close()  # it has ended
    for other in [each for each in list(_servers.values()) if each.key[0] is loop and not each.users]:
        other.close()
    server = _servers[key] = ForkServer(key, environment)
    server.send(how, sockets)
    return server
