"""Verb `routes`: what a route makes of a message, and proposals that the gateway accepts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.cli import main
from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import SequenceBatching, StateTensors
from gateway.common.domain.release import Release
from gateway.serving.config import parse_config
from gateway.serving.frontends.mqtt.inbound.proposal import propose, write_toml
from gateway.serving.frontends.mqtt.outbound.contents import timestamp
from tests.simulators.engine_rig import manifest, release
from tests.simulators.pipelines import spec
from tests.unit.serving.frontends.mqtt.test_payload_guide import EXAMPLES

CONFIG = """
[[mqtt.route]]
name = "rooms"
topics = ["rooms/+"]
model = "comfort"
sensor = "topic[1]"
channel = [{path = "t", unit = "°C"}, {path = "h", missing = "last"}]
[[mqtt.route]]
name = "wrists"
topics = ["wrists/+"]
model = "activity"
sensor = "topic[1]"
"""


@pytest.fixture(name="files")
def written(tmp_path: Path) -> Path:
    (tmp_path / "gateway.toml").write_text(CONFIG)
    return tmp_path


def run(files: Path, payload: bytes, *options: str) -> int:
    """Run `routes check` on a message."""
    (files / "sample").write_bytes(payload)
    return main(["routes", "check", str(files / "gateway.toml"), "--sample", str(files / "sample"), *options])


def test_a_message_is_shown_as_rows(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, b'[{"t": 21.5, "h": 40}, {"t": 22}]', "--topic", "rooms/attic") == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("attic", "21.5 °C", "40", "22 °C", "inputs"))
    assert "windows and shapes were not checked" in said


def test_programs_get_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, b'{"t": 21.5}', "--route", "rooms", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["route"], found["topic"], found["sensor"], found["inputs"]) == ("rooms", "rooms/sensor", "sensor", 0)
    assert (found["rows"], found["problem"]) == ([[21.5, None]], None)
    assert [channel["path"] for channel in found["channels"]] == ["t", "h"]


def test_windows_of_a_model_are_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, json.dumps([[0.5] * 6] * 150).encode(), "--topic", "wrists/left", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["window"], found["inputs"], len(found["rows"])) == ("100 rows, a new one every 50", 2, 150)
    assert run(files, json.dumps([[0.5] * 6] * 30).encode(), "--topic", "wrists/left") == 0
    assert "10 more rows" in capsys.readouterr().out


PIPELINE = """
schema = 1
name = "rise"
version = "1"
[input]
levels = "FP32[3]"
[[step]]
name = "by"
model = "elsewhere"
of = "levels"
[output]
rise = "by.score"
"""


def test_a_row_of_a_pipeline_is_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its models need not be there: the file says what it takes."""
    (files / "models" / "rise" / "1").mkdir(parents=True)
    (files / "models" / "rise" / "1" / "pipeline.toml").write_text(PIPELINE)
    (files / "gateway.toml").write_text(
        '[[mqtt.route]]\nname = "tanks"\ntopics = ["tanks/+"]\nmodel = "rise"\nrows = "[l]"\n'
    )
    models = ("--models", str(files / "models"))
    assert run(files, b'{"l": [1, 2, 4]}', *models, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tensor"], found["inputs"], found["problem"]) == ("FP32 [1, 3]", 1, None)
    assert run(files, b'{"l": [1, 2]}', *models) == 1
    assert "[1, 2]" in capsys.readouterr().out


@pytest.mark.parametrize("default", [None, 1.5])
def test_a_row_goes_to_the_first_input_that_callers_see(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, default: float | None
) -> None:
    inputs = (spec("state", 5), spec("x", 3, default=default), spec("y", 1))
    sequence = SequenceBatching((StateTensors("state", "next"),))
    fold = release(manifest("fold", inputs=inputs, outputs=(spec("next", 5), spec("z", 1)), sequence=sequence), "d1")

    async def find(*_: Any) -> Release:
        return fold

    monkeypatch.setattr("gateway.serving.cli.routes.find_release", find)
    route = '[[mqtt.route]]\nname = "tanks"\ntopics = ["tanks/+"]\nmodel = "fold"\nrows = "[l]"\n'
    (files / "gateway.toml").write_text(route)
    assert run(files, b'{"l": [1, 2, 4]}', "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tensor"], found["inputs"], found["problem"]) == ("FP32 [1, 3]", 1, None)
    assert run(files, b'{"l": [1]}') == 1


SESSIONS = """
[[mqtt.route]]
name = "moves"
topics = ["moves/+"]
model = "activity"
sensor = "topic[1]"
window = {session_gap_s = 5.0, pad = "first"}
"""
NUMBERED = """
[[mqtt.route]]
name = "numbered"
topics = ["numbered/+"]
model = "unknown"
sensor = "topic[1]"
size_rows = 2
channel = [{path = "v"}]
time = {path = "t", unit = "ms", sequence = "n", lateness_s = 1.0}
"""
JOINED = """
[[mqtt.route]]
name = "joined"
topics = ["joined/+"]
model = "unknown"
sensor = "topic[1]"
size_rows = 2
content_type = "application/x-ndjson"
channel = [{path = "x"}, {path = "y", unit = "g"}]
time = {path = "t", lateness_s = 1.0, join = "linear", join_tolerance_s = 0.5}
"""


def test_sessions_are_shown_as_they_end(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "gateway.toml").write_text(SESSIONS)
    assert run(files, json.dumps([[0.5] * 6] * 130).encode(), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["window"] == "at most 100 rows, ends after 5 s without samples"
    assert found["windows"] == [{"rows": 100, "padded_samples": 0}, {"rows": 30, "padded_samples": 70}]
    assert run(files, json.dumps([[0.5] * 6] * 130).encode()) == 0
    assert "100 rows, 30 rows and 70 added" in capsys.readouterr().out


def test_times_and_numbers_of_a_message_are_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "gateway.toml").write_text(NUMBERED)
    now_ms = time.time_ns() // 1_000_000
    payload = json.dumps([{"t": now_ms + number, "n": number, "v": 4} for number in (7, 9)]).encode()
    assert run(files, payload) == 0
    said = capsys.readouterr().out
    assert (timestamp((now_ms + 7) * 1_000_000) in said, "number" in said) == (True, True)
    assert run(files, payload, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["number"], found["inputs"]) == ([[4], [4]], ["7", "9"], 1)


def test_joined_rows_are_shown_with_the_rows_of_the_message(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "gateway.toml").write_text(JOINED)
    lines = ({"t": 1.0, "y": 2}, {"t": 1.2, "x": 7}, {"t": 1.4, "y": 4}, {"t": 3.0, "x": 8})
    payload = "\n".join(map(json.dumps, lines)).encode()
    assert run(files, payload, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"][0], found["joined"], found["inputs"]) == ([None, 2], [[7, 3]], 0)
    assert found["time"][:2] == ["1970-01-01T00:00:01.000Z", "1970-01-01T00:00:01.200Z"]
    assert run(files, payload) == 0
    said = capsys.readouterr().out
    assert ("other messages" in said, "joined row" in said, "3 g" in said) == (True, True, True)


def test_a_refusal_names_the_model_that_was_not_found(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "gateway.toml").write_text(JOINED.replace("size_rows = 2", ""))
    assert run(files, b'{"t": 1.0, "x": 1}') == 1
    said = capsys.readouterr().out
    assert ("set size_rows" in said, "windows and shapes were not checked" in said) == (True, True)


def test_a_refusal_is_shown_with_its_reason(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, b'{"h": 1}', "--topic", "rooms/attic") == 1
    assert "path 't' finds nothing in the payload" in capsys.readouterr().out
    assert run(files, b"{", "--route", "rooms", "--json") == 1
    assert "application/json" in json.loads(capsys.readouterr().out)["problem"]
    assert run(files, cbor2.dumps({"t": 1, "h": 2}), "--route", "rooms", "--content-type", "application/cbor") == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "name the route with --route or --topic; known are rooms, wrists"),
        (("--route", "other"), "no route is called 'other'"),
        (("--topic", "other/x"), "no route, or several, take topic 'other/x'"),
        (("--route", "rooms", "--topic", "wrists/x"), "does not take topic 'wrists/x'; its topics are rooms/+"),
    ],
)
def test_a_route_must_be_found(
    files: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], problem: str
) -> None:
    assert run(files, b"{}", *options) == 2
    assert problem in capsys.readouterr().err


def test_a_sample_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "new"]) == 2
    assert "--sample" in capsys.readouterr().err


# ---- proposals ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("route", "messages"),
    [example for example in EXAMPLES if example[1]],
    ids=lambda value: getattr(value, "preset", "x"),
)
def test_a_proposal_for_a_message_of_the_guide_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], route: Any, messages: Any
) -> None:
    message = messages[0]
    sample, config = tmp_path / "sample", tmp_path / "gateway.toml"
    sample.write_text(message.payload)
    assert main(["routes", "new", "--sample", str(sample), "--topic", message.topic, "--model", "comfort"]) == 0
    config.write_text(capsys.readouterr().out)
    (proposed,) = parse_config(config.read_text(), "proposal").mqtt.route
    assert (proposed.model, proposed.preset) == ("comfort", route.preset)
    assert bool(proposed.struct) is bool(route.struct)
    assert main(["routes", "check", str(config), "--sample", str(sample), "--topic", message.topic, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"]
    assert found["sensor"] == (message.sensor if route.preset else "attic")


@pytest.mark.parametrize(
    ("payload", "content_type", "lines"),
    [
        (b"21.5", "text/plain", ['path = "@"  # found 21.5']),
        (b"1,2\n3,4\n", "text/csv", ['path = "[0]"  # found 1', 'path = "[1]"  # found 2']),
        (
            b'{"a": {"b c": 1}, "ts": 5, "x": "warm"}',
            "application/json",
            ["path = 'a.\"b c\"'  # found 1", '#path = "ts"  # found 5'],
        ),
        (b'{"samples": [{"t": 1}, {"t": 2}]}', "application/json", ['rows = "samples"', 'path = "t"  # found 1']),
        (b'{"t": 1}\n{"t": 2}\n', "application/x-ndjson", ['path = "t"  # found 1']),
        (b'[{"n": "t", "v": 1}]', "application/senml+json", ['path = "t"  # found 1']),
        (cbor2.dumps({"t": 1}), "application/cbor", ['path = "t"  # found 1']),
        (b"\xff\xd8\xff\xe0", "image/jpeg", []),
    ],
)
def test_the_format_of_a_message_is_guessed(payload: bytes, content_type: str, lines: list[str]) -> None:
    written = write_toml(propose(payload, "site/attic/climate", "", ""))
    (route,) = parse_config(written, "proposal").mqtt.route
    assert (route.content_type, route.topics, route.sensor) == (content_type, ("site/+/climate",), "topic[1]")
    assert all(any(line.startswith(found) for found in written.splitlines()) for line in lines), written


def test_a_proposal_without_a_topic_or_with_one_level_is_valid() -> None:
    for topic, topics in (("", ("sensors/+",)), ("boiler", ("boiler",))):
        (route,) = parse_config(write_toml(propose(b"21.5", topic, "", "")), "proposal").mqtt.route
        assert route.topics == topics


@pytest.mark.parametrize("content_type", ["x/y", "application/protobuf", "application/cbor"])
def test_a_format_that_does_not_fit_is_refused(content_type: str) -> None:
    with pytest.raises(RequestError, match=content_type):
        propose(b"{}", "", content_type, "m")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.one_of(st.binary(max_size=40), st.text(max_size=30).map(str.encode)), topic=st.text(max_size=20))
def test_any_message_is_a_proposal_or_a_refusal(payload: bytes, topic: str) -> None:
    try:
        proposal = propose(payload, topic, "", "m")
    except RequestError:
        return
    written = write_toml(proposal)
    if "\0" not in topic:
        assert "[[mqtt.route]]" in written
