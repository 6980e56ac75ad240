"""Bounds of requests to a controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Timeouts, retries and sizes."""

    connect_timeout_s: float = 10.0  # for establishing a connection
    read_timeout_s: float = 60.0  # between two parts of an answer
    answer_limit_bytes: int = 33_554_432  # 32 MiB: largest answer that is read
    attempts: int = 5  # of a request that is answered "later", or of a POST whose connection broke
    backoff_s: float = 1.0  # pause after the first connection that broke; each next one is twice as long
    wait_limit_s: float = 30.0  # longest pause between two of them, whatever the controller says
    piece_bytes: int = 8_388_608  # 8 MiB of a file in one request; at most [drafts] request_limit_bytes there
    page_rows: int = 500  # rows of a list that one request returns
