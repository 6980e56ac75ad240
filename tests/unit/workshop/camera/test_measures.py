"""Rates and latencies of a feed."""

import pytest

from gateway.workshop.camera.measures import (
    FrameCounts,
    FrameTimes,
    LatencyRecord,
    RecentRate,
    count_rows,
    latency_rows,
    summary,
)


def test_the_whole_is_the_sum_of_its_parts_and_percentiles_are_those_of_each_part():
    record = LatencyRecord(1000)
    for number in range(1, 101):
        record.add(FrameTimes(0.001, 0.002, 0.003, number / 1000))
    found = record.milliseconds()
    assert found["decode"] == pytest.approx([1, 1, 1, 1])
    assert found["request"] == pytest.approx([50.5, 90.1, 99.01, 100.0])
    assert found["whole"] == pytest.approx([56.5, 96.1, 105.01, 106.0])


def test_only_the_newest_times_are_kept():
    record = LatencyRecord(10)
    for seconds in [9.0] * 50 + [1.0] * 10:
        record.add(FrameTimes(0.0, 0.0, 0.0, seconds))
    assert record.milliseconds()["request"] == [1000.0] * 4


def test_the_summary_has_rates_and_a_table_leaves_out_what_did_not_occur():
    record = LatencyRecord(10)
    record.add(FrameTimes(0.001, 0.0, 0.0, 0.001))
    document = summary(FrameCounts(read=100, skipped=40, asked=60, answered=59, failed=1), 4.0, record)
    assert document["per_s"]["answered"] == 14.75
    assert document["latency_ms"]["whole"] == {"p50": 2.0, "p90": 2.0, "p99": 2.0, "max": 2.0}
    assert [row[0] for row in count_rows(document)] == [
        "read",
        "skipped for a newer one",
        "asked",
        "answered",
        "failed",
    ]
    assert latency_rows(document)[-1] == ("whole", "2.0", "2.0", "2.0", "2.0")
    more = summary(FrameCounts(left_out=2, broken=3), 0.0, LatencyRecord(1))
    assert {"left out by --rate", "broken packets"} <= {row[0] for row in count_rows(more)}
    assert (more["latency_ms"], more["per_s"]["left_out"]) == ({}, 0.0)


def test_the_recent_rate_is_that_of_the_newest_answers():
    rate = RecentRate(answers=10)
    assert rate.per_s == 0.0
    for at_s in (0.0, 60.0, *(100 + number / 20 for number in range(11))):
        rate.add(at_s)
    assert rate.per_s == pytest.approx(20.0)
