"""What a device found in itself, and what it answers when an operator asks how it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.control.callers import admitted
from fleet.control.door import Door
from fleet.control.intake_lines import document_of, plain_body
from fleet.control.reports import name
from fleet.control.settings import IntakeSettings
from fleet.database import devices, diagnostics
from fleet.database.devices import ACCELERATORS_LIMIT
from fleet.database.engine import Database
from gateway.domain.errors import Fault, RequestError

WANTED = "wanted"
"""Under this key the parts stand in what is kept of a request."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for diagnostics that waits."""

    id: int
    wanted: Sequence[str]
    expires: datetime


class Inventories:
    """One per process; any thread may ask. Each method raises RequestError UNAUTHENTICATED for a certificate (its
    serial) that opens nothing, and AwayError."""

    def __init__(self, database: Database, settings: IntakeSettings) -> None:
        self._database, self._settings = database, settings
        self._door = Door(settings.at_once, settings.wait_s)

    def keep(self, serial: str, body: bytes, encoding: str, now: datetime) -> None:
        """An inventory, as `edge-gateway probe --json` says it. Raises RequestError INVALID, TOO_LARGE, OVERLOADED."""
        device = self._device(serial, now)
        with self._read(device, body, encoding, self._settings.inventory_limit_bytes) as document:
            kinds = accelerators(document.get("accelerators"))
            with self._database.write() as connection:
                devices.describe(connection, device, profile=_profile(document), accelerators=kinds, inventory=document)

    def asked(self, serial: str, now: datetime) -> list[Asked]:
        """Requests that wait for this device, the oldest first."""
        with self._database.read() as connection:
            device = admitted(connection, serial, now).device
            waiting = diagnostics.waiting(connection, device, now)
        return [Asked(one.id, _parts(one.wanted.get(WANTED)), one.expires) for one in waiting]

    def answered(self, serial: str, body: bytes, encoding: str, now: datetime) -> None:
        """Keep an answer. Raises RequestError INVALID, TOO_LARGE, NOT_FOUND, OVERLOADED; ConflictError for a second
        one."""
        device = self._device(serial, now)
        with self._read(device, body, encoding, self._settings.answer_limit_bytes) as document:
            number, answer = document.get("id"), document.get("answer")
            if type(number) is not int or not isinstance(answer, dict):
                raise RequestError(Fault.INVALID, 'an answer is {"id": NUMBER, "answer": {…}}')
            with self._database.write() as connection:
                diagnostics.answer(connection, number, device, answer, now)

    @contextmanager
    def _read(self, device: str, body: bytes, encoding: str, limit_bytes: int) -> Iterator[dict[str, Any]]:
        """A document; parsed it takes many times what it does as text, so not all of them at once."""
        with self._door.entered(device) as free:
            if not free:
                raise RequestError(Fault.OVERLOADED, "many devices, or this one, send just now; send it again later")
            yield document_of(plain_body(body, encoding, limit_bytes))

    def _device(self, serial: str, now: datetime) -> str:
        with self._database.glance() as connection:
            return admitted(connection, serial, now).device


def accelerators(found: object) -> tuple[str, ...]:
    """Kinds of what an inventory lists, each once, in their order; what is no name is left out."""
    entries: Iterable[Any] = found if isinstance(found, list) else []
    kinds = (name(entry.get("kind")) for entry in entries if isinstance(entry, dict))
    return tuple(dict.fromkeys(kind for kind in kinds if kind))[:ACCELERATORS_LIMIT]


def _profile(document: dict[str, Any]) -> str:
    return name(document.get("profile"))


def _parts(wanted: object) -> list[str]:
    return [str(part) for part in wanted] if isinstance(wanted, (list, tuple)) else []
