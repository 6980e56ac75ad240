"""Verb `watch`: what messages say, the bounded table of sensors, its lines, and the daemon's metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gateway.cli import main
from gateway.common.terminal.tables import plain
from gateway.serving.cli.watch_messages import (
    TEXT_LIMIT_CHARS,
    WatchedError,
    WatchedMessage,
    WatchedResult,
    WatchedStatus,
    WatchedTopics,
)
from gateway.serving.cli.watch_metrics import LinkMetrics, parse_metrics, read_metrics
from gateway.serving.cli.watch_table import WINDOW_S, SensorTable
from gateway.serving.cli.watch_view import WatchedState, as_json, duration, picture
from gateway.serving.config import parse_config
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.topic_filters import read_filter
from tests.simulators.examples import examples

ROUTES = """
[[mqtt.route]]
name = "plain"
topics = ["plain/+"]
sensor = "topic[1]"
model = "m"
[[mqtt.route]]
name = "text"
topics = ["text/#"]
sensor = "topic[1:]"
model = "m"
result = {topic = "home/{sensor}/activity", payload = "text", template = "{label} ({score})"}
[[mqtt.route]]
name = "value"
topics = ["value/+"]
sensor = "payload.device"
model = "m"
result = {topic = "home/all/{model}-{label}", payload = "value"}
[[mqtt.route]]
name = "named"
topics = ["named/+"]
model = "m"
result = {topic = "named-results/{route}"}
[[mqtt.route]]
name = "template"
topics = ["template/+"]
model = "m"
result = {topic = "twice/{sensor}/{sensor}", payload = "json", template = '{"class": {label}, "ended_at": {ended_at}}'}
"""
CONFIG = parse_config(ROUTES, "").mqtt.route
TOPICS = WatchedTopics(CONFIG, "bench")
ENDED, ENDED_S = "2026-01-31T12:00:09.900Z", 1_769_860_809.9
NAMED = {"sensor": "left", "ended_at": ENDED}


def read(topic: str, payload: Any, **facts: bool) -> WatchedMessage | None:
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return TOPICS.read(Message(topic, content, **facts))


@pytest.mark.parametrize(
    ("topic", "payload", "wanted"),
    [
        ("edge/bench/status", b"online", WatchedStatus("online")),
        (
            "edge/bench/results/plain/left",
            {"label": "Walking", "score": 0.98765, **NAMED},
            WatchedResult("plain", "left", "Walking 0.9877", "Walking", 0.98765, ENDED_S),
        ),
        (
            "edge/bench/results/plain/a%2Fb",
            {"label": None, "score": None, "sensor": "a/b"},
            WatchedResult("plain", "a/b", "null"),
        ),
        ("home/x/activity", b"Walking (0.98)\nRunning", WatchedResult("text", "x", "Walking (0.98) Running")),
        ("home/all/m-7", b"7", WatchedResult("value", "home/all/m-7", "7")),
        ("named-results/named", {"value": 21, **NAMED}, WatchedResult("named", "left", "21", None, None, ENDED_S)),
        ("named-results/named", b"?", WatchedResult("named", "named-results/named", "?")),
        (
            "twice/x/x",
            {"class": "A", "ended_at": "2026-01-31T12:00:09.9"},
            WatchedResult("template", "x", "{class: A ended_at: 2026-01-31T12:00:09.9}", None, None, ENDED_S),
        ),
        ("twice/x/y", {"class": "A"}, None),
        ("edge/other/results/plain/left", b"1", None),
        ("edge/bench/results/plain/left/more", b"1", None),
    ],
)
def test_a_message_is_read_by_its_topic(topic: str, payload: Any, wanted: WatchedMessage | None) -> None:
    assert read(topic, payload) == wanted


def test_a_retained_status_counts_and_a_retained_result_does_not() -> None:
    assert read("edge/bench/status", b"offline", retain=True) == WatchedStatus("offline")
    assert read("edge/bench/results/plain/left", b"1", retain=True) is None
    assert read("edge/bench/errors", b"{}", retain=True) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"results": [{"label": "a", "score": 1}, {"label": "b", "score": 0}]}, "a 1 (+1 rows)"),
        ([{"class": "a"}, {"class": "b"}, {"class": "c"}], "{class: a} (+2 rows)"),
        ({"values": {"mean": 21.54321, "range": [20.1, 23.0]}}, "mean=21.54 range=[20.1 23]"),
        ({"outputs": [{"name": "boxes", "shape": [1, 6], "data": [1, 2, 3, 4, 5, 6]}]}, "boxes=[1 2 3 4 …]"),
        ({"outputs": [{"name": "variable", "data": [21.5]}]}, "variable=21.5"),
        ({"outputs": {}}, "{outputs: {}}"),
        ({"value": 10**400}, "∞"),
        ({"a": {"b": {"c": {"d": 1}}}}, "{a: {b: {c: …}}}"),
        ({}, "{}"),
        ([], "[]"),
        (True, "true"),
    ],
)
def test_a_result_is_shown_as_a_short_text(content: Any, text: str) -> None:
    found = read("edge/bench/results/plain/left", content)
    assert isinstance(found, WatchedResult)
    assert found.text == text


@pytest.mark.parametrize(
    ("refused", "wanted"),
    [
        ({"topic": "plain/left"}, ("plain", "left")),
        ({"topic": "text/a/b"}, ("text", "a%2Fb")),  # as the level of its result topic
        ({"topic": "value/x"}, ("value", "value/x")),
        ({"topic": "named/x"}, ("named", "named/x")),
        ({"topic": "edge/bench/infer/m"}, ("", "edge/bench/infer/m")),
        ({}, ("", "-")),
    ],
)
def test_an_error_belongs_to_the_sensor_of_the_refused_message(refused: dict[str, str], wanted: tuple[str]) -> None:
    found = read("edge/bench/errors", {**refused, "fault": "INVALID", "message": "no\nnumber"})
    assert found == WatchedError(*wanted, "INVALID: no number")


def test_an_error_that_is_no_object_is_shown() -> None:
    assert read("edge/bench/errors", b"\xffoops") == WatchedError("", "edge/bench/errors", "\ufffdoops")


def test_one_route_is_watched_alone() -> None:
    topics = WatchedTopics(CONFIG, "bench", "text")
    filters = [each.filter for each in topics.subscriptions]
    assert filters == ["home/+/activity", "edge/bench/errors", "edge/bench/status"]
    assert topics.read(Message("edge/bench/results/plain/left", b"1")) is None
    for topic, taken in (("text/x", True), ("plain/x", False), ("edge/bench/infer/m", False)):
        payload = json.dumps({"topic": topic, "fault": "INVALID", "message": "-"}).encode()
        assert (topics.read(Message("edge/bench/errors", payload)) is not None) is taken
    assert topics.read(Message("edge/bench/errors", b"?")) is None


def test_no_filter_covers_another_one_and_every_result_topic_is_subscribed() -> None:
    wide = '[[mqtt.route]]\nname = "w{0}"\ntopics = ["w{0}/+"]\nmodel = "m"\nresult = {{topic = "{1}"}}\n'
    text = (
        wide.format(0, "home/{sensor}/{label}") + wide.format(1, "home/{sensor}/b") + wide.format(2, "home/{model}/c")
    )
    topics = WatchedTopics(parse_config(text, "").mqtt.route, "bench")
    assert [each.filter for each in topics.subscriptions[:-2]] == ["home/+/+"]
    both = topics.read(Message("home/x/b", b"1"))
    assert isinstance(both, WatchedResult)
    assert (both.route, both.sensor) == ("w0 or w1", "x")
    filters = [read_filter(each.filter) for each in TOPICS.subscriptions]
    for topic in ("edge/bench/results/plain/left", "home/x/activity", "home/all/m-7", "twice/x/x"):
        assert any(one.takes(topic.split("/")) for one in filters)


KEYS = st.sampled_from(
    [
        *("label", "score", "sensor", "ended_at", "value", "values", "outputs", "results", "topic"),
        *("detections", "classes", "share", "anomalous", "text"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=20) | KEYS, inner, max_size=6),
    max_leaves=12,
)
PAYLOADS = st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode())
PLACES = st.sampled_from(
    ["edge/bench/results/plain/s", "home/x/activity", "named-results/named", "edge/bench/errors", "edge/bench/status"]
)


@pytest.mark.parametrize(
    ("result", "text", "label", "score"),
    [
        ({"detections": [{"label": "cat", "score": 0.91, "box": [1, 2, 3, 4]}] * 3}, "cat 0.91 (+2)", "cat", 0.91),
        ({"detections": []}, "nothing", None, None),
        ({"classes": [{"label": "road", "share": 0.5}]}, "road 0.5", "road", 0.5),
        ({"score": 3.5, "anomalous": True}, "anomalous 3.5", None, 3.5),
        ({"score": 0.5, "anomalous": False}, "normal 0.5", None, 0.5),
        ({"text": "12 345", "score": 0.9}, "12 345", None, 0.9),
    ],
)
def test_results_of_tasks_show_what_they_found(result: Any, text: str, label: str | None, score: float | None) -> None:
    found = TOPICS.read(Message("edge/bench/results/plain/s", json.dumps(result).encode()))
    assert isinstance(found, WatchedResult)
    assert (found.text, found.label, found.score) == (text, label, score)


@settings(max_examples=examples(300), deadline=None)
@given(topic=PLACES, payload=PAYLOADS)
def test_no_payload_is_a_stumble_and_its_text_is_bounded(topic: str, payload: bytes) -> None:
    found = TOPICS.read(Message(topic, payload))
    assert found is not None
    assert len(found.text) <= TEXT_LIMIT_CHARS
    table = SensorTable(0.0)
    table.receive(found, 1.0)
    state = shown(table, 2.0)
    json.dumps(as_json(state), allow_nan=False)
    assert all(cell_len(line.plain) <= 80 for line in picture(state, 80))
    assert all(line.plain == plain(line.plain) and "\n" not in line.plain for line in picture(state, 80))


def test_deep_nesting_is_shown_as_text() -> None:
    for depth in (500, 100_000):
        found = read("edge/bench/results/plain/left", b"[" * depth + b"]" * depth)
        assert isinstance(found, WatchedResult)


# ---- the table -----------------------------------------------------------------------------------------------------
def result(sensor: str, ended_s: float | None = None, route: str = "r") -> WatchedResult:
    return WatchedResult(route, sensor, "A 1", "A", 1.0, ended_s)


def shown(table: SensorTable, now_s: float, metrics: LinkMetrics | None = None, link: str = "") -> WatchedState:
    wall_s = 1_000_000.0 + now_s
    problems = (link,) if link else ()
    return WatchedState(
        "bench", "mqtt://b", wall_s, table.snapshot(now_s, wall_s), metrics or LinkMetrics(problem="away"), problems
    )


def test_lines_have_rate_lag_age_and_errors() -> None:
    table = SensorTable(100.0)
    for now_s in (100.5, 101.5, 102.5, 103.9):
        table.receive(result("a", ended_s=50.0), now_s)
    table.receive(WatchedError("r", "a", "INVALID: x"), 104.0)
    (line,) = table.snapshot(104.0, 52.5).lines
    assert (line.results, line.results_per_s, line.errors, line.last_error) == (4, 1.0, 1, "INVALID: x")
    assert line.lag_s == pytest.approx(2.5)
    assert line.age_s == pytest.approx(0.1)
    (line,) = table.snapshot(111.5, 60.0).lines
    assert line.results_per_s == pytest.approx(2 / 9.5)  # those of seconds 102 to 111
    (line,) = table.snapshot(200.0, 148.5).lines
    assert (line.results, line.results_per_s) == (4, 0.0)


def test_a_sensor_with_errors_only_has_neither_lag_nor_age() -> None:
    table = SensorTable(0.0)
    table.receive(WatchedError("r", "a", "INVALID"), 1.0)
    (line,) = table.snapshot(2.0, 2.0).lines
    assert (line.lag_s, line.age_s, line.last, line.results_per_s) == (None, None, None, 0.0)


def test_lines_are_sorted_by_route_and_sensor_whatever_comes_first() -> None:
    table = SensorTable(0.0)
    for route, sensor in (("b", "1"), ("a", "2"), ("a", "1"), ("b", "0")):
        table.receive(result(sensor, route=route), 1.0)
    lines = table.snapshot(1.0, 1.0).lines
    assert [(line.route, line.sensor) for line in lines] == [("a", "1"), ("a", "2"), ("b", "0"), ("b", "1")]


def test_the_sensor_that_was_received_least_recently_makes_room() -> None:
    table = SensorTable(0.0, limit=2)
    for sensor in ("a", "b", "a", "c"):
        table.receive(result(sensor), 1.0)
    snapshot = table.snapshot(1.0, 1.0)
    assert ([line.sensor for line in snapshot.lines], snapshot.removed) == (["a", "c"], 1)


def test_a_part_of_the_name_selects_sensors() -> None:
    table = SensorTable(0.0, part="LEFT")
    table.receive(result("wrist-Left"), 1.0)
    table.receive(result("right"), 1.0)
    table.receive(WatchedError("r", "right", "INVALID"), 1.0)
    table.receive(WatchedStatus("online"), 1.0)
    snapshot = table.snapshot(1.0, 1.0)
    assert [line.sensor for line in snapshot.lines] == ["wrist-Left"]
    assert (snapshot.status, snapshot.last_error) == ("online", None)


@settings(max_examples=examples(200), deadline=None)
@given(
    limit=st.integers(1, 5),
    events=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.floats(0, 5)), max_size=60),
)
def test_the_table_is_bounded_and_loses_no_count(limit: int, events: list[tuple[str, bool, float]]) -> None:
    table, now_s = SensorTable(0.0, limit=limit), 0.0
    newest = list[str]()
    for sensor, is_error, pause_s in events:
        now_s += pause_s
        table.receive(WatchedError("r", sensor, "x") if is_error else result(sensor), now_s)
        newest = [each for each in newest if each != sensor] + [sensor]
    snapshot = table.snapshot(now_s, now_s)
    assert {line.sensor for line in snapshot.lines} == set(newest[-limit:])
    assert (snapshot.removed > 0) >= (len(newest) > limit)
    counted = sum(line.results + line.errors for line in snapshot.lines)
    assert counted == len(events) or snapshot.removed
    for line in snapshot.lines:
        assert 0 <= line.results_per_s <= line.results
        assert line.results_per_s > 0 or line.age_s is None or line.age_s > WINDOW_S - 2


# ---- the view ------------------------------------------------------------------------------------------------------
def full_table(sensors: int = 30) -> SensorTable:
    table = SensorTable(0.0, limit=20)
    table.receive(WatchedStatus("online"), 1.0)
    for number in range(sensors):
        table.receive(result(f"sensor-{number:02}-in-the-room-at-the-end-of-the-floor", ended_s=999_999.0), 1.0)
    table.receive(WatchedError("r", "sensor-29", "INVALID: " + "long " * 30), 2.0)
    return table


METRICS = LinkMetrics("http://g", "", {"connected": 1, "problems": 0, "outbox": 2}, {"overloaded": 1_200, "late": 0})


@pytest.mark.parametrize("width", [20, 40, 80, 140])
@pytest.mark.parametrize("height", [12, 24, None])
def test_the_view_fits_the_terminal(width: int, height: int | None) -> None:
    lines = picture(shown(full_table(), 3.0, METRICS), width, height)
    assert all(cell_len(line.plain) <= width for line in lines)
    assert height is None or len(lines) <= height


def test_the_view_says_what_it_leaves_out() -> None:
    text = "\n".join(line.plain for line in picture(shown(full_table(), 3.0, METRICS), 140, 16))
    assert "… and 14 more sensors; select with --route or --sensor" in text
    assert "removed from the table: 11 sensors" in text
    assert "link: complete; outbox 2" in text
    assert "drops since the gateway's start: overloaded 1,200\n" in text
    assert "last error 1.0 s ago: r/sensor-29: INVALID: long" in text


def test_the_view_names_problems() -> None:
    table = SensorTable(0.0)
    text = "\n".join(line.plain for line in picture(shown(table, 1.0, link="refused"), 80))
    assert all(word in text for word in ("status unknown", "no result or error was received yet", "refused", "away"))
    broken = LinkMetrics("http://g", "", {"connected": 0, "problems": 2})
    text = "\n".join(line.plain for line in picture(shown(table, 1.0, broken), 80))
    assert "link: 2 problems, see the gateway's log" in text
    assert "drops since the gateway's start: none" in text


def test_programs_get_one_object() -> None:
    found = as_json(shown(full_table(1), 3.0, METRICS))
    assert found["at"] == "1970-01-12T13:46:43.000Z"
    assert (found["gateway"], found["status"], found["window_s"], found["sensors_removed"]) == (
        "bench",
        "online",
        10,
        0,
    )
    assert found["daemon"]["drops"] == {"overloaded": 1200, "late": 0}
    line = next(line for line in found["sensors"] if line["results"])
    assert (line["label"], line["score"], line["lag_s"], line["age_s"], line["last"]) == ("A", 1.0, 4.0, 2.0, "A 1")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (-1.25, "-1.2 s"),
        (64, "64 s"),
        (600, "10 min"),
        (36_000, "10 h"),
        (864_000, "10 d"),
    ],
)
def test_times_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


# ---- metrics and command -------------------------------------------------------------------------------------------
def test_metrics_of_mqtt_are_read() -> None:
    text = (
        "# HELP edge_gateway_mqtt_now What there is now.\n"
        'edge_gateway_mqtt_now{broker="default",what="connected"} 1.0\n'
        'edge_gateway_mqtt_now{broker="default",what="outbox"} 3\n'
        'edge_gateway_mqtt_now{broker="cloud",what="connected"} 0.0\n'
        'edge_gateway_mqtt_drops_total{broker="default",reason="queue_full"} 1.2e+06\nother_total{reason="x"} 1\n'
    )
    assert parse_metrics(text, "here", "default") == LinkMetrics(
        "here", "", {"connected": 1, "outbox": 3}, {"queue_full": 1_200_000}
    )
    assert parse_metrics(text, "here", "cloud") == LinkMetrics("here", "", {"connected": 0})
    assert "no metrics of MQTT broker 'other'" in parse_metrics(text, "here", "other").problem
    assert "HTTP is off" in read_metrics([], "default").problem


@pytest.mark.parametrize(
    ("config", "options", "problem"),
    [
        ("", (), "no route is configured"),
        (ROUTES, (), "no broker is configured"),
        (ROUTES, ("--route", "nowhere"), "no route is called 'nowhere'"),
        (ROUTES, ("--key", "k"), "--key needs --cert"),
    ],
)
def test_what_cannot_be_watched_is_exit_code_2(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], config: str, options: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "gateway.toml").write_text(config)
    assert main(["watch", str(tmp_path / "gateway.toml"), "--once", *options]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("every", ["0", "0.01", "3601", "nan", "soon"])
def test_an_interval_is_a_tenth_of_a_second_to_an_hour(every: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["watch", "--every", every])
    assert ended.value.code == 2
    assert "--every" in capsys.readouterr().err
