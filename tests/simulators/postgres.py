"""Debian's PostgreSQL in a temporary cluster: a UNIX socket and an unprivileged user."""

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
PORT = 5432  # part of the socket's file name; there is no TCP listener
FAST = ("-c", "fsync=off", "-c", "full_page_writes=off")
"""Options for tests without power cuts."""


class Cluster:
    """A database cluster. `start` it first; `stop` ends it and removes its folder."""

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
        """Return the URL of one of its databases."""
        return f"postgresql://fleet@/{name}?host={self.folder}&port={PORT}"

    def start(self) -> None:
        """Start, or restart with the present data. Return once it accepts connections."""
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
        """Return whether it accepts connections."""
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def halt(self, number: int = signal.SIGQUIT) -> None:
        """Stop it as a failed machine: connections break, nothing is finished. `start` restarts it."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Suspend it as a machine that does not answer and keeps its connections."""
        assert self._process
        server = psutil.Process(self._process.pid)
        server.suspend()  # no new processes start
        stopped = server.children(recursive=True)
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in [*stopped, server]:
                process.resume()

    def stop(self) -> None:
        """Stop it and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            self.halt()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, statement: str) -> None:
        """Execute a statement as administrator."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _as_owner(self) -> list[str]:
        """Return a command prefix that ends with its parent. PostgreSQL refuses to run as root."""
        command = ["setpriv", "--pdeathsig", "QUIT"]
        if os.getuid() == 0:
            owner = self._owner
            command += [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        return [*command, "--"]


def tool(name: str) -> str:
    """Return the path of a server program, which Debian does not put into PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda file: int(file.parts[4]))
    if not found:
        raise FileNotFoundError("PostgreSQL is not installed: apt-get install postgresql")
    return str(found[-1])


@contextmanager
def own_cluster(options: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Run a separate cluster, for tests that stop it or measure. Without options it is durable."""
    cluster = Cluster(options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@cache
def shared_cluster() -> Cluster:
    """Return the cluster that all tests share that do not stop it."""
    cluster = Cluster()
    atexit.register(cluster.stop)
    cluster.start()
    return cluster
