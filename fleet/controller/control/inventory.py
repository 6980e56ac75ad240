"""Inventories of devices, and their answers to requests for diagnostics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.controller.control.authentication import admitted
from fleet.controller.control.concurrency_limit import ConcurrencyLimit
from fleet.controller.control.ingestion_lines import document_of, plain_body
from fleet.controller.control.reports import name
from fleet.controller.control.settings import IntakeSettings
from fleet.controller.database import devices, diagnostics
from fleet.controller.database.devices import ACCELERATORS_LIMIT
from fleet.controller.database.engine import Database
from gateway.common.domain.errors import Fault, RequestError

WANTED = "wanted"
"""Key of the requested parts in the stored request."""


@dataclass(frozen=True, slots=True)
class PendingDiagnostics:
    """Request for diagnostics that waits for an answer."""

    id: int
    wanted: Sequence[str]
    expires: datetime


class Inventories:
    """Store of inventories and diagnostics. One per process; any thread may call it.

    Each method raises RequestError UNAUTHENTICATED for a certificate (its serial) that is not valid, and AwayError.
    """

    def __init__(self, database: Database, settings: IntakeSettings) -> None:
        self._database, self._settings = database, settings
        self._limit = ConcurrencyLimit(settings.at_once, settings.wait_s)

    def keep(self, serial: str, body: bytes, encoding: str, now: datetime) -> None:
        """Store an inventory, as `edge-gateway probe --json` prints it.

        Raise RequestError INVALID, TOO_LARGE, OVERLOADED.
        """
        device = self._device(serial, now)
        with self._read(device, body, encoding, self._settings.inventory_limit_bytes) as document:
            kinds = accelerators(document.get("accelerators"))
            with self._database.write() as connection:
                devices.describe(
                    connection, device, profile=name(document.get("profile")), accelerators=kinds, inventory=document
                )

    def asked(self, serial: str, now: datetime) -> list[PendingDiagnostics]:
        """Return the requests that wait for this device, the oldest first."""
        with self._database.read() as connection:
            device = admitted(connection, serial, now).device
            waiting = diagnostics.waiting(connection, device, now)
        return [PendingDiagnostics(one.id, _parts(one.wanted.get(WANTED)), one.expires) for one in waiting]

    def answered(self, serial: str, body: bytes, encoding: str, now: datetime) -> None:
        """Store an answer.

        Raise RequestError INVALID, TOO_LARGE, NOT_FOUND, OVERLOADED; ConflictError for a second answer.
        """
        device = self._device(serial, now)
        with self._read(device, body, encoding, self._settings.answer_limit_bytes) as document:
            number, answer = document.get("id"), document.get("answer")
            if type(number) is not int or not isinstance(answer, dict):
                raise RequestError(Fault.INVALID, 'an answer is {"id": NUMBER, "answer": {…}}')
            with self._database.write() as connection:
                diagnostics.answer(connection, number, device, answer, now)

    @contextmanager
    def _read(self, device: str, body: bytes, encoding: str, limit_bytes: int) -> Iterator[dict[str, Any]]:
        """Yield the parsed document.

        Parsed, a document takes many times the memory of its text, so the number of those read at one time is limited.
        """
        with self._limit.entered(device) as free:
            if not free:
                raise RequestError(Fault.OVERLOADED, "too many documents are being read; send it again later")
            yield document_of(plain_body(body, encoding, limit_bytes))

    def _device(self, serial: str, now: datetime) -> str:
        with self._database.glance() as connection:
            return admitted(connection, serial, now).device


def accelerators(found: object) -> tuple[str, ...]:
    """Return the kinds of accelerators in an inventory, each once, in order. What is not a name is left out."""
    entries: Iterable[Any] = found if isinstance(found, list) else []
    kinds = (name(entry.get("kind")) for entry in entries if isinstance(entry, dict))
    return tuple(dict.fromkeys(kind for kind in kinds if kind))[:ACCELERATORS_LIMIT]


def _parts(wanted: object) -> list[str]:
    return [str(part) for part in wanted] if isinstance(wanted, (list, tuple)) else []
