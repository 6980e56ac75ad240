"""Notifications to the service manager: sd_notify(3) datagrams, without libsystemd."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

ENDS = 100
"""Most ends of earlier processes that are kept."""
_RESULTS = {"watchdog": "the watchdog and ", "oom-kill": "lack of memory and "}


class Notifier:
    """Sender of notifications to NOTIFY_SOCKET; without that, every call does nothing.

    Each call returns whether the notification was sent: a lost one must not end the daemon.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Notifier:
        """Return a notifier for the socket that `environ` names: a path, or "@name" in the abstract namespace."""
        given = environ.get("NOTIFY_SOCKET", "")
        if given.startswith("@"):
            return cls("\0" + given[1:])
        return cls(given if given.startswith("/") else None)

    def ready(self, status: str = "") -> bool:
        """Report that the daemon serves, for the first time or after `reloading`."""
        return self._send(["READY=1", *_status(status)])

    def stopping(self, status: str = "") -> bool:
        """Report that the daemon is stopping."""
        return self._send(["STOPPING=1", *_status(status)])

    def reloading(self, status: str = "") -> bool:
        """Report that the configuration is being read again; `ready` must follow."""
        # systemd compares this time with that of its signal (Type=notify-reload).
        stamp_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        return self._send(["RELOADING=1", f"MONOTONIC_USEC={stamp_us}", *_status(status)])

    def status(self, text: str) -> bool:
        """Report what the daemon does, for people."""
        return self._send(_status(text))

    def watchdog(self) -> bool:
        """Report that the daemon is alive."""
        return self._send(["WATCHDOG=1"])

    def store(self, name: str, descriptor: int) -> bool:
        """Let the manager keep a descriptor, for the next process of the unit."""
        return self._send(["FDSTORE=1", f"FDNAME={name}"], descriptor)

    def unstore(self, name: str) -> bool:
        """Let the manager close what it keeps under this name."""
        return self._send(["FDSTOREREMOVE=1", f"FDNAME={name}"])

    def _send(self, assignments: list[str], *descriptors: int) -> bool:
        if self._address is None or not assignments:
            return False
        message = "\n".join(assignments).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
                sender.sendmsg([message], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)
        except OSError:
            return False
        return True


def watchdog_period_s(environ: Mapping[str, str]) -> float | None:
    """Return half of the manager's WATCHDOG_USEC, as sd_watchdog_enabled(3) advises; None without a watchdog."""
    pid, limit_us = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
    if pid and pid != str(os.getpid()):
        return None
    if not limit_us.isdecimal() or int(limit_us) == 0:
        return None
    return int(limit_us) / 2e6


def feed_watchdog(notifier: Notifier, environ: Mapping[str, str]) -> Callable[[], object]:
    """Notify the manager's watchdog, if it has one, for as long as the event loop runs. Return what ends that."""
    period_s = watchdog_period_s(environ)
    if period_s is None:
        return lambda: None
    return asyncio.create_task(_feed(notifier, period_s), name="watchdog").cancel


async def _feed(notifier: Notifier, period_s: float) -> None:
    while True:
        notifier.watchdog()
        await asyncio.sleep(period_s)


def failures_in_a_row(environ: Mapping[str, str]) -> str:
    """Return how many processes of the unit failed before this one, and why the last one did; "": it ended well.

    The unit's ExecStopPost= writes a line for each end: SERVICE_RESULT, EXIT_CODE and EXIT_STATUS (systemd.exec(5)).
    """
    file = _ends(environ)
    try:
        lines = file.read_text(errors="replace").splitlines()
        if len(lines) > ENDS:
            file.write_text("".join(f"{line}\n" for line in lines[-ENDS:]))
    except OSError:
        return ""
    row = list(takewhile(lambda line: not line.startswith("success "), reversed(lines)))
    if not row:
        return ""
    result, code, status, *_ = *row[0].split(), "", "", ""
    why = f"{_RESULTS.get(result, '')}{'exit code' if code == 'exited' else 'signal'} {status}"
    return f"{len(row)} failure{'s' * (len(row) > 1)} in a row, the last one by {why}"


def forget_failures(environ: Mapping[str, str]) -> None:
    """Let the next failure be the first one of a row."""
    with suppress(OSError):
        _ends(environ).unlink()


def _ends(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("RUNTIME_DIRECTORY", os.devnull).partition(":")[0], "ended")


def _status(text: str) -> list[str]:
    """Return one STATUS assignment; a line break in `text` would begin another one."""
    return [f"STATUS={' '.join(text.split())}"] if text.strip() else []
