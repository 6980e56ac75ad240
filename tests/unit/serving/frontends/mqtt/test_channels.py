"""Channels of a route: values to numbers, missing values, rows and columns, and configuration errors."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import jmespath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype, finish
from gateway.serving.config import parse_config
from gateway.serving.frontends.mqtt.inbound.decoder import LastValues
from gateway.serving.frontends.mqtt.inbound.payloads.channels import ChannelReader
from gateway.serving.frontends.mqtt.inbound.payloads.content import VALUES_LIMIT
from gateway.serving.frontends.mqtt.inbound.payloads.rows import RowSource
from gateway.serving.frontends.mqtt.inbound.payloads.tensors import row_tensor
from gateway.serving.frontends.mqtt.settings.paths import PATH_LIMIT_CHARS, compile_path
from gateway.serving.frontends.mqtt.settings.presets import SPARKPLUG
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute

DOCUMENT = {"a": {"b": 1.5}, "switch:0": {"on": True}, "list": [{"id": "x", "v": 3}, {"id": "y", "v": 4}]}
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def reader(*paths: str, **settings: Any) -> ChannelReader:
    settings.setdefault("missing", "refuse")
    return ChannelReader([MqttChannel(path, **settings) for path in paths])


def read(channels: ChannelReader, rows: Any) -> Any:
    return finish(channels.steps(rows))


# ---- paths ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.b", 1.5),
        ("a", {"b": 1.5}),
        ("@", DOCUMENT),
        ('"switch:0".on', True),
        ("a.b.c", None),
        ("absent.b", None),
        ("list[1].v", 4),
        ("list[?id=='x'].v | [0]", 3),
        ("list[].v", [3, 4]),
        ("list[-1].id", "y"),
        ("list[2].v", None),
        ("list.v", None),
        ("a[0]", None),
        ("[0]", None),
        ("absent || a.b", 1.5),
    ],
)
def test_a_path_finds_what_jmespath_finds(path: str, found: Any) -> None:
    compiled = compile_path(path)
    assert compiled.find(DOCUMENT) == found == jmespath.search(path, DOCUMENT)
    assert compiled.searches is any(operator in path for operator in ("?", "|", "[]"))


@pytest.mark.parametrize(
    "path", ["", "a.", "switch:0", "[", "a[?", "nonsense(@)", "[" * 100, "a" * (PATH_LIMIT_CHARS + 1)]
)
def test_a_path_that_does_not_compile_is_a_configuration_error(path: str) -> None:
    text = f'[[mqtt.route]]\nname = "r"\ntopics = ["t"]\nmodel = "m"\n[[mqtt.route.channel]]\npath = "{path}"\n'
    with pytest.raises(ConfigurationError, match="JMESPath") as refused:
        parse_config(text, "file")
    assert (refused.value.table, refused.value.key) == ("mqtt.route[0].channel[0]", "path")
    with pytest.raises(ConfigurationError) as refused:
        MqttRoute("plc", ("t",), "m", rows=path or "a.")
    assert (refused.value.table, refused.value.key) == ("mqtt.route[plc]", "rows")


@given(documents, st.lists(st.sampled_from(["a", "b", "[0]", "[-2]"]), min_size=1, max_size=4))
def test_chains_are_followed_as_jmespath_does(document: Any, parts: list[str]) -> None:
    path = ".".join(parts).replace(".[", "[")
    assert not compile_path(path).searches
    assert repr(compile_path(path).find(document)) == repr(jmespath.search(path, document))


@given(documents)
def test_a_path_that_fails_on_a_document_is_a_refusal(document: Any) -> None:
    for path in (
        "length(@)",
        "sum(a)",
        "sort_by(@, &a)",
        "avg(@[])",
        "to_number(a)",
        "a[::0]",
        "max_by(@, &a)",
        "join('', @)",
    ):
        find = compile_path(path).find
        with contextlib.suppress(RequestError):
            find(document)


# ---- values ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((7, 7), (7.5, 7.5), ("7.5", 7.5), (" -1e3 ", -1000), ("+.5", 0.5), (True, 1), (False, 0)),
        *(("ON", 1), ("off", 0), ("Open", 1), ("closed", 0), ("true", 1), ("FALSE", 0), ("home", 1), ("not_home", 0)),
    ],
)
def test_a_value_becomes_a_number(value: Any, number: float) -> None:
    assert read(reader("a"), [{"a": value}]).tolist() == [[number]]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(
            ("21,5", 21.5),
            ("-0,5", -0.5),
            (",5", 0.5),
            ("21.5 °C", 21.5),
            ("21,5°C", 21.5),
            ("44 %", 44),
            ("45%RH", 45),
        ),
        *(("1e3 Pa", 1000), ("7 m3/h", 7), ("7 m/s2", 7), ("9 µg/m³", 9), ("3 kWh ", 3), ("ON", 1), ("6.25", 6.25)),
    ],
)
def test_a_lenient_route_takes_texts_of_numbers(text: str, number: float) -> None:
    lenient = ChannelReader((MqttChannel("a"),), lenient=True)
    assert read(lenient, [{"a": text}]).tolist() == [[number]]


@pytest.mark.parametrize(
    "text", ["1.234,5", "1,2,3", "0x10", "12:30", "12 of 20", "5 °C 3", "12ab34", "warm", "C 5", "2026-01-31", "1" * 65]
)
def test_other_texts_are_refused_by_a_lenient_route(text: str) -> None:
    with pytest.raises(RequestError, match="finds the text"):
        read(ChannelReader((MqttChannel("a"),), lenient=True), [{"a": text}])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("warm", "finds the text 'warm'; expected a number or a word"),
        ("21,5", "the text '21,5'"),
        ("1" * 65, "the text"),
        ("0x10", "the text"),
        ({}, "finds an object"),
        (b"1", "finds bytes"),
        (math.inf, "finite number"),
        (10**400, "FP32 can hold"),
        (1e39, "range of FP32"),
        (None, "finds nothing in the payload; correct the path, or set missing"),
        ("unavailable", "finds the text 'unavailable' in the payload"),
        (math.nan, "finds nan"),
    ],
)
def test_another_value_is_refused_with_path_value_and_remedy(value: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as refused:
        read(reader("a"), [{"a": value}])
    assert refused.value.fault is Fault.INVALID


def test_scale_offset_words_and_flags() -> None:
    assert read(reader("a", scale=0.1, offset=-40.0), [{"a": 650}, {"a": "650"}]).tolist() == [[25.0], [25.0]]
    assert read(reader("a", words=("idle", "heating", "cooling")), [{"a": "Cooling"}]).tolist() == [[2]]
    assert read(reader("a", type="flag"), [{"a": 17.5}, {"a": 0}, {"a": "on"}]).tolist() == [[1], [0], [1]]
    with pytest.raises(RequestError, match="idle, heating"):
        read(reader("a", words=("idle", "heating")), [{"a": "on"}])


@pytest.mark.parametrize("nothing", [None, "", "unavailable", "Unknown", "none", "nan", math.nan])
def test_a_missing_value_follows_the_policy(nothing: Any) -> None:
    row = {"a": nothing, "b": 2}
    assert read(reader("a", "b", missing="skip"), [row, {"a": 1, "b": 2}]).tolist() == [[1, 2]]
    assert read(reader("a", "b", missing="zero", offset=5.0), [row]).tolist() == [[0, 7]]
    assert np.isnan(read(reader("a", "b", missing="last"), [row])).tolist() == [[True, False]]
    for policy in ("skip", "last", "zero"):
        assert read(reader("a", "b", missing=policy), [{"a": nothing}, None]).shape == (0, 2)


# ---- rows ------------------------------------------------------------------------------------------
def route(**settings: Any) -> MqttRoute:
    return MqttRoute("r", ("t",), "m", channel=(MqttChannel("a"),), **settings)


@pytest.mark.parametrize(
    ("settings", "document", "rows"),
    [
        ({}, {"a": 1}, [{"a": 1}]),
        ({}, [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ({}, [1, 2], [[1, 2]]),
        ({}, [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ({}, 7, [7]),
        ({"rows": "x.y"}, {"x": {"y": {"a": 1}}}, [{"a": 1}]),
        ({"rows": "x"}, {}, [None]),
        ({"key": "topic[1:]"}, 7, [{"b/c": 7}]),
        ({"key": "topic[1]", "rows": "v"}, {"v": 7}, [{"b": 7}]),
        (
            {"record_name": "n", "record_value": "v"},
            [{"n": "a", "v": 1}, {"n": 2}, 3, {"n": "b"}],
            [{"a": 1, "b": None}],
        ),
        ({"struct": "<2B", "struct_path": "d", "struct_encoding": "hex"}, {"d": "01020304"}, [[1, 2], [3, 4]]),
    ],
)
def test_rows_are_found(settings: dict[str, Any], document: Any, rows: Any) -> None:
    assert RowSource(route(**settings)).rows(document, "a/b/c") == rows


def test_columns_become_rows() -> None:
    found = read(reader("t", "h", "id"), [{"t": [1, 2, 3], "h": [4, 5, "6"], "id": 9}])
    assert found.tolist() == [[1, 4, 9], [2, 5, 9], [3, 6, 9]]
    with pytest.raises(RequestError, match=r"arrays of \[1, 2\] values; their lengths must be equal"):
        read(reader("t", "h"), [{"t": [1], "h": [4, 5]}])


def test_rows_and_values_of_a_message_are_bounded() -> None:
    many = VALUES_LIMIT // 20
    paths = ["a"] * 20
    assert len(read(reader(*paths), [{"a": [0] * many}])) == many
    with pytest.raises(RequestError, match=f"more than {many} rows"):
        read(reader(*paths), [{"a": [0] * (many + 1)}])
    with pytest.raises(RequestError, match="more than"):
        read(reader(*paths, missing="skip"), [{}] * (many + 1))
    with pytest.raises(RequestError, match="at most 100000"):
        RowSource(route()).rows([{}] * 100_001, "t")


@given(documents)
def test_any_document_is_finite_rows_or_a_refusal(document: Any) -> None:
    for policy in ("refuse", "skip", "zero"):
        with contextlib.suppress(RequestError):
            found = read(reader("a", "b.c", "@", missing=policy, scale=3.0), RowSource(route()).rows(document, "t"))
            assert found.shape[1] == 3
            assert np.isfinite(found).all()


@given(documents)
def test_any_rows_setting_finds_rows_or_refuses(document: Any) -> None:
    for settings in (
        {"rows": "a[]"},
        {"rows": "a || b", "key": "topic[0]"},
        {"record_name": "a", "record_value": "b"},
        {"struct": "<h", "struct_path": "a"},
    ):
        with contextlib.suppress(RequestError):
            assert RowSource(route(**settings)).rows(document, "t")


# ---- last values ------------------------------------------------------------------------------------------
def test_last_values_complete_rows_until_they_are_too_old() -> None:
    channels = [MqttChannel("a", missing="last", max_age_s=10.0), MqttChannel("b", missing="last")]
    last, nan = LastValues(channels, max_sensors=2), math.nan
    assert last.complete("s", np.array([[nan, 2.0]]), 0).shape == (0, 2)
    assert last.complete("s", np.array([[1.0, nan], [nan, 3.0]]), 0).tolist() == [[1, 2], [1, 3]]
    assert last.complete("s", np.array([[nan, 4.0]]), 10 * 10**9).tolist() == [[1, 4]]
    assert last.complete("s", np.array([[nan, 5.0]]), 10 * 10**9 + 1).shape == (0, 2)
    for sensor in ("t", "u"):
        last.complete(sensor, np.array([[1.0, 1.0]]), 0)
    assert len(last) == 2
    assert last.complete("s", np.array([[1.0, nan]]), 0).shape == (0, 2)


# ---- inputs and settings ------------------------------------------------------------------------------------------
def test_rows_become_the_models_input() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    for datatype in (Datatype.FP32, Datatype.FP64, Datatype.FP16, Datatype.INT64, Datatype.UINT8):
        tensor = row_tensor(rows, TensorSpec("x", datatype, (-1, 2)))
        assert tensor.array.tolist() == rows.tolist()
        assert tensor.array.dtype == datatype.dtype
    assert row_tensor(np.array([[0.0, 1.0]]), TensorSpec("x", Datatype.BOOL, (2,))).array.tolist() == [False, True]
    for datatype, value in (
        (Datatype.INT8, 1.5),
        (Datatype.INT8, 300.0),
        (Datatype.UINT8, -1.0),
        (Datatype.FP16, 1e6),
        (Datatype.BYTES, 1.0),
    ):
        with pytest.raises(RequestError, match="channel"):
            row_tensor(np.array([[value]]), TensorSpec("x", datatype, (-1, 1)))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("preset", {"preset": "zigbee"}),
        ("record_value", {"record_name": "id"}),
        ("record_value", {"record_value": "v"}),
        ("key", {"key": "payload.a"}),
        ("message_id", {"message_id": "payload.id", "content_type": SPARKPLUG}),
        ("byte_order", {"byte_order": "middle"}),
        ("struct_encoding", {"struct_encoding": "base32"}),
        ("descriptor", {"content_type": "application/protobuf", "message": "a.B"}),
        ("message", {"content_type": "application/protobuf", "descriptor": "file"}),
        ("rows", {"rows": "a", "struct": "<h"}),
        ("struct_path", {"struct_path": "a."}),
        ("struct", {"struct": "hh"}),
        ("struct", {"struct": "<4s"}),
    ],
)
def test_routes_whose_payloads_cannot_be_read_are_refused(key: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        route(**settings)
    assert (refused.value.table, refused.value.key) == ("mqtt.route[r]", key)


@pytest.mark.parametrize(
    ("key", "value"),
    [("type", "text"), ("missing", "guess"), ("scale", 0.0), ("words", ("on", "ON")), ("max_age_s", 0.0)],
)
def test_channels_that_cannot_work_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MqttChannel("a", **{key: value})
    assert (refused.value.table, refused.value.key) == ("mqtt.route.channel", key)


def test_a_setting_of_the_route_takes_precedence_over_its_preset() -> None:
    own = MqttRoute(
        "r",
        ("t",),
        "m",
        preset="shelly-gen2",
        sensor="topic",
        rows="@",
        channel=(MqttChannel("a", missing="zero"), MqttChannel("b")),
    )
    assert (own.sensor, own.rows, own.content_type) == ("topic", "@", "application/json")
    assert [channel.missing for channel in own.channel] == ["zero", "last"]


def test_scale_and_offset_may_be_negative_in_a_file() -> None:
    route = '[[mqtt.route]]\nname = "r"\ntopics = ["t"]\nmodel = "m"\n'
    text = f'{route}channel = [{{path = "a", scale = -2, offset = -40.5}}]\n'
    ((channel,),) = [each.channel for each in parse_config(text, "file").mqtt.route]
    assert (channel.scale, channel.offset) == (-2.0, -40.5)


# ---- steps ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "yields"),
    [
        ([], 0),
        ([{"a": 1, "b": "2"}] * 256, 0),
        ([{"a": 1, "b": "2"}] * 257, 1),
        ([{"a": [1] * 256, "b": "2"}], 0),
        ([{"a": [1] * 257, "b": "2"}], 1),
        ([{"a": [1] * 1000, "b": "2"}] * 2, 7),
        ([{"a": [], "b": "2"}] * 1000, 3),
        ([{"a": [], "b": "2"}] * 300 + [{"a": [1] * 600, "b": "2"}], 3),
    ],
)
def test_a_step_reads_a_bounded_number_of_values(rows: list[Any], yields: int) -> None:
    found, values = 0, None
    steps = reader("a", "b").steps(rows)
    while values is None:
        try:
            next(steps)
            found += 1
        except StopIteration as done:
            values = done.value
    assert found == yields
    count = sum(len(row["a"]) if isinstance(row["a"], list) else 1 for row in rows)
    assert values.tolist() == [[1, 2]] * count
