"""HTTP/1.1 floods: pipelined requests, chunks of one byte, chunk extensions, endless heads."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.attack.flooders import PROCESSES, Words, flood
from tests.attack.rig import Attack, Target, check_harmless

MODULE = "tests.attack.test_http_floods"
ATTACKS = {
    "HTTP requests in a row": Attack(f"{MODULE}:pipelines", processes=PROCESSES),
    "HTTP chunks and heads": Attack(f"{MODULE}:pieces", processes=PROCESSES),
}
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: gateway\r\n\r\n"
CHUNKED = b"POST /v2/models/small/infer HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"GET / HTTP/1.1\r\nHost: gateway\r\n"


def pipelines(target: Target, ends_s: float) -> int:
    """Send requests without waiting for responses."""
    return flood(target, target.http, ends_s, [_words(b"", LIVE)])


def pieces(target: Target, ends_s: float) -> int:
    """Send chunks of one byte, of 64 bytes and with long extensions, and endless fields."""
    floods = [
        _words(CHUNKED, b"1\r\n \r\n"),
        _words(CHUNKED, b"40\r\n" + b" " * 64 + b"\r\n"),
        _words(CHUNKED, b"1;" + b"x" * 500 + b"\r\n \r\n"),
        _words(HEAD, b"x: y\r\n"),
    ]
    return flood(target, target.http, ends_s, floods)


def _words(first: bytes, then: bytes) -> Words:
    return lambda: itertools.chain([first], itertools.repeat(then))


@pytest.mark.parametrize("name", ATTACKS)
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    check_harmless(ATTACKS[name], tmp_path)
