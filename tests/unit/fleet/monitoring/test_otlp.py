"""Messages of OTLP, parsed strictly by OTLP's own types; and what becomes of them when the endpoint is odd."""

from __future__ import annotations

import json
import ssl
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from fleet.controller.database.ingestion import Row
from fleet.controller.database.tail import ReceivedRow
from fleet.controller.monitoring.otlp import Exporter, read_headers
from fleet.controller.monitoring.otlp_devices import LOGS, METRICS, Names, Piece, pieces
from fleet.controller.monitoring.otlp_points import nanoseconds, request
from fleet.controller.monitoring.post import Post
from fleet.controller.monitoring.settings import OtlpSettings
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.constants import settings_with
from tests.simulators.receiver import Said, receiving

NOW = datetime(2027, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
MESSAGES: dict[str, Any] = {METRICS: ExportMetricsServiceRequest, LOGS: ExportLogsServiceRequest}
VITALS = {
    "temperatures_c": {"cpu": 61.5},
    "power_watts": {"total": 7},
    "throttled": False,
    "memory_available_bytes": 1 << 40,
    "rss_bytes": 5,
    "store_bytes": 6,
    "spool": {"records": 1, "gaps": 0, "size_bytes": 9},
}
STATISTICS = {
    "model": "m",
    "version": "1",
    "weight": 100,
    "requests": 6,
    "executions": 4,
    "failed_runs": 1,
    "latency_ns": 3_000_000_000,
    "latency_counts": [1, 2, 3],
    "latency_bounds_ns": [1_000_000, 2_000_000],
    "infer_ns": 1_500_000_000,
    "compared": 0,
    "disagreed": 0,
}
UPDATE = {"slot": "m", "state": "rolled_back", "version": "2", "failure": {"reason": "latency", "step": "probation"}}


def heard(stream: str, document: Any, kind: str = "x", device: str = "camera-1", at: datetime = NOW) -> ReceivedRow:
    return ReceivedRow(device, stream, 1, NOW, Row(1, at, kind, document))


def parsed(told: list[Piece], signal: str) -> Any:
    """Parse the pieces of one signal like a receiver that accepts no unknown key."""
    content = request(signal, [piece.content for piece in told if piece.signal == signal])
    message = MESSAGES[signal]()
    json_format.Parse(content, message, ignore_unknown_fields=False)
    return message


def metrics_of(message: Any) -> dict[str, Any]:
    return {m.name: m for r in message.resource_metrics for scope in r.scope_metrics for m in scope.metrics}


def attributes(found: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in found}


def test_vitals_are_metrics_of_the_device() -> None:
    message = parsed(list(pieces([heard("vitals", VITALS)], Names(128))), METRICS)
    (resource,) = message.resource_metrics
    assert attributes(resource.resource.attributes) == {
        "service.name": "edge-gateway",
        "service.instance.id": "camera-1",
        "device.id": "camera-1",
    }
    found = metrics_of(message)
    (point,) = found["edge.device.temperature"].gauge.data_points
    assert (point.as_double, attributes(point.attributes), found["edge.device.temperature"].unit) == (
        61.5,
        {"zone": "cpu"},
        "Cel",
    )
    assert point.time_unix_nano == 1_803_902_400_123_456_000
    assert found["edge.device.memory.available"].gauge.data_points[0].as_int == 1 << 40
    assert found["edge.device.throttled"].gauge.data_points[0].as_int == 0
    assert found["edge.agent.spool.size_bytes"].gauge.data_points[0].as_int == 9


def test_statistics_are_counters_and_a_histogram() -> None:
    found = metrics_of(
        parsed(list(pieces([heard("statistics", STATISTICS), heard("statistics", STATISTICS)], Names(128))), METRICS)
    )
    requests = found["edge.model.requests"].sum
    assert (requests.is_monotonic, requests.aggregation_temporality, len(requests.data_points)) == (True, 2, 2)
    assert requests.data_points[0].as_int == 6
    assert attributes(requests.data_points[0].attributes) == {"model": "m", "version": "1"}
    assert found["edge.model.inference_time"].sum.data_points[0].as_double == 1.5
    (point, _) = found["edge.model.request_duration"].histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([1, 2, 3], [0.001, 0.002])
    assert (point.count, point.sum) == (6, 3.0)


def test_updates_and_events_are_logs() -> None:
    late = NOW - timedelta(days=1)
    told = [heard("updates", UPDATE, "update", at=late), heard("events", {"reason": "", "problem": ""}, "poll")]
    message = parsed(list(pieces(told, Names(128))), LOGS)
    gave_up, polled = message.resource_logs[0].scope_logs[0].log_records
    assert (gave_up.severity_number, gave_up.event_name) == (13, "edge.device.update")
    assert gave_up.body.string_value == "update m 2 rolled_back latency"
    assert gave_up.observed_time_unix_nano - gave_up.time_unix_nano == 86_400 * 10**9
    assert attributes(gave_up.attributes)["failure.reason"] == "latency"
    assert (polled.severity_number, polled.body.string_value) == (9, "poll")


def test_what_is_not_told_makes_nothing() -> None:
    assert (
        list(
            pieces([heard("state", {"slot": "m"}), heard("vitals", {}), heard("statistics", {"model": 7})], Names(128))
        )
        == []
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"latency_counts": [1]},
        {"latency_bounds_ns": [2, 1]},
        {"latency_bounds_ns": [1, "x"]},
        {"latency_counts": [2**62, 2**62, 2**62]},
        {"latency_ns": -1},
    ],
)
def test_a_histogram_that_receivers_would_refuse_is_left_out(odd: dict[str, Any]) -> None:
    found = metrics_of(parsed(list(pieces([heard("statistics", STATISTICS | odd)], Names(128))), METRICS))
    assert "edge.model.request_duration" not in found
    assert "edge.model.requests" in found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SAID = st.dictionaries(st.sampled_from([*VITALS, *STATISTICS, *UPDATE, "problem"]), JSON) | JSON
TIMES = st.datetimes(timezones=st.just(UTC))


@given(st.sampled_from(["vitals", "statistics", "events", "updates"]), SAID, TIMES, st.text(max_size=5))
def test_whatever_devices_say_is_valid_otlp(stream: str, said: Any, at: datetime, name: str) -> None:
    told = list(pieces([heard(stream, said, name, name, at), heard("vitals", VITALS)], Names(128)))
    metrics, logs = parsed(told, METRICS), parsed(told, LOGS)
    assert len(metrics.resource_metrics) + len(logs.resource_logs) == len(told)


def test_times_that_64_bits_do_not_hold() -> None:
    assert nanoseconds(datetime(1, 1, 1, tzinfo=UTC)) == "0"
    assert nanoseconds(datetime(9999, 12, 31, tzinfo=UTC)) == str(2**63 - 1)


# ---- sending ---------------------------------------------------------------------------------------------------------
class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def exporter(url: str, **settings: Any) -> tuple[Exporter, Counter[str]]:
    counts: Counter[str] = Counter()
    post = Post(5.0, ssl.create_default_context())
    changed = settings_with(OtlpSettings(url), **settings)
    return Exporter(changed, post, counts, {"authorization": "Bearer x"}, chance=lambda: 1.0), counts


def test_it_arrives_compressed_on_one_connection() -> None:
    with receiving() as receiver:
        sender, counts = exporter(receiver.url + "/otlp/")
        sender.offer_rows([heard("vitals", VITALS), heard("updates", UPDATE)])
        sender.tick(Clock())
        paths = [(posted.path, posted.headers["content-type"]) for posted in receiver.posted]
        assert paths == [("/otlp/v1/metrics", "application/json"), ("/otlp/v1/logs", "application/json")]
        assert {posted.headers["content-encoding"] for posted in receiver.posted} == {"gzip"}
        assert {posted.headers["authorization"] for posted in receiver.posted} == {"Bearer x"}
        json_format.Parse(receiver.posted[0].content, ExportMetricsServiceRequest(), ignore_unknown_fields=False)
        assert receiver.connections == 1
        assert counts["otlp_items_sent"] == 10
        assert sender.waiting() == (0, 0)
        sender.close()


def test_an_endpoint_that_took_nothing_is_asked_again_after_a_pause() -> None:
    with receiving(Said(503, {"retry-after": "7"}), Said(429)) as receiver:
        sender, counts = exporter(receiver.url)
        clock = Clock()
        sender.offer_rows([heard("vitals", VITALS)])
        for seconds, posted in ((0, 1), (6, 1), (7, 2), (8, 2), (9, 3)):
            clock.now = NOW + timedelta(seconds=seconds)
            sender.tick(clock)
            assert len(receiver.posted) == posted, seconds
        assert counts == {"otlp_items_sent": 9}
        sender.close()


@pytest.mark.parametrize(("said", "outcome"), [(Said(400), "refused"), (Said(500), "refused"), (Said(0), "unknown")])
def test_what_may_have_been_taken_or_never_will_be_is_not_sent_again(said: Said, outcome: str) -> None:
    with receiving(said) as receiver:
        sender, counts = exporter(receiver.url)
        sender.offer_rows([heard("vitals", VITALS)])
        sender.tick(Clock())
        sender.tick(Clock())
        assert len(receiver.posted) == 1
        assert counts == {f"otlp_items_{outcome}": 9}
        sender.close()


def test_nobody_there_is_given_up_after_some_attempts() -> None:
    with receiving() as receiver:
        url = receiver.url
    sender, counts = exporter(url, attempts=2)
    clock = Clock()
    sender.offer_rows([heard("vitals", VITALS)])
    sender.tick(clock)
    assert sender.waiting()[0] == 1
    clock.now += timedelta(seconds=60)
    sender.tick(clock)
    assert (sender.waiting(), counts) == ((0, 0), {"otlp_items_unreachable": 9})


def test_what_an_endpoint_rejects_of_a_request_is_counted() -> None:
    said = Said(200, {}, json.dumps({"partialSuccess": {"rejectedDataPoints": "2", "errorMessage": "x"}}).encode())
    with receiving(said) as receiver:
        sender, counts = exporter(receiver.url)
        sender.offer_rows([heard("vitals", VITALS)])
        sender.tick(Clock())
        assert counts == {"otlp_items_sent": 7, "otlp_items_rejected": 2}
        sender.close()


def test_the_queue_is_bounded_and_what_does_not_fit_is_counted() -> None:
    sender, counts = exporter("http://127.0.0.1:9", queue_limit_bytes=6_000)
    for _ in range(10):
        sender.offer_rows([heard("vitals", VITALS)])
    requests, size_bytes = sender.waiting()
    assert 0 < requests < 10
    assert size_bytes <= 6_000
    assert counts["otlp_items_queue_full"] == 9 * (10 - requests)
    sender.close()
    assert counts["otlp_items_stopped"] == 9 * requests


def test_requests_are_bounded() -> None:
    with receiving() as receiver:
        sender, counts = exporter(receiver.url, request_limit_bytes=4_000)
        sender.offer_rows([heard("vitals", VITALS, device=f"d{number}") for number in range(20)])
        sender.tick(Clock())
        assert max(len(posted.content) for posted in receiver.posted) <= 4_000
        assert len(receiver.posted) > 4
        assert counts["otlp_items_sent"] == 180
        sender.close()
    small, counts = exporter("http://127.0.0.1:9", request_limit_bytes=100)
    small.offer_rows([heard("vitals", VITALS)])
    assert counts == {"otlp_items_too_large": 9}


def test_headers_are_read_and_never_shown() -> None:
    assert read_headers("Authorization: Bearer x: y\n\nX-Scope-OrgID: 1\n", "f") == {
        "authorization": "Bearer x: y",
        "x-scope-orgid": "1",
    }
    with pytest.raises(ConfigurationError, match=r"f:2: is no header") as refused:
        read_headers("a: b\nsecret\n", "f")
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"f:1: is no header") as refused:
        read_headers("authorization: secret\0", "f")
    assert "secret" not in str(refused.value)


def test_a_device_brings_only_so_many_time_series_in_a_day() -> None:
    def models(device: str, first: int, count: int, day: int = 0) -> list[ReceivedRow]:
        said = [STATISTICS | {"model": f"m{number}"} for number in range(first, first + count)]
        return [replace(heard("statistics", one, device=device), received=NOW + timedelta(days=day)) for one in said]

    def told(rows: list[ReceivedRow]) -> set[tuple[str, str]]:
        message = parsed(list(pieces(rows, names)), METRICS)
        return {
            (sent.resource.attributes[0].value.string_value, point.attributes[0].value.string_value)
            for sent in message.resource_metrics
            for metric in sent.scope_metrics[0].metrics
            for point in metric.sum.data_points
        }

    names = Names(3)
    rows = [*models("liar", 0, 200), *models("honest", 7, 3), heard("vitals", {"rss_bytes": 5}, device="liar")]
    wanted = {("liar", "m0"), ("liar", "m1"), ("liar", "m2")} | {("honest", f"m{number}") for number in (7, 8, 9)}
    assert told(rows) == wanted
    assert names.left >= 197
    assert told(models("liar", 2, 2)) == {("liar", "m2")}
    assert told(models("liar", 50, 2, day=1)) == {("liar", "m50"), ("liar", "m51")}
