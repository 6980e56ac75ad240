"""Sleep that a wake hint may end: the fleet announces over MQTT that a poll is worthwhile.

A hint has no authority. Assignments are fetched and verified as usual. A hint causes a poll no sooner than
60 s after the last one, and has no effect if that poll failed or the controller asked for a pause. One
thread and one socket are used, because the sleeping process forks.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.retry import pause_s
from gateway.common.logs import configure_logging, get_logger
from gateway.common.store.text import read_text
from gateway.common.transfer.tls import tls_context
from gateway.device.agent import events
from gateway.device.agent.config import DEVICE_FILE, AgentConfig
from gateway.device.agent.fetch.certificate import with_certificate
from gateway.device.agent.fetch.wake_packets import PINGREQ, PacketKind, Reader, WireError, connect, subscribe
from gateway.device.agent.signals import Alarm

PORTS = {"mqtt": 1883, "mqtts": 8883}
TOPIC_LIMIT_CHARS = 1_000
_READ_BYTES = 4_096


class Wake:
    """Listener for hints. `sleep` runs between two cycles; a signal handler ends it by `alarm`."""

    def __init__(
        self,
        config: AgentConfig,
        folder: Path,
        chance: Callable[[], float],
        alarm: Alarm,
        *,
        connecting: Callable[[], AbstractContextManager[None]] = nullcontext,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the settings. Raise ConfigurationError if the URL is not valid.

        `connecting`: context during name lookup and connect, which `alarm` cannot end.
        """
        self._config, self._settings, self._folder = config, config.wake, folder
        self._host, self._port, self._secure = _broker(self._settings.url or "")
        if len(self._settings.topic) > TOPIC_LIMIT_CHARS:
            problem = f"has more than {TOPIC_LIMIT_CHARS} characters"
            raise ConfigurationError(problem, table="wake", key="topic")
        self._chance, self._connecting, self._monotonic = chance, connecting, monotonic
        self._alarm = alarm
        self._line: _Line | None = None
        self._failures, self._next_try_s = 0, 0.0
        self._logs = False

    def close(self) -> None:
        """Disconnect from the broker."""
        if self._line is not None:
            self._line.socket.close()
            self._line = None

    def sleep(self, pause_s: float, *, heeds_hints: bool = True) -> bool:
        """Sleep for `pause_s` or until a hint or the alarm. Return True if a hint ended the sleep."""
        began_s = self._monotonic()
        until_s, hinted = began_s + pause_s, False
        while (now_s := self._monotonic()) < until_s:
            if self._alarm.is_set():
                return False
            if self._listen(now_s, until_s) and heeds_hints and not hinted:
                hinted = True
                soonest_s = max(self._monotonic(), began_s + self._settings.least_pause_s)
                until_s = min(until_s, soonest_s + self._chance() * self._settings.spread_s)
        return hinted

    def _listen(self, now_s: float, until_s: float) -> bool:
        """Wait for input or the next deadline. Return True if a hint came."""
        try:
            if self._line is None and now_s >= self._next_try_s:
                self._line, waited = self._connected()
                self._failures = 0
                if waited:
                    return True
            line, due_s = self._line, min(until_s, self._line.due_s if self._line else self._next_try_s)
            sources: list[Alarm | socket.socket] = [self._alarm, *([line.socket] if line else [])]
            if line and line.pending:
                return line.read()
            ready = select.select(sources, [], [], max(0.0, due_s - self._monotonic()))[0]
            if line and line.socket in ready:
                return line.read()
            if line:
                line.keep_alive()
        except (OSError, WireError, ConfigurationError, ValueError, KeyError) as error:
            self._lost(str(error) or type(error).__name__)
        return False

    def _connected(self) -> tuple[_Line, bool]:
        timeout_s, settings = self._settings.connect_timeout_s, self._settings
        device = str(json.loads(read_text(self._folder / DEVICE_FILE))["device"])
        with self._connecting():
            made = socket.create_connection((self._host, self._port), timeout_s)
        try:
            if self._secure:
                context = tls_context(with_certificate(self._config.fetch, self._folder))
                made = context.wrap_socket(made, server_hostname=self._host)
            line = _Line(made, settings.keepalive_s, timeout_s, self._monotonic)
            waited = line.begin(f"edge-agent-{device}", settings.topic.replace("{device}", device))
        except BaseException:  # raised again: the descriptor must not stay open
            made.close()
            raise
        return line, waited

    def _lost(self, problem: str) -> None:
        """Disconnect and schedule the next attempt.

        The pause has full jitter, and so has the first one: all devices lose a broker at the same time.
        """
        self.close()
        self._failures += 1
        wait_s = pause_s(self._failures, self._settings.retry_s, self._settings.retry_limit_s, self._chance())
        self._next_try_s = self._monotonic() + wait_s
        if not self._logs:  # only now: the sleeping parent logs nothing else and is smaller without it
            configure_logging(self._config.log)
            self._logs = True
        get_logger("wake").warning(events.BROKER_CONNECTION_FAILED, broker=self._host, problem=problem)


class _Line:
    """Connection to a broker. `due_s`: time of the next action of `keep_alive`."""

    def __init__(
        self, made: socket.socket, keepalive_s: int, patience_s: float, monotonic: Callable[[], float]
    ) -> None:
        self.socket = made
        self._reader = Reader()
        self._keepalive_s, self._patience_s, self._monotonic = keepalive_s, patience_s, monotonic
        self._asked = False
        self.due_s = 0.0

    @property
    def pending(self) -> bool:
        """True if TLS holds bytes that `select` does not see."""
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def begin(self, client: str, topic: str) -> bool:
        """Connect and subscribe within the time-out. Return True if a hint waited. Raise OSError, WireError."""
        deadline_s = self._monotonic() + self._patience_s
        self._send(connect(client, self._keepalive_s))
        hinted = self._await(PacketKind.CONNACK, deadline_s)
        self._send(subscribe(topic))
        hinted |= self._await(PacketKind.SUBACK, deadline_s)
        self.socket.settimeout(self._patience_s)
        return hinted

    def read(self) -> bool:
        """Read packets. Return True if a hint came. Raise OSError, WireError."""
        content = self.socket.recv(_READ_BYTES)
        if not content:
            raise WireError("the broker hung up")
        if self._asked:
            self._asked, self.due_s = False, self._monotonic() + self._keepalive_s
        return PacketKind.PUBLISH in self._taken(content)

    def keep_alive(self) -> None:
        """Send a ping if one is due. Raise WireError if the broker did not answer the last one."""
        if self._monotonic() < self.due_s:
            return
        if self._asked:
            raise WireError(f"the broker has not answered for {self._patience_s:g} s")
        self._send(PINGREQ)
        self._asked = True
        self.due_s = self._monotonic() + self._patience_s

    def _await(self, kind: PacketKind, deadline_s: float) -> bool:
        """Wait for a packet. Return True if a message came before it, which is allowed (MQTT 3.1.1, 3.8.4)."""
        hinted = False
        while True:
            self.socket.settimeout(max(0.001, deadline_s - self._monotonic()))
            content = self.socket.recv(1)  # byte by byte: the bytes after this packet belong to `read`
            if not content:
                raise WireError("the broker hung up")
            kinds = self._taken(content)
            hinted |= PacketKind.PUBLISH in kinds
            if kind in kinds:
                return hinted

    def _taken(self, content: bytes) -> list[PacketKind]:
        packets = self._reader.feed(content)
        for packet in packets:
            if packet.answer:
                self._send(packet.answer)
        return [packet.kind for packet in packets]

    def _send(self, content: bytes) -> None:
        self.socket.sendall(content)
        self.due_s = self._monotonic() + self._keepalive_s


def _broker(url: str) -> tuple[str, int, bool]:
    """Return host, port, and whether TLS is used. Raise ConfigurationError."""
    try:
        parts = urlsplit(url)
        if parts.scheme in PORTS and parts.hostname and not parts.username and not parts.path.strip("/"):
            return parts.hostname, parts.port or PORTS[parts.scheme], parts.scheme == "mqtts"
    except ValueError:  # no port
        pass
    problem = f"{url!r:.150} is no broker; write mqtt://host:1883 or mqtts://host:8883, without user and password"
    raise ConfigurationError(problem, table="wake", key="url")
