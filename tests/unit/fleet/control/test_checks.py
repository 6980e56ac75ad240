"""Findings of `edge-fleet doctor` in what was observed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet.controller.control.checks import (
    CLOCK_TOLERANCE,
    BlobUrls,
    Clock,
    HeldRoleKeys,
    Lifetime,
    StartFacts,
    Tables,
    findings,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
PORT = Lifetime("port.pem", NOW - DAY, NOW + 20 * DAY, 14 * DAY, "renew it")
SOUND = StartFacts(
    blobs=BlobUrls("https://fleet.example", "https://s3.example"),
    clock=Clock(NOW, True, NOW + CLOCK_TOLERANCE),
    tables=Tables("0010", "0010"),
    certificates=(PORT,),
    keys=(HeldRoleKeys("director", 1, 1), HeldRoleKeys("timestamp", 2, 2)),
)
ILL: dict[str, tuple[dict[str, Any], str, str]] = {
    "moved": ({"tables": Tables("", "0010", "the fleet moved")}, "database", "the fleet moved"),
    "empty": ({"tables": Tables("", "0010")}, "database", "holds no tables yet"),
    "old": ({"tables": Tables("0009", "0010")}, "database", "of 0009, this program works with 0010"),
    "old server": ({"tables": Tables("0010", "0010", server=(13, 14))}, "database", "PostgreSQL 13.14, older than 14"),
    "adrift": ({"clock": Clock(NOW, False, None)}, "clock", "is not synchronised"),
    "behind": ({"clock": Clock(NOW, None, NOW + DAY)}, "clock", "the newest record is of 2026-03-02 12:00 UTC"),
    "young": ({"certificates": [replace(PORT, begins=NOW + DAY)]}, "port.pem", "does not hold before 2026-03-02"),
    "expired": ({"certificates": [replace(PORT, ends=NOW)]}, "port.pem", "expired at 2026-03-01 12:00 UTC"),
    "ending": ({"certificates": [replace(PORT, ends=NOW + 13 * DAY)]}, "port.pem", "expires in 13.0 days"),
    "no key": ({"keys": [HeldRoleKeys("director", 1, 0)]}, "director", "1 of its published keys must sign, and 0 are"),
    "few keys": (
        {"keys": [HeldRoleKeys("timestamp", 2, 1)]},
        "timestamp",
        "2 of its published keys must sign, and 1 are",
    ),
    "nothing": ({"unpublished": "nothing is published yet"}, "repository", "nothing is published yet"),
    "plain": (
        {"blobs": BlobUrls("https://fleet.example", "http://minio:9000")},
        "[blobs.s3]",
        "minio:9000 is plain http",
    ),
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clock": Clock(NOW, None, None)},
        {"tables": Tables("0010", "0010", server=(14, 0))},
        {"blobs": BlobUrls("http://fleet.lan", "http://minio:9000")},
        {"blobs": BlobUrls("https://fleet.example", "")},
        {"certificates": [replace(PORT, ends=NOW + 14 * DAY)]},
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(changes: dict[str, Any]) -> None:
    assert findings(replace(SOUND, **changes)) == ()


@pytest.mark.parametrize("ill", ILL)
def test_what_is_wrong_is_found_with_a_remedy(ill: str) -> None:
    changes, where, problem = ILL[ill]
    (found,) = findings(replace(SOUND, **changes))
    assert found.where == where
    assert problem in found.problem
    assert found.remedy
