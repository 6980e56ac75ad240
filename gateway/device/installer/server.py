"""Process of edge-software.service: it takes requests, works, and ends if nothing is left to do.

systemd starts it for a request, and at each boot after the first update, so that interrupted updates continue.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Mapping

from gateway.common.domain.errors import ConfigurationError
from gateway.common.logs import get_logger
from gateway.common.notify import Notifier
from gateway.common.store.errors import StoreError
from gateway.device.domain.software_request import REQUEST_LIMIT_BYTES, parse_request
from gateway.device.domain.software_update import record_bytes
from gateway.device.installer import events
from gateway.device.installer.settings import SoftwareSettings
from gateway.device.installer.worker import InstallerWorker, RequestRefusedError

FIRST_DESCRIPTOR = 3
"""First descriptor of sockets that systemd passes (sd_listen_fds(3))."""


class InstallerServer:
    """Server of requests from `listener`, one at a time."""

    def __init__(
        self, listener: socket.socket, worker: InstallerWorker, settings: SoftwareSettings, notifier: Notifier
    ) -> None:
        self._listener, self._worker, self._settings, self._notifier = listener, worker, settings, notifier
        self._log = get_logger("software")

    def run(self) -> None:
        """Serve until nothing is left to do and no request comes. Raise StoreError."""
        self._worker.resume()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                self._notifier.watchdog()
                pause_s = self._worker.advance()
                if selector.select(self._settings.idle_s if pause_s is None else pause_s):
                    self._answer()
                elif pause_s is None:
                    return

    def _answer(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            try:
                line = _line(peer, self._settings.request_timeout_s)
                answer = record_bytes(self._worker.take(parse_request(line)))
            except (RequestRefusedError, StoreError, ValueError) as error:
                self._log.warning(events.SOFTWARE_REQUEST_REFUSED, problem=str(error))
                answer = json.dumps({"error": str(error)}).encode()
            except OSError as error:
                self._log.warning(events.SOFTWARE_REQUEST_NOT_READ, problem=str(error))
                return
            try:
                peer.sendall(answer)
            except OSError as error:
                self._log.warning(events.SOFTWARE_REQUEST_NOT_ANSWERED, problem=str(error))


def activated(environ: Mapping[str, str]) -> socket.socket:
    """Return the socket that systemd passed. Raise ConfigurationError if there is none."""
    if environ.get("LISTEN_FDS") != "1":
        raise ConfigurationError("systemd passed no socket; start it by: systemctl start edge-software.socket")
    return socket.socket(fileno=FIRST_DESCRIPTOR)


def _line(peer: socket.socket, timeout_s: float) -> bytes:
    """Return a line of at most `REQUEST_LIMIT_BYTES`. Raise OSError, ValueError."""
    deadline_s, content = time.monotonic() + timeout_s, b""
    while not content.endswith(b"\n"):
        peer.settimeout(max(0.001, deadline_s - time.monotonic()))
        piece = peer.recv(REQUEST_LIMIT_BYTES)
        content += piece
        if not piece or len(content) > REQUEST_LIMIT_BYTES:
            raise ValueError(f"a request is one line of at most {REQUEST_LIMIT_BYTES} bytes; {len(content)} came")
    return content
