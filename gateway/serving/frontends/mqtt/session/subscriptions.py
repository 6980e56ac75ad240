"""Record of the topic filters that a broker may hold for a client: its session outlives configuration and process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gateway.common.files import durable
from gateway.serving.frontends.mqtt.session import events

_log = logging.getLogger(__name__)
FILE = "mqtt-subscriptions"
CLIENTS_LIMIT = 16
"""Clients, each a broker's URL and a client id, whose filters are kept: those that were used last."""
COPIED_S = 60.0
"""Time between writing the file and the last change of its inode, beyond which it is a copy if the inode is new."""


class _RecordedFilters(msgspec.Struct):
    """Content of the file: its own inode, the Unix time, and the filters of each client."""

    inode: int
    written_s: float
    clients: dict[str, list[str]]


class SubscriptionRecord:
    """Filters of one client in a file in `folder`.

    A copy of the file, such as a restored backup, does not count: the session has changed since it was made.
    """

    def __init__(self, folder: Path, url: str, client_id: str) -> None:
        self._file, self._client = folder / FILE, f"{url} {client_id}"
        self._clients = self._read()

    @property
    def filters(self) -> frozenset[str] | None:
        """Return all filters that the broker may hold, and perhaps more; None if they are not known."""
        known = self._clients.get(self._client)
        return None if known is None else frozenset(known)

    def write(self, filters: Iterable[str]) -> None:
        """Record the filters, durably, unless they are recorded already. Blocks for two syncs."""
        wanted, folder = sorted(filters), self._file.parent
        if self._clients.pop(self._client, None) == wanted:
            self._clients[self._client] = wanted
            return
        self._clients = dict([*self._clients.items(), (self._client, wanted)][-CLIENTS_LIMIT:])
        try:
            durable.make_folder(folder)
            with durable.replacing(self._file, durable.FILE_MODE, durable.temporary(folder)) as staged:
                content = _RecordedFilters(os.fstat(staged.fileno()).st_ino, time.time(), self._clients)
                staged.write(msgspec.json.encode(content))
        except OSError as error:
            _log.error(events.SUBSCRIPTIONS_NOT_RECORDED, error)

    def _read(self) -> dict[str, list[str]]:
        try:
            content = msgspec.json.decode(self._file.read_bytes(), type=_RecordedFilters)
            state = self._file.stat()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            _log.warning(events.SUBSCRIPTIONS_NOT_READ, self._file, error)
            return {}
        if state.st_ino != content.inode and abs(state.st_ctime - content.written_s) > COPIED_S:
            _log.warning(events.SUBSCRIPTIONS_NOT_READ, self._file, "it is a copy of an earlier one")
            return {}
        return content.clients
