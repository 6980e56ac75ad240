"""One POST to somebody who may be slow, gone or hostile: what came of it, and how long to wait until the next."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from gateway.domain.retry import retry_after_s

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

ANSWER_LIMIT_BYTES = 65_536
RETRYABLE = frozenset({429, 502, 503, 504})
"""OTLP 1.x, "Retryable Response Codes"; what Standard Webhooks says of load is among them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: there was none, `problem` says why. `taken`: whether the receiver may have the content; of an answer
    without success, whether it does not say that it has not. `content`: the beginning of what it said."""

    status: int
    problem: str = ""
    taken: bool = False
    retry_after_s: float = 0.0
    content: bytes = b""

    @property
    def delivered(self) -> bool:
        """It said so."""
        return 200 <= self.status < 300


class Post:
    """Keeps one connection alive. Used by one thread. Follows no redirects; `trust` says which servers it believes."""

    def __init__(self, timeout_s: float, trust: ssl.SSLContext) -> None:
        self._timeout_s, self._trust = timeout_s, trust
        self._pool: PoolManager | None = None

    def send(self, url: str, content: bytes, headers: Mapping[str, str], now: datetime) -> Answer:
        """Whatever happens is an answer."""
        from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

        try:
            response = self._opened().request(
                "POST", url, body=content, headers={"user-agent": "edge-fleet", **headers},
                redirect=False, retries=False, preload_content=False,
            )  # fmt: skip
            return _answer(response, now)
        except (ConnectTimeoutError, NewConnectionError, SSLError) as error:
            return Answer(0, _words(error))
        except (HTTPError, OSError, ValueError) as error:
            return Answer(0, _words(error), taken=True)

    def close(self) -> None:
        """Twice is harmless."""
        if self._pool is not None:
            self._pool.clear()

    def _opened(self) -> PoolManager:
        from urllib3 import PoolManager, Timeout

        if self._pool is None:
            timeout = Timeout(connect=self._timeout_s, read=self._timeout_s)
            self._pool = PoolManager(num_pools=1, maxsize=1, timeout=timeout, ssl_context=self._trust)
        return self._pool


def _answer(response: BaseHTTPResponse, now: datetime) -> Answer:
    """Of the body only what is there at once, at most: a receiver that drips holds nobody up."""
    content = response.read1(ANSWER_LIMIT_BYTES)
    if response.length_remaining == 0:
        response.release_conn()
    else:
        response.close()
    wait_s = retry_after_s(response.headers.get("retry-after", "")[:40], now)
    status = response.status
    return Answer(status, f"HTTP {status}", taken=status not in RETRYABLE, retry_after_s=wait_s, content=content)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"
