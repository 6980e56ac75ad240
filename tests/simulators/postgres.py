"""Debian's PostgreSQL in a cluster of its own: a temporary folder, a UNIX socket, an unprivileged user."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import psycopg

START_S = 30.0
PORT = 5432  # names the socket's file; nothing listens on it
FAST = ("-c", "fsync=off", "-c", "full_page_writes=off")
"""For tests that cut no power."""


class Cluster:
    """Begin with `start`; `stop` ends it and removes its folder."""

    def __init__(self, options: tuple[str, ...] = FAST) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="edge-fleet-pg-"))
        self._options = options
        self._owner = pwd.getpwnam("postgres") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        os.chown(self.folder, self._owner.pw_uid, self._owner.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (self.folder / "log").open("ab")
        options_of_initdb = ["--auth=trust", "--username=fleet", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        subprocess.run([*self._as_owner(), tool("initdb"), *options_of_initdb, "-D", str(self.folder / "data")],
                       cwd=self.folder, check=True, stdout=self._log, stderr=self._log)  # fmt: skip

    def url(self, name: str) -> str:
        """Of one of its databases."""
        return f"postgresql://fleet@/{name}?host={self.folder}&port={PORT}"

    def start(self) -> None:
        """Start, or start again with what is there; returns when it answers."""
        where = ["-D", str(self.folder / "data"), "-k", str(self.folder), "-h", "", "-p", str(PORT)]
        command = [*self._as_owner(), tool("postgres"), *where, "-c", "max_connections=60", *self._options]
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=self._log, stderr=self._log)
        end = time.monotonic() + START_S
        while True:
            if self.answers():
                return
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it lets somebody in."""
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def halt(self, number: int = signal.SIGQUIT) -> None:
        """As a machine that is gone: connections end, nothing is finished. `start` again."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    @contextmanager
    def hung(self) -> Iterator[None]:
        """As a machine that answers nothing, and keeps its connections."""
        assert self._process
        server = psutil.Process(self._process.pid)
        server.suspend()  # nobody else begins
        stopped = server.children(recursive=True)
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in [*stopped, server]:
                process.resume()

    def stop(self) -> None:
        """End it for good."""
        with contextlib.suppress(ProcessLookupError):
            self.halt()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, statement: str) -> None:
        """As its administrator."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _as_owner(self) -> list[str]:
        """It ends with its parent, however that ends. PostgreSQL refuses to run as root."""
        command = ["setpriv", "--pdeathsig", "QUIT"]
        if os.getuid() == 0:
            owner = self._owner
            command += [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        return [*command, "--"]


def tool(name: str) -> str:
    """A program of the server, which Debian keeps out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda file: int(file.parts[4]))
    if not found:
        raise FileNotFoundError("PostgreSQL is not installed: apt-get install postgresql")
    return str(found[-1])


@contextmanager
def own_cluster(options: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """For who stops it, or measures; without options it keeps what it promised."""
    cluster = Cluster(options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@cache
def shared_cluster() -> Cluster:
    """One for all tests of a run that do not stop it."""
    cluster = Cluster()
    atexit.register(cluster.stop)
    cluster.start()
    return cluster
