"""Records are numbered, sent in their order, and forgotten when the controller has them."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tests.load.spool import ReportedRows, SimulatedSpool, body

NOW = datetime(2027, 1, 1, tzinfo=UTC)
STREAMS = ("state", "vitals")


def filled(streams: list[str], epoch: int = 3) -> SimulatedSpool:
    spool = SimulatedSpool(epoch)
    for number, stream in enumerate(streams):
        spool.keep(stream, "kind", "vitals", NOW, {"n": number})
    return spool


def numbers(spool: SimulatedSpool, rows: int = 1000) -> list[tuple[str, int]]:
    return [(record.stream, record.seq) for record in spool.batch(rows)]


@given(st.lists(st.sampled_from(STREAMS), max_size=30), st.integers(0, 40), st.integers(0, 40))
def test_what_is_acknowledged_goes_and_nothing_else(streams: list[str], state: int, vitals: int) -> None:
    spool = filled(streams)
    before = numbers(spool)
    for stream in STREAMS:
        mine = [seq for found, seq in before if found == stream]
        assert mine == list(range(1, len(mine) + 1))
    had = {"state": state, "vitals": vitals}
    gone = spool.acknowledged(
        {"acknowledged": [{"stream": name, "boot_epoch": 3, "seq": seq} for name, seq in had.items()]}
    )
    assert numbers(spool) == [(stream, seq) for stream, seq in before if seq > had[stream]]
    assert gone == len(before) - len(spool)
    told = [ReportedRows(stream, 3, streams.count(stream), had[stream]) for stream in dict.fromkeys(streams)]
    assert list(spool.reported()) == told


def test_what_was_acknowledged_once_counts_for_good() -> None:
    """A controller that takes its word back must not look as if it had never given it."""
    spool = filled(["state"] * 5)
    for seq in (4, 2):
        spool.acknowledged({"acknowledged": [{"stream": "state", "boot_epoch": 3, "seq": seq}]})
    assert list(spool.reported()) == [ReportedRows("state", 3, made=5, acknowledged=4)]


def test_another_boot_is_not_this_one() -> None:
    spool = filled(["state"])
    assert spool.acknowledged({"acknowledged": [{"stream": "state", "boot_epoch": 2, "seq": 9}]}) == 0
    assert len(spool) == 1


def test_a_body_is_compressed_json_lines_as_the_agent_sends_them() -> None:
    spool = filled(["state", "vitals"])
    first, second = (json.loads(line) for line in gzip.decompress(body(spool.batch(9))).splitlines())
    assert first == {
        "stream": "state",
        "boot_epoch": 3,
        "seq": 1,
        "at": "2027-01-01T00:00:00.000000Z",
        "kind": "kind",
        "class": "vitals",
        "document": {"n": 0},
    }
    assert second["stream"] == "vitals"


def test_what_is_never_taken_is_dropped() -> None:
    spool = filled(["state", "vitals", "state"])
    spool.drop(spool.batch(1))
    assert numbers(spool, 1) == [("vitals", 1)]
