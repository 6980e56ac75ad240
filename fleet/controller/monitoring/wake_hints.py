"""Wake hints over MQTT: an empty message that tells a device to poll now (the agent's README.md).

A reader or forger of such a message learns and gains nothing else.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from fleet import events
from fleet.controller.control.wake_hints import Hints
from fleet.controller.monitoring.credentials import secret_text, trusting
from fleet.controller.monitoring.settings import WakeBrokerSettings
from gateway.common.domain.errors import ConfigurationError

PORTS = {"mqtt": 1883, "mqtts": 8883}
STOP_S = 5.0
FIRST_RETRY_S = 1
_log = logging.getLogger(__name__)


class WakePublisher:
    """Publisher of wake hints, one per replica. `start` once, then `stop` once.

    A lost broker affects only the hints.
    """

    def __init__(
        self, settings: WakeBrokerSettings, folder: Path, hints: Hints, counts: Counter[str], holder: str
    ) -> None:
        """Read the credentials. `folder`: root of the files named in the settings. Raise ConfigurationError."""
        self._settings, self._hints, self._counts = settings, hints, counts
        self._host, self._port, tls = broker(settings.url)
        self._client = _client(settings, folder, holder, tls=tls)
        self._client.on_connect = self._connected
        self._client.on_disconnect = self._lost
        self._up, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="wake", daemon=True)

    def start(self) -> None:
        """Start to connect and publish in the background."""
        self._client.connect_async(self._host, self._port, self._settings.keepalive_s)
        self._client.loop_start()
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Stop the threads. Waiting hints are discarded."""
        self._ended.set()
        self._up.set()
        self._hints.noted.set()
        self._thread.join(wait_s)
        self._client.disconnect()
        self._client.loop_stop()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._hints.noted.wait()
            self._up.wait()
            if not self._ended.is_set():
                # the hints of one second: woken devices poll, and a fleet must not poll all at once
                for device in self._hints.take(self._settings.per_s):
                    self._counts["wakes"] += 1
                    self._client.publish(self._settings.topic.replace("{device}", device), b"", qos=0)
                self._ended.wait(1.0)

    def _connected(self, *arguments: Any) -> None:
        code = arguments[3]
        if code.is_failure:
            _log.warning(events.BROKER_CONNECTION_REFUSED, self._host, code)
        else:
            _log.info(events.BROKER_CONNECTED, self._host)
            self._up.set()

    def _lost(self, *arguments: Any) -> None:
        if self._up.is_set() and not self._ended.is_set():
            self._up.clear()
            if self._ended.is_set():  # `stop` ran since the check above; `_run` must not wait for `_up`
                self._up.set()
            _log.warning(events.BROKER_CONNECTION_LOST, self._host, arguments[3])


def broker(url: str) -> tuple[str, int, bool]:
    """Return the host, the port, and whether the URL asks for TLS. Raise ConfigurationError."""
    try:
        parts = urlsplit(url)
        if parts.scheme in PORTS and parts.hostname and not parts.username:
            return parts.hostname, parts.port or PORTS[parts.scheme], parts.scheme == "mqtts"
    except ValueError:
        pass
    problem = f"{url!r:.200} is not a broker: write mqtt://HOST:PORT or mqtts://HOST:PORT, and the user in user"
    raise ConfigurationError(problem, table="wake", key="url")


def _client(settings: WakeBrokerSettings, folder: Path, holder: str, *, tls: bool) -> Client:
    client = Client(CallbackAPIVersion.VERSION2, client_id=f"edge-fleet-{holder}", protocol=MQTTv311)
    client.reconnect_delay_set(FIRST_RETRY_S, int(settings.retry_limit_s))
    client.max_queued_messages_set(settings.per_s)
    if settings.user:
        client.username_pw_set(settings.user, _secret(settings, folder))
    if tls:
        client.tls_set_context(_context(settings, folder))
    return client


def _secret(settings: WakeBrokerSettings, folder: Path) -> str | None:
    if not settings.password_file:
        return None
    file = folder / settings.password_file
    lines = secret_text(file).splitlines()
    if not lines:
        raise ConfigurationError("is empty; its first line is the password", file=str(file))
    return lines[0]


def _context(settings: WakeBrokerSettings, folder: Path) -> ssl.SSLContext:
    context = trusting(folder, settings.ca_file, "wake")
    if not settings.certificate_file:
        return context
    certificate = folder / settings.certificate_file
    key = folder / settings.key_file if settings.key_file else certificate
    try:
        context.load_cert_chain(certificate, key, password="")  # without one, OpenSSL asks on the terminal
    except (OSError, ssl.SSLError, ValueError) as error:
        problem = f"{certificate} and {key} cannot be used ({error}); name a PEM certificate and its key, not encrypted"
        raise ConfigurationError(problem, table="wake", key="certificate_file, key_file") from None
    return context
