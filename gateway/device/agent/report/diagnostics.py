"""Diagnostics that an operator requests through the controller.

`GET /v1/self/diagnostics` lists the requests; each is answered once by `POST /v1/self/diagnostics`. The agent asks only
while the signed assignment says that a request waits.

Operators of the controller see the answers. They are bounded and hold no secrets, and the device's owner may refuse
them. Each section is made once for all answers of a report.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

from gateway.common.domain.redaction import value_without_secrets, without_secrets
from gateway.common.logs import get_logger
from gateway.common.transfer.source import FetchError
from gateway.device.agent import events
from gateway.device.agent.answers import plain
from gateway.device.agent.fetch.controller import ControllerClient
from gateway.device.agent.report.health_report import Subject, checkup, vitals
from gateway.device.agent.report.report import document
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


PATH = "/v1/self/diagnostics"
REFUSED, UNKNOWN = "refused by this device", "unknown to this device"
OVER = frozenset({400, 404, 409, 410, 413, 422})
"""Status codes after which an answer is not sent again: the controller will never take it."""
REMEMBERED = 64
"""Answered requests that are remembered: many times what a controller keeps."""
NAME_LIMIT_CHARS = 64
NUMBER_LIMIT = 2**63

Document = dict[str, Any]
Sections = Callable[[str], Document]


@dataclass(frozen=True, slots=True)
class DiagnosticsTask:
    """One request. `named`: its number or name at the controller."""

    named: int | str
    wanted: tuple[str, ...]


def diagnose(
    controller: ControllerClient,
    answered: Container[int | str],
    subject: Subject,
    settings: DiagnosticsSettings,
    *,
    allowed: bool,
) -> Iterator[int | str]:
    """Answer the waiting requests that are not in `answered`. Yield each one that is done.

    Raise FetchError if the controller cannot be reached now.
    """
    asked = read_requests(controller.send("GET", PATH, b"", "application/json"), settings)
    fresh = [one for one in asked if one.named not in answered]
    section = _sections(subject, settings) if allowed else lambda _: _none(REFUSED)
    for request in fresh[: settings.requests]:
        given = answer(request.wanted, section, settings.answer_bytes)
        body = json.dumps({"id": request.named, "answer": given}).encode()
        try:
            controller.send("POST", PATH, gzip.compress(body, mtime=0), "application/json", "gzip")
        except FetchError as error:
            if error.status not in OVER:
                raise
            get_logger("telemetry").warning(
                events.DIAGNOSTICS_ANSWER_REFUSED, request=request.named, problem=str(error)
            )
        yield request.named


def answer(wanted: Iterable[str], section: Sections, limit_bytes: int) -> dict[str, Document]:
    """Return a section for each name. A section that would exceed `limit_bytes` is replaced by a note."""
    given: dict[str, Document] = {}
    left_bytes = limit_bytes
    for name in wanted:
        found = section(name)
        size = len(json.dumps(found).encode())
        if size > left_bytes:
            found = _none(f"left out: it has {size} bytes, {left_bytes} were left of {limit_bytes}")
        else:
            left_bytes -= size
        given[name] = found
    return given


def _sections(subject: Subject, settings: DiagnosticsSettings) -> Sections:
    made: Mapping[str, Callable[[], Document]] = {
        "doctor": lambda: checkup(subject),
        "log": lambda: {unit: last_lines(unit, settings) for unit in settings.log_units},
        "status": lambda: document(subject.observed.standing),
        "vitals": lambda: vitals(subject.observed),
    }

    @cache
    def section(name: str) -> Document:
        found: Document = value_without_secrets(made[name]() if name in made else _none(UNKNOWN))
        return found

    return section


def read_requests(document: Mapping[str, Any], settings: DiagnosticsSettings) -> list[DiagnosticsTask]:
    """Return the controller's requests, in its order. Malformed requests are skipped."""
    listed = document.get("requests")
    found = [_request(one, settings) for one in listed] if isinstance(listed, list) else []
    return [one for one in found if one is not None]


def _request(one: Any, settings: DiagnosticsSettings) -> DiagnosticsTask | None:
    named, wanted = (one.get("id"), one.get("wanted")) if isinstance(one, dict) else (None, None)
    if not isinstance(wanted, list):
        return None
    names = tuple(dict.fromkeys(name for name in wanted[: settings.wanted_limit] if _is_name(name)))
    if isinstance(named, int | str) and (_is_name(named) or (type(named) is int and abs(named) < NUMBER_LIMIT)):
        return DiagnosticsTask(named, names)
    return None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME_LIMIT_CHARS


def _none(problem: str) -> Document:
    return {"problem": problem}
