"""Attacks with bytes that are expensive to process: header blocks, HPACK tables, tiny DATA and control frames.

128 connections of one host send as fast as their link permits, and reconnect when they are closed.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.attack.flooders import PROCESSES, Words, flood
from tests.attack.rig import Attack, Target, check_harmless
from tests.simulators.http2_peer import WELCOME
from tests.simulators.http2_work import CLASSES, Work

MODULE = "tests.attack.test_costly_bytes"
ALL = "all costly bytes at once"
ATTACKS = {
    "blocks of index bytes": Attack(f"{MODULE}:index_bytes", processes=PROCESSES),
    "large header lists": Attack(f"{MODULE}:large_lists", processes=PROCESSES),
    "table churn": Attack(f"{MODULE}:table_churn", processes=PROCESSES),
    "DATA of 1 byte": Attack(f"{MODULE}:tiny_data", processes=PROCESSES),
    "DATA on closed streams": Attack(f"{MODULE}:late_data", processes=PROCESSES),
    ALL: Attack(f"{MODULE}:everything", processes=PROCESSES),
}


def index_bytes(target: Target, ends_s: float) -> int:
    """Send requests of hundreds of fields, one byte each."""
    return _flood(target, ends_s, "blocks of index bytes")


def large_lists(target: Target, ends_s: float) -> int:
    """Send requests of few bytes that expand to refused header lists."""
    return _flood(target, ends_s, "large lists of index bytes", "refused lists of index bytes")


def table_churn(target: Target, ends_s: float) -> int:
    """Send blocks that fill and empty HPACK's table."""
    return _flood(target, ends_s, "table churn by insertions", "table churn by size updates")


def tiny_data(target: Target, ends_s: float) -> int:
    """Send a message in frames of one byte."""
    return _flood(target, ends_s, "DATA of 1 byte")


def late_data(target: Target, ends_s: float) -> int:
    """Send DATA on a closed stream."""
    return _flood(target, ends_s, "DATA on a closed stream")


def everything(target: Target, ends_s: float) -> int:
    """Send every class at once."""
    return _flood(target, ends_s, *CLASSES)


def _flood(target: Target, ends_s: float, *names: str) -> int:
    return flood(target, target.grpc, ends_s, [_words(CLASSES[name]) for name in names])


def _words(work: Work) -> Words:
    return lambda: itertools.chain((WELCOME, work.first), map(work.words, itertools.count(1001, 2)))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == ALL else pytest.mark.long) for name in ATTACKS]
)
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    check_harmless(ATTACKS[name], tmp_path)
