"""Guards against floods: each limits work without a result, and closes the connection above its limit."""

from __future__ import annotations

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits

REFUSAL_PAYS_NS = 100_000
"""Work that a call pays for which ends with an error: a usual call costs a tenth of it."""


class Allowance:
    """Token bucket: `burst` tokens at first, refilled at `per_s`. The caller supplies the time."""

    __slots__ = ("_burst", "_last_ns", "_per_ns", "_tokens")

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_ns = burst, per_s / 1e9
        self._tokens, self._last_ns = burst, 0

    def take(self, now_ns: int) -> bool:
        """Spend a token. Return False if none is left."""
        self._tokens = min(self._burst, self._tokens + (now_ns - self._last_ns) * self._per_ns)
        self._last_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Guard:
    """Flood guards of one connection. Every method raises ProtocolError ENHANCE_YOUR_CALM above its limit.

    `frames_sent` counts the HEADERS and DATA frames sent so far: work done for the peer.
    """

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._resets = Allowance(limits.resets_burst, limits.resets_per_s)
        self._controls = Allowance(limits.controls_burst, limits.controls_per_s)
        self._window_updates = 0
        self._sent_at_ping = self._ping_ns = self._strikes = 0
        self._work_ns = 0
        self._answered_ns: int | None = None
        self._most_work_ns = limits.unanswered_work_ms * 1_000_000

    def control(self, now_ns: int) -> None:
        """Count a frame that requests nothing: SETTINGS, PING, PRIORITY, empty DATA, an unknown one."""
        # Each is cheap to send and costs a look, or an answer (CVE-2019-9512, 9513, 9515, 9518).
        if not self._controls.take(now_ns):
            raise _calm("too many frames that ask for nothing")

    def reset(self, now_ns: int) -> None:
        """Count a stream that was reset, refused or broken."""
        # A reset frees the peer's quota of streams at once: it could cause work without end ("rapid reset",
        # CVE-2023-44487). The same holds if the peer lets us reset (CVE-2025-8671), so both sides' resets count.
        if not self._resets.take(now_ns):
            raise _calm("too many streams given up or broken")

    def unread(self, size: int) -> None:
        """Check the bytes that the peer caused and does not read."""
        # Windows bound DATA only. Replies to PING and SETTINGS have none, and would fill memory (CVE-2019-9517).
        if size > self._limits.max_unread_bytes:
            raise _calm("replies are asked for and not read")

    def work(self, now_ns: int, work_ns: int) -> None:
        """Count work that was done for the peer; `answered` pays for it."""
        self._work_ns += work_ns
        if self._work_ns > self._most_work_ns:
            self._answered_ns = now_ns if self._answered_ns is None else self._answered_ns
            since_s = (now_ns - self._answered_ns) / 1e9
            if self._work_ns > self._most_work_ns + since_s * self._limits.unanswered_work_per_s_ms * 1e6:
                raise _calm("much work and no call that could be answered")

    def answered(self, now_ns: int) -> None:
        """Note an answered call: it pays for all work before it."""
        self._work_ns, self._answered_ns = 0, now_ns

    def refused(self) -> None:
        """Note a call that was answered by an error: it pays for the cost of such a call and no more."""
        self._work_ns = max(0, self._work_ns - REFUSAL_PAYS_NS)

    def window_update(self, now_ns: int, frames_sent: int) -> None:
        """Count a WINDOW_UPDATE. Sent frames pay for some; the others count as control frames."""
        if frames_sent * self._limits.window_updates_per_frame > self._window_updates:
            self._window_updates += 1
        else:
            self.control(now_ns)

    def ping(self, now_ns: int, frames_sent: int) -> None:
        """Count a PING. Too frequent pings without frames sent between them are strikes (gRFC A8).

        Sent frames pay for one: Go's client measures the round trip with every answer.
        """
        early = now_ns - self._ping_ns < self._limits.min_ping_interval_ms * 1_000_000
        if frames_sent != self._sent_at_ping:
            self._strikes, self._sent_at_ping = 0, frames_sent
        elif early:
            self._strikes += 1
        self._ping_ns = now_ns
        if self._strikes > self._limits.max_ping_strikes:
            raise _calm("too_many_pings")


def _calm(problem: str) -> ProtocolError:
    return ProtocolError(Code.ENHANCE_YOUR_CALM, problem)
