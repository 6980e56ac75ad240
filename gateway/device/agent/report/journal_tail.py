"""Tail of a service's log from journald, bounded in lines, bytes and time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from typing import IO, Any

from gateway.common.domain.redaction import without_secrets
from gateway.device.agent.answers import plain
from gateway.device.agent.settings import DiagnosticsSettings

PROGRAM = "journalctl"
_PIECE_BYTES = 65_536
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}


def last_lines(unit: str, settings: DiagnosticsSettings) -> dict[str, Any]:
    """Return `lines`, oldest first, and `cut` (True if earlier bytes were dropped); or else the `problem`."""
    program = shutil.which(PROGRAM)
    if program is None:
        return {"problem": f"this device has no {PROGRAM}, so lines on standard error are not kept"}
    wanted = ["--no-pager", "--quiet", "--utc", "--output=short-iso", f"--lines={settings.log_lines}", f"--unit={unit}"]
    try:
        content, cut, code = _run([program, *wanted], settings)
    except OSError as error:
        return {"problem": f"{program} cannot be run: {error.strerror or error}"}
    text = without_secrets(_COLOURS.sub("", content.decode("utf-8", "replace")))
    if code > 0:
        return {"problem": f"{PROGRAM} ended with {code}: {plain(text.strip())}"}
    lines = [plain(line) for line in text.splitlines() if line]
    if not lines:
        return {
            "problem": f"journald has no lines of {unit}; check that the service exists and this user may read its log"
        }
    return {"lines": lines[-settings.log_lines :], "cut": cut}


def _run(command: list[str], settings: DiagnosticsSettings) -> tuple[bytes, bool, int]:
    """Return the last bytes of a command's output, whether bytes were dropped, and its exit code (below 0: killed)."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    timer = threading.Timer(settings.log_timeout_s, _end, (process,))
    timer.start()
    try:
        with process:
            content, cut = _end_of(process.stdout, settings.log_bytes)
            return content, cut, process.wait()
    finally:
        timer.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole process group: any process that holds the pipe would be waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_of(stream: IO[bytes] | None, limit_bytes: int) -> tuple[bytes, bool]:
    """Return the last whole lines within `limit_bytes`, and whether bytes were dropped.

    Memory holds at most one piece more than `limit_bytes`.
    """
    kept, cut = bytearray(), False
    while stream and (piece := os.read(stream.fileno(), _PIECE_BYTES)):
        kept += piece
        if len(kept) > limit_bytes:
            del kept[: len(kept) - limit_bytes]
            cut = True
    return (bytes(kept).partition(b"\n")[2] if cut else bytes(kept)), cut
