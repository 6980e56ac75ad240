"""Diagnostics that an operator requests through the controller.

`GET /v1/self/diagnostics` lists the requests; each is answered once by `POST /v1/self/diagnostics`. The agent asks only
while the signed assignment says that a request waits.

Operators of the controller see the answers. They are bounded and hold no secrets, and the device's owner may refuse
them. Each section is made once for all answers of a report.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gateway.common.domain.redaction import value_without_secrets
from gateway.common.logs import get_logger
from gateway.common.transfer.source import FetchError
from gateway.device.agent import events
from gateway.device.agent.fetch.controller import ControllerClient
from gateway.device.agent.report.health_report import Subject, checkup, vitals
from gateway.device.agent.report.journal_tail import last_lines
from gateway.device.agent.report.report import document
from gateway.device.agent.settings import DiagnosticsSettings

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
