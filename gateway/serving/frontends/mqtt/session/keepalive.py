"""Keepalive of one connection (MQTT 5, 3.1.2.10): pings in silence, and the end of a connection without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic


class Keepalive:
    """Timer that sends a PING after `limit_s` without packets in one direction; 0 turns it off.

    `ping` sends one and returns True if its answer can be read. `silent` is called with the problem if the broker does
    not answer CONNECT or a PING within `limit_s`.
    """

    def __init__(self, limit_s: float, ping: Callable[[], bool], silent: Callable[[str], None]) -> None:
        self.limit_s = limit_s
        self._ping, self._silent = ping, silent
        self._received_s = self._sent_s = 0.0
        self._awaits = ""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Await the answer to CONNECT."""
        self._received_s = self._sent_s = monotonic()
        self._awaits = "CONNECT"
        self._arm()

    def welcomed(self, limit_s: int) -> None:
        """Use the limit of the CONNACK from now on."""
        self.limit_s, self._awaits = limit_s, ""
        self._arm()

    def received(self) -> None:
        """Note that bytes came: any packet proves that the broker answers."""
        self._received_s = monotonic()
        if self._awaits == "a PING":
            self._awaits = ""

    def sent(self) -> None:
        """Note that bytes were sent."""
        self._sent_s = monotonic()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        if self.limit_s:
            wait_s = min(self._received_s, self._sent_s) + self.limit_s - monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._tick)

    def _tick(self) -> None:
        now_s = monotonic()
        if now_s >= min(self._received_s, self._sent_s) + self.limit_s:
            if self._awaits:
                setting = "mqtt.connect_timeout_s" if self._awaits == "CONNECT" else "mqtt.keepalive_s"
                self._silent(f"the broker did not answer {self._awaits} within {self.limit_s:g} s ({setting})")
                return
            self._awaits = "a PING" if self._ping() else ""
            self._received_s = self._sent_s = now_s
        self._arm()
