"""Layouts remembered of requests mean what the protobuf message means, field by field and byte by byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec import infer_codec as module
from gateway.serving.frontends.grpc_v2.codec.infer_codec import LAYOUTS_LIMIT, PATTERNS_LIMIT, InferCodec
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.regions import Regions, Registrant
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.examples import examples
from tests.simulators.infer_messages import CALL, NOW_NS, REGION_BYTES, decoded, expected, field, requests, respelled
from tests.simulators.segments import folder

CALLS = st.builds(CallInfo, st.sampled_from(["", "ann"]), st.none() | st.integers(1, 2 * NOW_NS))


@pytest.fixture(scope="module")
def regions() -> Iterator[Regions]:
    with folder() as shm:
        (shm / "frames").write_bytes(random.Random(3).randbytes(REGION_BYTES))
        made = Regions(SharedMemorySettings(allowed=True, over_tcp=True), Path(shm))
        made.register(Registrant("ann"), "r", "/frames", 0, REGION_BYTES)
        yield made


def request(*, model: str = "m", ident: str = "1", raw: bytes = bytes(8), **fields: Any) -> bytes:
    sent = message("inference.ModelInferRequest")(model_name=model, id=ident, **fields)
    sent.inputs.add(name="x", datatype="FP32", shape=[1, len(raw) // 4])
    sent.raw_input_contents.append(raw)
    return bytes(sent.SerializeToString())


def remembering(*met: bytes) -> InferCodec:
    codec = InferCodec(None)
    for raw in met:
        decoded(codec, raw)
    return codec


def learns(codec: InferCodec, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether a message is parsed."""
    parsed: list[Any] = []
    parse = module.parse_message
    with monkeypatch.context() as patch:
        patch.setattr(module, "parse_message", lambda *args: parsed.append(args) or parse(*args))
        codec.decode(raw, CALL, NOW_NS, lent=False)
    return bool(parsed)


# ---- what is remembered means what the message means -----------------------------------------------------------------
@settings(deadline=None, max_examples=examples(300))
@given(data=st.data(), call=CALLS)
def test_remembered_requests_are_what_they_say(data: st.DataObject, call: CallInfo) -> None:
    sent, codec = data.draw(requests()), InferCodec(None)
    for each in (sent, sent, respelled(data.draw, sent), sent):
        raw = each.SerializeToString()
        truth = expected(raw, call)
        unaligned = memoryview(bytearray(b"?" + raw))[1:]
        for form in (raw, memoryview(raw), memoryview(bytearray(raw)), unaligned):
            assert decoded(codec, form, call) == truth
        assert decoded(codec, raw, call, lent=True) == truth


@settings(deadline=None, max_examples=examples(200))
@given(data=st.data(), caller=st.sampled_from(["ann", "bob"]))
def test_tensors_in_shared_memory_are_the_callers(regions: Regions, data: st.DataObject, caller: str) -> None:
    sent, codec, call = data.draw(requests(region="r")), InferCodec(regions), CallInfo(caller)
    for each in (sent, respelled(data.draw, sent), sent):
        raw = each.SerializeToString()
        for one in (CALL, call):
            assert decoded(codec, raw, one) == expected(raw, one, regions)
            assert decoded(codec, raw, one, lent=True) == expected(raw, one, regions)


def test_each_frame_in_shared_memory_is_read_anew(regions: Regions) -> None:
    with folder() as shm:
        (shm / "own").write_bytes(bytes(64))
        own = Regions(SharedMemorySettings(allowed=True, over_tcp=True), Path(shm))
        own.register(Registrant("ann"), "own", "/own", 0, 64)
        sent = message("inference.ModelInferRequest")(model_name="m")
        described = sent.inputs.add(name="x", datatype="UINT8", shape=[4])
        described.parameters["shared_memory_region"].string_param = "own"
        described.parameters["shared_memory_byte_size"].int64_param = 4
        codec, raw = InferCodec(own), sent.SerializeToString()
        for value in (b"\1\2\3\4", b"\5\6\7\x08"):
            with (shm / "own").open("r+b") as segment:
                segment.write(value)
            assert codec.decode(raw, CALL, NOW_NS, lent=True).inputs["x"].array.tobytes() == value
        own.unregister("ann", "own")
        with pytest.raises(RequestError, match="Unable to find shared memory region: 'own'"):
            codec.decode(raw, CALL, NOW_NS, lent=True)


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_one_changed_byte_is_read_as_the_parser_reads_it(data: st.DataObject) -> None:
    sent = data.draw(requests())
    raw, codec = sent.SerializeToString(), InferCodec(None)
    decoded(codec, raw)
    places = data.draw(st.lists(st.integers(0, max(len(raw) - 1, 0)), max_size=30, unique=True))
    for place in places if raw else ():
        for value in {raw[place] ^ 1, raw[place] ^ 0x80, data.draw(st.integers(0, 255))}:
            spoilt = raw[:place] + bytes([value]) + raw[place + 1 :]
            assert decoded(codec, spoilt) == expected(spoilt)
            assert decoded(codec, spoilt, lent=True) == expected(spoilt)


def test_every_byte_of_a_common_request_changed_to_every_other() -> None:
    raw = request(ident="ü7", raw=b"12345678")
    codec = remembering(raw)
    for place in range(len(raw)):
        for value in range(256):
            spoilt = raw[:place] + bytes([value]) + raw[place + 1 :]
            assert decoded(codec, spoilt) == expected(spoilt)


@settings(deadline=None, max_examples=examples(300))
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_a_request_or_refused(raw: bytes, lent: bool) -> None:
    codec = remembering(request())
    assert decoded(codec, raw, lent=lent) == expected(raw)


# ---- what protobuf allows --------------------------------------------------------------------------------------------
INPUT = field(1, b"x") + field(2, b"FP32") + field(3, b"\x01\x02")
ODD = {
    "unknown field": request() + field(99, b"unknown"),
    "unknown varint": request() + b"\xa0\x06\x01",
    "unknown group": request() + b"\x9b\x06\x08\x01\x9c\x06",
    "raw content first": field(7, bytes(8)) + field(5, INPUT) + field(3, b"id") + field(1, b"m"),
    "fields twice": field(1, b"other") + field(1, b"m") + field(2, b"1") + field(5, INPUT) + field(7, bytes(8)),
    "id twice": request(ident="a") + field(3, b"b"),
    "id empty and again": request(ident="") + field(3, b"") + field(3, b"b"),
    "long tag": b"\x8a\x80\x00\x01m" + field(5, INPUT) + field(7, bytes(8)),
    "long tag of the id": request(ident="") + b"\x9a\x80\x80\x80\x00\x01a",
    "tag beyond 32 bits": request(ident="") + b"\x9a\x80\x80\x80\x10\x01a",
    "long length": field(1, b"m") + field(5, INPUT) + b"\x3a\x88\x80\x80\x80\x00" + bytes(8),
    "very long length": field(1, b"m") + field(5, INPUT) + b"\x3a\x88\x80\x80\x80\x80\x80\x80\x80\x80\x00" + bytes(8),
    "length beyond 32 bits": field(1, b"m") + field(5, INPUT) + b"\x3a\x88\x80\x80\x80\x10" + bytes(8),
    "shape unpacked": field(1, b"m") + field(5, field(1, b"x") + field(2, b"FP32") + b"\x18\x01\x18\x02")
    + field(7, bytes(8)),
    "shape in parts": field(1, b"m") + field(5, field(1, b"x") + field(2, b"FP32") + field(3, b"\x01") + b"\x18\x02")
    + field(7, bytes(8)),
    "raw content empty": field(5, field(1, b"x") + field(2, b"FP32") + field(3, b"\0")) + field(7, b""),
    "no input": field(1, b"m"),
    "nothing": b"",
    "raw content of nobody": request() + field(7, b"more"),
    "field 0": request() + b"\x02\x00",
    "end without a group": request() + b"\x0c",
    "id that is no text": request(ident="") + field(3, b"\xed\xa0\x80"),
    "cut": request()[:-1],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_oddities_of_protobuf(name: str) -> None:
    raw = ODD[name]
    codec = remembering(*ODD.values())
    for lent in (False, True, False):
        assert decoded(codec, raw, lent=lent) == expected(raw)


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_fields_in_any_order_and_repeated(data: st.DataObject) -> None:
    parts = [field(1, b"m"), field(2, b"1"), field(3, b"id"), field(5, INPUT), field(7, bytes(range(8)))]
    spare = st.sampled_from([field(3, b"jd"), field(3, b""), field(1, b"n"), field(9, b"??"), field(7, bytes(8))])
    chosen = data.draw(st.permutations(parts + data.draw(st.lists(spare, max_size=2))))
    raw, codec = b"".join(chosen), InferCodec(None)
    for each in (raw, raw.replace(b"id", b"xy"), raw.replace(b"jd", b"xy"), raw):
        assert decoded(codec, each) == expected(each)


# ---- what is remembered, and how much --------------------------------------------------------------------------------
def test_a_request_like_one_before_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = InferCodec(None)
    assert learns(codec, request(ident="1", raw=b"12345678"), monkeypatch)
    assert not learns(codec, request(ident="2", raw=b"abcdefgh"), monkeypatch)
    assert learns(codec, request(ident="10", raw=b"abcdefgh"), monkeypatch)
    assert not learns(codec, request(ident="99", raw=b"12345678"), monkeypatch)
    assert learns(codec, request(ident="99", raw=b"12345678", model="n"), monkeypatch)
    assert not learns(codec, request(ident="1", raw=b"12345678"), monkeypatch)


def test_layouts_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor begins at different places; the length of the message is the same."""
    sizes = range(LAYOUTS_LIMIT + 1)
    met = [request(model="m" * (20 - size), ident="i" * (1 + size)) for size in sizes]
    assert len({len(raw) for raw in met}) == 1
    codec = remembering(*met)
    assert len(codec._layouts[len(met[0])]) == LAYOUTS_LIMIT
    assert not any(learns(codec, raw, monkeypatch) for raw in met[1:])
    assert [decoded(codec, raw) for raw in met] == [expected(raw) for raw in met]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = InferCodec(None)
    for number in range(3 * PATTERNS_LIMIT):
        decoded(codec, request(model=f"model {number:04}"))
        patterns = [pattern for layouts in codec._layouts.values() for _, each, _ in layouts for pattern in each]
        assert len(patterns) <= PATTERNS_LIMIT
    assert not learns(codec, request(model=f"model {number:04}"), monkeypatch)


@pytest.mark.parametrize("kept", [True, False])
def test_long_prefixes_are_not_remembered(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = request(model="m" * (3000 if kept else 5000))
    codec = remembering(raw)
    assert learns(codec, raw, monkeypatch) is not kept
    assert decoded(codec, raw) == expected(raw)


def test_nothing_of_a_caller_is_remembered(regions: Regions) -> None:
    raw = request()
    codec = InferCodec(None)
    assert codec.decode(raw, CallInfo("ann", 5), NOW_NS, lent=False).caller == "ann"
    again = codec.decode(raw, CallInfo("bob", 9), NOW_NS, lent=False)
    assert (again.caller, again.deadline_ns) == ("bob", 9)


# ---- memory ----------------------------------------------------------------------------------------------------------
def test_tensors_lie_over_the_message_where_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = request(raw=bytes(range(64)))
    codec = remembering(raw)
    lead = codec.lead(len(raw))
    assert raw[lead:] == bytes(range(64))
    memory = np.zeros(len(raw) + 64, np.uint8)
    start = -(memory.ctypes.data + lead) % 64
    message_bytes = memory.data[start : start + len(raw)]
    message_bytes[:] = raw
    kept = codec.decode(message_bytes, CALL, NOW_NS, lent=False).inputs["x"].array
    assert np.shares_memory(kept, memory)
    assert not np.shares_memory(codec.decode(message_bytes, CALL, NOW_NS, lent=True).inputs["x"].array, memory)
    shifted = memory.data[start + 1 : start + 1 + len(raw)]
    shifted[:] = raw
    moved = codec.decode(shifted, CALL, NOW_NS, lent=False).inputs["x"].array
    assert moved.flags.aligned
    assert not np.shares_memory(moved, memory)


def test_where_a_message_never_met_begins() -> None:
    codec = InferCodec(None)
    assert codec.lead(100) == 0


def test_a_remembered_request_whose_id_is_no_text() -> None:
    raw = request(ident="ab")
    codec = remembering(raw)
    with pytest.raises(RequestError) as caught:
        codec.decode(raw.replace(b"ab", b"\xff\xfe"), CALL, NOW_NS, lent=True)
    assert caught.value.fault is Fault.INVALID
