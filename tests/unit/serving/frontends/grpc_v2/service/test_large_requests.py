"""Large requests: what the outline and the own reader of contents make of a message is what protobuf makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype, finish
from gateway.serving.frontends.grpc_v2.codec import outline, typed
from gateway.serving.frontends.grpc_v2.codec.decode import request_steps
from gateway.serving.frontends.grpc_v2.codec.outline import (
    FIELDS_LIMIT,
    HEADER_BYTES,
    TENSORS_LIMIT,
    model_named,
    outline_steps,
)
from gateway.serving.frontends.grpc_v2.codec.patterns import WHOLE_BYTES
from gateway.serving.frontends.grpc_v2.codec.protobuf import field_header, varint
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.codec.typed import FIELDS, NUMBERS, typed_steps
from gateway.serving.frontends.grpc_v2.service import large_requests as reading
from gateway.serving.frontends.grpc_v2.service.large_requests import LargeRequestReader
from gateway.serving.frontends.grpc_v2.service.message_memory import MemoryShare, MessageMemory
from tests.fuzz.mutation import spoil
from tests.simulators.examples import examples
from tests.simulators.infer_messages import CALL, NOW_NS, Facts, expected, field, message_memory_of, requests, told
from tests.simulators.inference import VARIANT, SimulatedInference

MIB = 1024 * 1024
NUMERIC = sorted(FIELDS.keys() - {Datatype.BYTES}, key=lambda each: each.label)


def small() -> SimulatedInference:
    """Return a model whose input has 256 bytes."""
    x, y = (TensorSpec(name, Datatype.FP32, (-1, 64)) for name in "xy")
    anything = TensorSpec("x", Datatype.BYTES, (-1, -1))
    return SimulatedInference(
        [
            ModelManifest("small", "1", (x,), (y,), (VARIANT,), batch=True),
            ModelManifest("open", "1", (anything,), (y,), (VARIANT,)),
        ]
    )


def one_input(datatype: str, count: int, **fields: Any) -> Any:
    sent = message("inference.ModelInferRequest")(model_name="small")
    sent.inputs.add(name="x", datatype=datatype, shape=[count, 1], **fields)
    return sent


async def read(raw: bytes, inference: SimulatedInference, room: MessageMemory | None = None) -> Any:
    reader, room = LargeRequestReader(inference, None, 64 * MIB), room or message_memory_of(64 * MIB)
    share = MemoryShare(room.pool, CALL)
    try:
        return await reader.read(await reader.open(raw, "ann"), CALL, NOW_NS, share)
    finally:
        share.free()


def own(raw: bytes) -> Facts:
    """Return what the reader of large messages makes of one of any size."""
    view = memoryview(raw)

    def act() -> Any:
        opened = finish(reading._opening(view))
        return finish(request_steps(opened.sent, opened.parts, CALL, NOW_NS, None))

    return told(act)


@pytest.fixture
def no_contents_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `typed` read contents of any size, in windows of a few bytes."""
    monkeypatch.setattr(outline, "KEPT_BYTES", 0)
    monkeypatch.setattr(typed, "STEP_BYTES", 16)


# ---- the same as protobuf --------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_contents_kept")
@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=requests())
def test_requests_mean_what_protobuf_says(sent: Any) -> None:
    raw = sent.SerializeToString()
    assert own(raw) == expected(raw)


@pytest.mark.usefixtures("no_contents_kept")
@settings(deadline=None, max_examples=examples(500), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=requests(), seed=st.integers(0, 2**32))
def test_nothing_is_accepted_that_protobuf_refuses(sent: Any, seed: int) -> None:
    whole = sent.SerializeToString()
    raw = spoil(whole, random.Random(seed), [whole])
    seen = own(raw)
    if not isinstance(seen[0], Fault):
        assert seen == expected(raw)


@pytest.mark.usefixtures("no_contents_kept")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), datatype=st.sampled_from(NUMERIC))
def test_packed_numbers_are_those_of_protobuf(data: st.DataObject, datatype: Datatype) -> None:
    """Any bytes: cut off to the field's width, in pieces, broken, too many or too few."""
    pieces = data.draw(st.lists(st.binary(max_size=40) | st.lists(st.integers(0, 2**64 - 1)).map(_varints), max_size=3))
    number = NUMBERS.index(FIELDS[datatype])
    contents = b"".join(field(number, piece) for piece in pieces)
    sent = one_input(datatype.label, data.draw(st.integers(0, 20)))
    raw = sent.SerializeToString()
    raw = field(1, b"small") + field(5, raw[raw.index(b"*") + 2 :] + field(5, contents))
    seen, wanted = own(raw), expected(raw)
    assert seen == wanted or (isinstance(seen[0], Fault) and isinstance(wanted[0], Fault))
    assert not (isinstance(seen[0], Fault) and not isinstance(wanted[0], Fault))


def _varints(numbers: list[int]) -> bytes:
    return b"".join(map(varint, numbers))


@pytest.mark.parametrize("datatype", [*NUMERIC, Datatype.BYTES], ids=lambda each: each.label)
def test_many_numbers(datatype: Datatype) -> None:
    sent = one_input(datatype.label, 50_000)
    values = [b"ab"] * 50_000 if datatype is Datatype.BYTES else (np.arange(50_000) % 100).astype(datatype.dtype)
    getattr(sent.inputs[0].contents, FIELDS[datatype]).extend(values)
    raw = sent.SerializeToString()
    assert own(raw) == expected(raw)


# ---- what the parser sees --------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_the_parser_sees_no_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parse = reading.parse_message
    monkeypatch.setattr(reading, "parse_message", lambda kind, raw: parsed.append(len(raw)) or parse(kind, raw))
    sent = one_input("BYTES", 1)
    sent.model_name = "open"
    sent.raw_input_contents.append(field_header(0, MIB)[:0] + MIB.to_bytes(4, "little") + bytes(MIB))
    (tensor,) = (await read(sent.SerializeToString(), small())).inputs.values()
    assert tensor.array.tolist() == [[bytes(MIB)]]
    assert all(size < 100 for size in parsed)


MANY: dict[str, Callable[[], bytes]] = {
    "inputs": lambda: b"*\0" * (TENSORS_LIMIT + 1) + bytes(0),
    "fields": lambda: b"\x78\0" * (FIELDS_LIMIT + 1),
    "nested fields": lambda: field(5, b"\x78\0" * (FIELDS_LIMIT + 1)),
    "parameters": lambda: b"\x22\0" * (FIELDS_LIMIT + 1),
    "raw contents": lambda: b"\x3a\0" * (TENSORS_LIMIT + 1),
    "a long name": lambda: field(1, bytes(HEADER_BYTES + 1)),
    "a group": lambda: b"\x0b" + bytes(20_000),
    "an endless varint": lambda: b"\x08" + b"\x80" * 20_000,
    "a length behind the end": lambda: field_header(7, 30_000) + bytes(20_000),
    "contents twice": lambda: field(5, field(5, bytes(5000)) * 2),
}


@pytest.mark.parametrize("name", MANY)
def test_what_is_refused_before_anything_is_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "parse_message", None)
    with pytest.raises(RequestError) as caught:
        finish(reading._opening(memoryview(MANY[name]())))
    assert caught.value.fault in {Fault.INVALID, Fault.TOO_LARGE}


def test_an_outline_is_walked_in_steps() -> None:
    steps = outline_steps(b"\x78\0" * 2000, HEADER_BYTES)
    assert sum(1 for _ in steps) >= 2000 // outline.STEP_FIELDS


# ---- what the model takes --------------------------------------------------------------------------------------------
WRONG: dict[str, tuple[Any, str]] = {
    "more bytes than its shapes": (one_input("FP32", 64), "at most 327680 are read for this model"),
    "an unknown model": (message("inference.ModelInferRequest")(model_name="none"), "not found"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.asyncio
async def test_contents_are_not_decoded_for_a_model_that_cannot_take_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "request_steps", None)
    sent, words = WRONG[name]
    raw = sent.SerializeToString() + field(7, bytes(MIB))
    with pytest.raises(RequestError, match=words):
        await read(raw, small())


@pytest.mark.asyncio
async def test_names_datatypes_and_shapes_come_before_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    inference = small()
    asked: list[Any] = []

    def check(request: Any) -> None:
        asked.append({name: (each.datatype, each.array.shape) for name, each in request.inputs.items()})
        raise RequestError(Fault.INVALID, "expected another shape")

    monkeypatch.setattr(inference, "check", check)
    monkeypatch.setattr(reading, "request_steps", None)
    raw = one_input("FP64", 2**40).SerializeToString() + field(7, bytes(WHOLE_BYTES))
    with pytest.raises(RequestError, match="expected another shape"):
        await read(raw, inference)
    assert asked == [{"x": (Datatype.FP64, (2**40, 1))}]


@pytest.mark.asyncio
async def test_what_decoding_allocates_is_counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million empty elements are 4 MB on their way and 56 MB of objects."""
    sent = one_input("BYTES", 1_000_000)
    sent.model_name = "open"
    sent.raw_input_contents.append(bytes(4_000_000))
    raw, room = sent.SerializeToString(), message_memory_of(64 * MIB)
    with pytest.raises(RequestError, match="needs 56000000 grpc request bytes") as caught:
        await read(raw, small(), message_memory_of(50_000_000))
    assert caught.value.fault is Fault.TOO_LARGE
    room.pool.add("user:1", local=True, amount=20_000_000)
    with pytest.raises(RequestError) as caught:
        await read(raw, small(), room)
    assert (caught.value.fault, room.used_bytes) == (Fault.OVERLOADED, 20_000_000)


@pytest.mark.parametrize(
    ("beginning", "name"),
    [
        (field(1, b"m") + field(2, b"1"), "m"),
        (field(1, "größe".encode()), "größe"),
        (field(7, b"m") + field(1, b"m"), None),
        (field(1, b"a" * 600)[:512], None),
        (field(1, b"\xff"), None),
        (b"\x0a", None),
        (b"", None),
    ],
)
def test_the_model_is_named_first_or_later(beginning: bytes, name: str | None) -> None:
    assert model_named(beginning) == name


# ---- contents that no client writes ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("label", "contents", "words"),
    [
        ("INT64", b"\x18\x01" * 3, "not packed"),
        ("INT64", field(4, b"\1"), "belongs in int64_contents, not in uint_contents"),
        ("INT64", field(9, b"\1"), "not packed"),
        ("INT64", field(3, b"\x80" * 12), "has 0 elements"),
        ("INT64", field(3, b"\x80" * 11 + b"\1\1\1"), "no InferTensorContents"),
        ("INT64", field(3, b"\1") * 70, "not packed"),
        ("INT64", field(3, b"\1\2"), r"has 2 elements in int64_contents, but shape \[3\] takes 3"),
        ("INT8", field(2, b"\1\1" + varint(128)), "INT8 cannot hold: 128"),
        ("FP32", field(6, bytes(13)), "no InferTensorContents"),
        ("BYTES", field(8, b"") * 4, "more than 3 elements"),
        ("BYTES", field(8, b"abcdef"), "has 1 elements"),
        ("BYTES", field(8, b""), "hold fewer elements"),
        ("BYTES", field(3, b"abcdef"), "belongs in bytes_contents, not in int64_contents"),
        ("BYTES", field(8, b"abcdef")[:-1], "no InferTensorContents"),
        ("FP16", b"", "only raw_input_contents"),
    ],
)
def test_unusual_contents_are_refused(label: str, contents: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        finish(typed_steps(label, [3], memoryview(contents), "x"))
    assert caught.value.fault is Fault.INVALID
