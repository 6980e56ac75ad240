"""One HTTP POST to a receiver that may be slow, gone or hostile: the outcome, and how long to wait before the next."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from gateway.common.domain.retry import retry_after_s

if TYPE_CHECKING:
    from urllib3 import PoolManager

ANSWER_LIMIT_BYTES = 65_536
RETRYABLE = frozenset({429, 502, 503, 504})
"""OTLP 1.x, "Retryable Response Codes". They include the overload statuses of Standard Webhooks."""


@dataclass(frozen=True, slots=True)
class PostResult:
    """Outcome of a POST. `status` 0: no response, `problem` says why. `content`: the start of the response's body.

    `taken`: whether the receiver may have processed the content. It is False if the connection failed or the status
    says that nothing was processed.
    """

    status: int
    problem: str = ""
    taken: bool = False
    retry_after_s: float = 0.0
    content: bytes = b""

    @property
    def delivered(self) -> bool:
        """Return whether the receiver reported success."""
        return 200 <= self.status < 300


class Post:
    """HTTP client with one persistent connection, used by one thread. No redirects; `trust` verifies servers."""

    def __init__(self, timeout_s: float, trust: ssl.SSLContext) -> None:
        self._timeout_s, self._trust = timeout_s, trust
        self._pool: PoolManager | None = None

    def send(self, url: str, content: bytes, headers: Mapping[str, str], now: datetime) -> PostResult:
        """Send one request. Failures are returned as answers, not raised."""
        from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

        try:
            response = self._opened().request(
                "POST", url, body=content, headers={"user-agent": "edge-fleet", **headers},
                redirect=False, retries=False, preload_content=False,
            )  # fmt: skip
            # what is there of the body, up to a limit: a receiver that sends slowly delays nothing
            content = response.read1(ANSWER_LIMIT_BYTES)
            if response.length_remaining == 0:
                response.release_conn()
            else:
                response.close()
            wait_s = retry_after_s(response.headers.get("retry-after", "")[:40], now)
            status = response.status
            return PostResult(status, f"HTTP {status}", status not in RETRYABLE, wait_s, content)
        except (ConnectTimeoutError, NewConnectionError, SSLError) as error:
            return PostResult(0, _words(error))
        except (HTTPError, OSError, ValueError) as error:
            return PostResult(0, _words(error), taken=True)

    def close(self) -> None:
        """Close the connection. May be called twice."""
        if self._pool is not None:
            self._pool.clear()

    def _opened(self) -> PoolManager:
        from urllib3 import PoolManager, Timeout

        if self._pool is None:
            timeout = Timeout(connect=self._timeout_s, read=self._timeout_s)
            self._pool = PoolManager(num_pools=1, maxsize=1, timeout=timeout, ssl_context=self._trust)
        return self._pool


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"
