"""Tensor codecs: every datatype there and back, what does not fit refused, BF16 rounded as ml_dtypes rounds it."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import (
    DATATYPES,
    STEP_BYTES,
    STEP_ELEMENTS,
    Datatype,
    datatype_named,
    datatype_of,
    decode_raw,
    element_count,
    encode_raw,
    encode_steps,
    finish,
    float32_to_bfloat16,
    raw_steps,
    size_steps,
)

NUMERIC = [d for d in Datatype if d not in {Datatype.BYTES, Datatype.BF16, Datatype.BOOL}]
WIRE_BYTES = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "FP32": 4, "FP64": 8, "BF16": 2, "BYTES": 0,
}  # fmt: skip
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def refused(datatype: Datatype, shape: list[int], raw: bytes) -> str:
    with pytest.raises(RequestError) as error:
        decode_raw(datatype, shape, raw, "t")
    assert error.value.fault is Fault.INVALID
    assert "tensor 't'" in error.value.message
    return error.value.message


def test_the_protocols_datatypes_are_all_there() -> None:
    assert {label: datatype.wire_bytes for label, datatype in DATATYPES.items()} == WIRE_BYTES


@pytest.mark.parametrize("datatype", [*NUMERIC, Datatype.BOOL])
@given(data=st.data())
@settings(max_examples=30)
def test_arrays_travel_and_come_back(datatype: Datatype, data: st.DataObject) -> None:
    array = data.draw(hnp.arrays(datatype.dtype, shapes))
    raw = encode_raw(datatype, array)
    assert raw == array.astype(array.dtype.newbyteorder("<")).tobytes()
    back = decode_raw(datatype, array.shape, raw, "t")
    assert back.dtype == datatype.dtype
    assert back.tobytes() == array.tobytes()
    assert datatype_of(back.dtype) is datatype


@pytest.mark.parametrize("datatype", Datatype)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_encoding_in_steps_is_encoding(datatype: Datatype, data: st.DataObject) -> None:
    step = STEP_ELEMENTS if datatype is Datatype.BYTES else STEP_BYTES // datatype.wire_bytes
    few = data.draw(st.lists(st.binary(max_size=600), min_size=1, max_size=4))
    count = data.draw(st.sampled_from([0, 1, step - 1, step, step + 1, 3 * step]))
    values = np.array([few[index % len(few)] for index in range(count)] or [b""], object)[:count]
    array = values if datatype is Datatype.BYTES else (np.arange(count) % 251).astype(datatype.dtype)
    turned = array.reshape(count // 3, 3).T if count % 3 == 0 else array
    array = data.draw(st.sampled_from([array, array[::-1], turned]))
    raw = encode_raw(datatype, array)
    assert b"".join(finish(encode_steps(datatype, array))) == raw
    assert finish(size_steps(datatype, array)) == len(raw)
    assert sum(1 for _ in encode_steps(datatype, array)) == max(0, -(-count // step) - 1)


def test_a_large_encoding_is_in_large_pieces() -> None:
    pieces = finish(encode_steps(Datatype.BYTES, np.array([b"x" * 96] * 10_000, object)))
    assert [STEP_BYTES <= len(piece) < 2 * STEP_BYTES for piece in pieces] == [True] * 3 + [False]


@pytest.mark.parametrize("datatype", NUMERIC)
def test_decoding_does_not_copy(datatype: Datatype) -> None:
    raw = bytearray(datatype.wire_bytes * 3)
    view = decode_raw(datatype, [3], memoryview(raw).toreadonly(), "t")
    raw[:] = b"\x01" * len(raw)
    assert view.tobytes() == bytes(raw)
    assert not view.flags.writeable


@pytest.mark.parametrize("datatype", NUMERIC)
def test_big_endian_and_strided_arrays_travel_little_endian_in_c_order(datatype: Datatype) -> None:
    array = np.arange(12).reshape(3, 4).astype(datatype.dtype)
    assert encode_raw(datatype, array.astype(array.dtype.newbyteorder(">"))) == array.tobytes()
    assert encode_raw(datatype, array.T) == array.T.copy().tobytes()


@pytest.mark.parametrize("datatype", [*NUMERIC, Datatype.BOOL, Datatype.BF16])
@given(count=st.integers(0, 8), off=st.integers(-8, 8).filter(bool))
@settings(max_examples=30)
def test_a_byte_too_few_or_too_many_is_refused(datatype: Datatype, count: int, off: int) -> None:
    size = max(0, count * datatype.wire_bytes + off)
    if size != count * datatype.wire_bytes:
        words = refused(datatype, [count], b"\0" * size)
        assert f"has {size} bytes" in words
        assert f"takes {count * datatype.wire_bytes}" in words


def test_any_byte_but_zero_is_true_and_travels_as_one() -> None:
    flags = decode_raw(Datatype.BOOL, [4], b"\x00\x01\x02\xff", "t")
    assert flags.tolist() == [False, True, True, True]
    assert encode_raw(Datatype.BOOL, flags) == b"\x00\x01\x01\x01"


@given(hnp.arrays(object, shapes, elements=st.binary(max_size=9)))
def test_bytes_travel_and_come_back(array: np.ndarray[tuple[int, ...], np.dtype[np.object_]]) -> None:
    raw = encode_raw(Datatype.BYTES, array)
    assert raw == b"".join(struct.pack("<I", len(element)) + element for element in array.ravel())
    back = decode_raw(Datatype.BYTES, array.shape, raw, "t")
    assert back.shape == array.shape
    assert back.ravel().tolist() == array.ravel().tolist()


@given(st.lists(st.text(max_size=5)))
def test_strings_travel_as_utf8(texts: list[str]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    back = decode_raw(Datatype.BYTES, [len(texts)], encode_raw(Datatype.BYTES, array), "t")
    assert [element.decode() for element in back] == texts


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=4), st.data())
def test_truncated_bytes_are_refused_at_every_place(elements: list[bytes], data: st.DataObject) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    raw = encode_raw(Datatype.BYTES, array)
    assert "truncated" in refused(Datatype.BYTES, [len(elements)], raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert "after its" in refused(Datatype.BYTES, [len(elements)], raw + b"x")
    assert "after its" in refused(Datatype.BYTES, [len(elements) - 1], raw)


def test_lengths_that_lie_are_refused_before_anything_is_built() -> None:
    assert "truncated" in refused(Datatype.BYTES, [1], b"\xff\xff\xff\xff")
    assert "truncated" in refused(Datatype.BYTES, [2**40], b"\0" * 64)


@given(hnp.arrays(np.float32, shapes, elements=st.floats(width=32)))
def test_bf16_rounds_as_the_oracle(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    expected = array.astype(ml_dtypes.bfloat16)
    raw = encode_raw(Datatype.BF16, array)
    back = decode_raw(Datatype.BF16, array.shape, raw, "t")
    assert back.dtype == np.float32
    assert np.array_equal(back, expected.astype(np.float32), equal_nan=True)
    finite = ~np.isnan(array)
    assert np.array_equal(np.frombuffer(raw, "<u2").reshape(array.shape)[finite], expected.view("<u2")[finite])


def test_bf16_rounds_every_upper_half_and_its_ties_as_the_oracle() -> None:
    upper = np.arange(2**16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | lower).view(np.float32)
        numbers = ~np.isnan(values)
        with np.errstate(all="ignore"):
            expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
        assert np.array_equal(float32_to_bfloat16(values)[numbers], expected[numbers])
        halves = float32_to_bfloat16(values)[~numbers].astype(np.uint32) << 16
        assert np.isnan(halves.view(np.float32)).all()


def test_every_bf16_value_is_kept_exactly() -> None:
    bits = np.arange(2**16, dtype="<u2")
    values = decode_raw(Datatype.BF16, [2**16], bits.tobytes(), "t")
    numbers = ~np.isnan(values)
    assert np.array_equal(np.frombuffer(encode_raw(Datatype.BF16, values), "<u2")[numbers], bits[numbers])


@pytest.mark.parametrize("shape", [[-1], [2, -3], [1] * 33, [2**63, 2], [0, 2**62, 2**62], [0, 2**70]])
def test_shapes_no_tensor_can_have_are_refused(shape: list[int]) -> None:
    for datatype in (Datatype.FP32, Datatype.BYTES):
        refused(datatype, shape, b"")


@given(st.lists(st.integers(0, 2**20), max_size=32))
def test_whatever_shape_is_counted_can_be_built_where_it_is_empty(shape: list[int]) -> None:
    try:
        count = element_count(shape, "t")
    except RequestError:
        return
    if count == 0:
        assert decode_raw(Datatype.FP64, shape, b"", "t").shape == tuple(shape)


def test_datatypes_are_found_by_name_and_by_dtype() -> None:
    assert datatype_named("FP16", "t") is Datatype.FP16
    with pytest.raises(RequestError, match="tensor 't' has unknown datatype 'FP8'; known datatypes are BOOL, "):
        datatype_named("FP8", "t")
    assert datatype_of(np.dtype(">i4")) is Datatype.INT32
    assert {datatype_of(np.dtype(kind)) for kind in ("O", "S3", "U3")} == {Datatype.BYTES}
    with pytest.raises(KeyError):
        datatype_of(np.dtype(complex))


def test_many_elements_are_decoded_in_steps() -> None:
    texts = [b"", b"a", b"bc\0"] * STEP_ELEMENTS
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    array = decode_raw(Datatype.BYTES, (3, STEP_ELEMENTS), raw, "x")
    assert array.ravel().tolist() == texts
    assert sum(1 for _ in raw_steps(Datatype.BYTES, (3, STEP_ELEMENTS), raw, "x")) == 2


@pytest.mark.parametrize("datatype", [Datatype.BF16, Datatype.BOOL], ids=lambda each: each.label)
def test_large_conversions_are_made_in_steps(datatype: Datatype) -> None:
    raw = bytes(range(1, 256)) * 20_000
    raw = raw[: len(raw) // 20 * 20]
    shape = (10, len(raw) // 10 // datatype.wire_bytes)
    whole = decode_raw(datatype, shape, raw, "x")
    assert sum(1 for _ in raw_steps(datatype, shape, raw, "x")) >= len(raw) // STEP_BYTES
    assert finish(raw_steps(datatype, shape, raw, "x")).tobytes() == whole.tobytes()
