"""Formats of payloads: what each reads, what each refuses, and that any bytes are a document or a refusal."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest
from google.protobuf import struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.frontends.mqtt.inbound.payloads.content import read_content_type
from gateway.serving.frontends.mqtt.inbound.payloads.formats import FORMATS, readers_of
from gateway.serving.frontends.mqtt.inbound.payloads.rows import packed_bytes, unpack
from gateway.serving.frontends.mqtt.settings.route import PROTOBUF, MqttRoute, compile_layout

PACK = [
    {"bn": "urn:dev:1:", "bt": 100, "bv": 20, "n": "temperature", "v": 1.5},
    {"n": "door", "vb": True},
    {"n": "temperature", "t": 10, "v": 2},
]
ROWS = [
    {"bn": "urn:dev:1:", "t": 100, "temperature": 21.5, "door": True},
    {"bn": "urn:dev:1:", "t": 110, "temperature": 22},
]
NUMBERED = [
    {-2: "urn:dev:1:", -3: 100, -5: 20, 0: "temperature", 2: 1.5},
    {0: "door", 4: True},
    {0: "temperature", 6: 10, 2: 2},
]


def read(content_type: str, payload: bytes) -> Any:
    content = read_content_type(content_type)
    return FORMATS[content.media](payload, content)


@pytest.mark.parametrize(
    ("content_type", "payload", "document"),
    [
        ("application/json", b'{"a": [1, "2", null]}', {"a": [1, "2", None]}),
        ("application/x-ndjson", b'{"a": 1}\n\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ("text/plain", b" 21.5\r\n", 21.5),
        ("text/plain", b"-7", -7),
        ("text/plain", b"1e3", 1000.0),
        ("text/plain", b"ON", "ON"),
        ("text/plain", b"", ""),
        ("text/plain", "21,5 °C".encode(), "21,5 °C"),
        ("text/csv", b"1,2.5,on\n3,4,off\n", [[1, 2.5, "on"], [3, 4, "off"]]),
        ("text/csv; header=present", b"t,h\n20,40\n21,41", [{"t": 20, "h": 40}, {"t": 21, "h": 41}]),
        ("text/csv; delimiter=semicolon", b"1;2\n", [[1, 2]]),
        ("text/csv", b'"a, b",2', [["a, b", 2]]),
        ("text/csv", b"", []),
        ("application/cbor", cbor2.dumps({"a": [1, 2.5]}), {"a": [1, 2.5]}),
        ("application/x-msgpack", msgspec.msgpack.encode({"a": [1, 2.5]}), {"a": [1, 2.5]}),
        ("application/msgpack", msgspec.msgpack.encode(7), 7),
        ("application/vnd.acme.reading+JSON; v=1", b'{"a": 1}', {"a": 1}),
        ("application/vnd.acme.reading+cbor", cbor2.dumps({"a": 1}), {"a": 1}),
        ("application/senml+json", msgspec.json.encode(PACK), ROWS),
        ("application/senml+cbor", cbor2.dumps(NUMBERED), ROWS),
        ("application/senml+json", b'[{"n": "level", "v": 3}]', [{"bn": "", "t": 0, "level": 3}]),
        ("application/senml+json", b'[{"bn": "urn:dev:2", "v": 3}]', [{"bn": "urn:dev:2", "t": 0, "urn:dev:2": 3}]),
    ],
)
def test_a_payload_becomes_its_document(content_type: str, payload: bytes, document: Any) -> None:
    assert read(content_type, payload) == document


@pytest.mark.parametrize(
    ("content_type", "text", "document"),
    [
        ("application/json", '\ufeff{"a": 1}\0', {"a": 1}),
        ("application/x-ndjson", '\ufeff{"a": 1}\n\0\0', [{"a": 1}]),
        ("text/plain", "\ufeff21.5\0", 21.5),
        ("text/plain", "21,5 °C", 21.5),
        ("text/plain", "ON\0", "ON"),
        ("text/csv; delimiter=semicolon", "\ufeff1,5;2\0", [["1,5", 2]]),
    ],
)
def test_a_lenient_route_takes_what_others_refuse(content_type: str, text: str, document: Any) -> None:
    content = read_content_type(content_type)
    route = MqttRoute("r", ("a",), "m", lenient=True)
    assert readers_of(route)[content.media](text.encode(), content) == document
    with contextlib.suppress(RequestError):
        assert read(content_type, text.encode()) != document


@pytest.mark.parametrize(
    ("content_type", "payload", "problem"),
    [
        ("application/json", b"{", "application/json"),
        ("application/x-ndjson", b'{"a": 1}\n{', "one JSON value a line"),
        ("text/plain", b"\xff", "UTF-8"),
        ("text/plain", b"1\n2", "one line"),
        ("text/plain", b"a" * 2000, "1024 characters"),
        ("text/csv", b'"a', "text/csv"),
        ("text/csv; header=present", b"a,b\n1", "names 2 columns, but a line has 1"),
        ("text/csv; delimiter=|", b"1|2", "comma, semicolon, tab, space"),
        ("application/cbor", b"\xa1", "application/cbor"),
        ("application/x-msgpack", b"\xdd\xff\xff\xff\xff", "x-msgpack"),
        ("application/senml+json", b"{}", "array of records"),
        ("application/senml+json", b'[{"v": 1}]', "has no name"),
        ("application/senml+json", b'[{"n": "a", "v": "x", "bv": 1}]', "must be numbers"),
        ("application/senml+json", b'[{"n": "a", "v": 1, "t": []}]', "must be numbers"),
        ("application/senml+json", b'[{"n": "a", "must_": 1}]', "feature must_"),
        ("application/senml+json", b'[{"n": "a", "bver": 11}]', "version 11"),
        ("application/senml+json", b'[{"n": "a", "v": 1e308, "bv": %d}]' % 10**400, "too large"),
        ("application/protobuf", b"", "settings descriptor and message"),
    ],
)
def test_an_unfit_payload_is_refused_with_the_reason(content_type: str, payload: bytes, problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as refused:
        read(content_type, payload)
    assert refused.value.fault is Fault.INVALID


@pytest.mark.parametrize("media", FORMATS)
@given(payload=st.one_of(st.binary(max_size=80), st.text(max_size=40).map(str.encode)))
def test_any_bytes_are_a_document_or_a_refusal(media: str, payload: bytes) -> None:
    for content_type in (media, f"{media}; header=present; delimiter=space"):
        with contextlib.suppress(RequestError):
            read(content_type, payload)


@given(
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=3), st.booleans()),
        lambda inner: st.lists(
            st.dictionaries(st.sampled_from(["n", "bn", "v", "bv", "t", "bt", "s", "vb", "u_"]), inner, max_size=4),
            max_size=4,
        ),
    )
)
def test_any_senml_is_rows_or_a_refusal(document: Any) -> None:
    with contextlib.suppress(RequestError):
        assert all(isinstance(row["bn"], str) for row in read("application/senml+json", msgspec.json.encode(document)))


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [
        ("text/csv", b"1\n" * 100_002),
        ("application/senml+json", b"[" + b'{"n":"a"},' * 100_000 + b'{"n":"a"}]'),
    ],
)
def test_rows_of_a_format_are_bounded(content_type: str, payload: bytes) -> None:
    with pytest.raises(RequestError, match="at most 100000 are taken"):
        read(content_type, payload)


# ---- packed bytes ------------------------------------------------------------------------------------------
def test_packed_bytes_become_rows() -> None:
    layout = compile_layout("<hhHf")
    packed = struct.pack("<hhHf", 1, -2, 3, 0.5) + struct.pack("<hhHf", 4, 5, 6, 1.5)
    assert unpack(layout, packed) == [[1, -2, 3, 0.5], [4, 5, 6, 1.5]]
    assert unpack(compile_layout(">2Bxd"), struct.pack(">2Bxd", 1, 2, 0.25)) == [[1, 2, 0.25]]
    with pytest.raises(RequestError, match="100001 rows"):
        unpack(compile_layout("<b"), bytes(100_001))
    for size in (0, 9, 11):
        with pytest.raises(RequestError, match=f"{size} packed bytes"):
            unpack(layout, bytes(size))


@pytest.mark.parametrize(
    "layout", ["", "<", "hh", "@hh", "<4s", "<p", "<P", "<n", "<xx", "<9999d", "<" + "h" * 200, "<-1h"]
)
def test_layouts_that_are_no_numbers_are_refused(layout: str) -> None:
    with pytest.raises(ValueError, match="layout"):
        compile_layout(layout)


@pytest.mark.parametrize(
    ("value", "encoding", "problem"),
    [
        (None, "base64", "'data' holds no packed bytes: found NoneType, expected text in base64"),
        (7, "hex", "found int"),
        ("ZAA", "base64", "no text in base64"),
        ("Z!AS", "base64", "no text in base64"),
        ("xy", "hex", "no text in hex"),
    ],
)
def test_what_is_no_packed_text_is_refused(value: Any, encoding: str, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        packed_bytes(value, encoding, "data")


@given(st.one_of(st.text(max_size=20), st.binary(max_size=20), st.integers(), st.none()))
def test_any_value_is_packed_bytes_or_a_refusal(value: Any) -> None:
    for encoding in ("base64", "hex"):
        with contextlib.suppress(RequestError):
            assert isinstance(packed_bytes(value, encoding, "data"), bytes)


# ---- protobuf ------------------------------------------------------------------------------------------
def descriptors() -> FileDescriptorSet:
    """Return descriptors of `acme.Reading`: a number, a packed array, and a message of the same kind."""
    file = FileDescriptorProto(name="reading.proto", package="acme", syntax="proto3")
    reading = file.message_type.add(name="Reading")
    one, many = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    double, message = FieldDescriptorProto.TYPE_DOUBLE, FieldDescriptorProto.TYPE_MESSAGE
    reading.field.add(name="temperature", number=1, type=double, label=one)
    reading.field.add(name="samples", number=2, type=double, label=many)
    reading.field.add(name="inner", number=3, type=message, label=one, type_name=".acme.Reading")
    reading.field.add(name="many", number=5, type=message, label=many, type_name=".acme.Reading")
    reading.field.add(name="count", number=4, type=FieldDescriptorProto.TYPE_INT64, label=one)
    return FileDescriptorSet(file=[file])


@pytest.fixture(name="route")
def described(tmp_path: Path) -> MqttRoute:
    file = tmp_path / "reading.binpb"
    file.write_bytes(descriptors().SerializeToString())
    return MqttRoute("r", ("t",), "m", content_type=PROTOBUF[0], descriptor=str(file), message="acme.Reading")


def test_a_protobuf_message_becomes_a_document_with_its_zeros(route: MqttRoute) -> None:
    content = read_content_type(PROTOBUF[0])
    payload = b"\x12\x10" + struct.pack("<2d", 1.5, 2.5) + b"\x1a\x09\x09" + struct.pack("<d", 7)
    document = readers_of(route)[PROTOBUF[0]](payload, content)
    assert (document["temperature"], document["samples"], document["count"]) == (0.0, [1.5, 2.5], 0)
    assert document["inner"]["temperature"] == 7.0


@given(payload=st.binary(max_size=60))
def test_any_bytes_are_a_protobuf_document_or_a_refusal(
    payload: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.binpb"
    file.write_bytes(descriptors().SerializeToString())
    route = MqttRoute("r", ("t",), "m", content_type=PROTOBUF[0], descriptor=str(file), message="acme.Reading")
    with contextlib.suppress(RequestError):
        assert isinstance(readers_of(route)[PROTOBUF[0]](payload, read_content_type(PROTOBUF[0])), dict)


def test_a_deep_protobuf_message_is_refused(route: MqttRoute) -> None:
    payload = b""
    for _ in range(300):
        length, size = len(payload), b""
        while length > 127:
            size, length = size + bytes([length & 127 | 128]), length >> 7
        payload = b"\x1a" + size + bytes([length]) + payload
    with pytest.raises(RequestError, match=r"no protobuf message acme\.Reading"):
        readers_of(route)[PROTOBUF[0]](payload, read_content_type(PROTOBUF[0]))


def test_the_expansion_of_protobuf_is_bounded(route: MqttRoute) -> None:
    read_message, content = readers_of(route)[PROTOBUF[0]], read_content_type(PROTOBUF[0])
    with pytest.raises(RequestError, match="at most 262144"):
        read_message(bytes(262_145), content)
    with pytest.raises(RequestError, match="more than 262144 values"):
        read_message(b"\x2a\x00" * 100_000, content)
    assert len(read_message(b"\x2a\x00" * 1000, content)["many"]) == 1000


def test_well_known_types_enums_and_maps_have_plain_forms(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="a.proto", package="a", syntax="proto3")
    file.dependency.extend(["google/protobuf/wrappers.proto", "google/protobuf/struct.proto"])
    level = file.enum_type.add(name="Level")
    level.value.add(name="LOW", number=0), level.value.add(name="HIGH", number=1)
    message = file.message_type.add(name="M")
    one, many = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    kinds = FieldDescriptorProto
    message.field.add(name="level", number=1, type=kinds.TYPE_ENUM, label=one, type_name=".a.Level")
    message.field.add(name="w", number=2, type=kinds.TYPE_MESSAGE, label=one, type_name=".google.protobuf.DoubleValue")
    message.field.add(name="s", number=3, type=kinds.TYPE_MESSAGE, label=one, type_name=".google.protobuf.Struct")
    entry = message.nested_type.add(name="MapEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=one)
    message.field.add(name="map", number=4, type=kinds.TYPE_MESSAGE, label=many, type_name=".a.M.MapEntry")
    known = FileDescriptorSet()
    for module in (wrappers_pb2, struct_pb2):
        module.DESCRIPTOR.CopyToProto(known.file.add())
    known.file.append(file)
    (tmp_path / "set").write_bytes(known.SerializeToString())
    route = MqttRoute("r", ("t",), "m", content_type=PROTOBUF[0], descriptor=str(tmp_path / "set"), message="a.M")
    struct_ = struct_pb2.Struct(fields={"x": struct_pb2.Value(number_value=2.5)}).SerializeToString()
    payload = b"\x08\x01" + b"\x12\x09\x09" + struct.pack("<d", 1.5) + bytes([0x1A, len(struct_)]) + struct_
    payload += b"\x22\x05\x0a\x01k\x10\x07"
    document = readers_of(route)[PROTOBUF[0]](payload, read_content_type(PROTOBUF[0]))
    assert document == {"level": "HIGH", "w": 1.5, "s": {"x": 2.5}, "map": {"k": 7}}


@pytest.mark.parametrize(
    ("content", "message", "key", "problem"),
    [
        (None, "acme.Reading", "descriptor", "cannot be read"),
        (b"\xff\xff", "acme.Reading", "descriptor", "protoc"),
        (descriptors().SerializeToString(), "acme.Other", "message", "full name"),
        (b"", "acme.Reading", "message", "full name"),
    ],
)
def test_descriptors_that_cannot_be_used_name_route_and_key(
    tmp_path: Path, content: bytes | None, message: str, key: str, problem: str
) -> None:
    file = tmp_path / "set.binpb"
    if content is not None:
        file.write_bytes(content)
    route = MqttRoute("plc", ("t",), "m", content_type=PROTOBUF[0], descriptor=str(file), message=message)
    with pytest.raises(ConfigurationError, match=problem) as refused:
        readers_of(route)
    assert (refused.value.table, refused.value.key) == ("mqtt.route[plc]", key)
