"""Places of a message's fields, as protobuf itself would find them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.codec.protobuf import (
    FIELDS_LIMIT,
    FIXED_LIMIT_BYTES,
    RequestLayout,
    cutter,
    field_header,
    layout_of,
    varint,
)
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from tests.simulators.infer_messages import field


def key(layout: RequestLayout, raw: bytes) -> bytes:
    return b"".join(raw[part] for part in layout.fixed)


def spans(layout: RequestLayout | None, raw: bytes) -> tuple[bytes, list[bytes]]:
    assert layout is not None
    return raw[slice(*layout.id)], [raw[slice(*span)] for span in layout.raws]


@given(st.integers(0, 2**35 - 1))
def test_numbers_travel_as_protobufs(value: int) -> None:
    kind = message("inference.InferParameter")
    sent = kind(uint64_param=value).SerializeToString()
    assert sent.endswith(varint(value))
    assert kind.FromString(sent[: -len(varint(value))] + varint(value)).uint64_param == value


@given(st.integers(1, 2**29 - 1), st.integers(0, 300))
def test_heads_of_fields(number: int, length: int) -> None:
    layout = layout_of(field_header(number, length) + bytes(length))
    assert layout is not None
    assert layout.total == len(field_header(number, length)) + length


@given(st.text(max_size=200), st.lists(st.binary(max_size=300), max_size=4), st.text(max_size=9))
def test_id_and_tensors_are_found(ident: str, raws: list[bytes], model: str) -> None:
    raw = message("inference.ModelInferRequest")(
        model_name=model, id=ident, raw_input_contents=raws
    ).SerializeToString()
    layout = layout_of(raw)
    assert spans(layout, raw) == (ident.encode(), raws)
    assert layout is not None
    assert layout.ident(raw) == ident
    assert len(key(layout, raw)) == len(raw) - len(ident.encode()) - sum(map(len, raws))


@given(st.binary(max_size=60))
def test_any_bytes_have_a_layout_or_none(raw: bytes) -> None:
    layout = layout_of(raw)
    if layout is not None:
        places = sorted([*layout.raws, *layout.typed.values(), *([layout.id] if layout.id[1] else [])])
        kept = b"".join(raw[slice(*place)] for place in places)
        assert len(key(layout, raw)) + len(kept) == layout.total == len(raw)
        cut = cutter(layout.total, [(part.start, part.stop) for part in layout.fixed])
        assert b"".join(cut.unpack(memoryview(raw))) == key(layout, raw)


def test_messages_that_agree_in_the_key_differ_in_nothing_else() -> None:
    first, second = (field(1, b"m") + field(3, ident) + field(7, raw) for ident, raw in ((b"a", b"xy"), (b"b", b"zz")))
    layout = layout_of(first)
    assert layout == layout_of(second)
    assert layout is not None
    assert key(layout, first) == key(layout, second)
    assert key(layout, field(1, b"m") + field(3, b"a") + field(8, b"xy")) != key(layout, first)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x08\x01",  # a number
        b"\x0d1234",  # 32 bits
        b"\x0912345678",  # 64 bits
        b"\x9b\x06\x9c\x06",  # a group
        field(3, b"a") + field(3, b"b"),
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\x80",
        b"\x0a\x80\x80\x80\x80\x80\x80\x00",
        field(1, bytes(FIXED_LIMIT_BYTES + 1)),
        field(7, b"") * (FIELDS_LIMIT + 1),
    ],
    ids=range(11),
)
def test_what_is_not_remembered(raw: bytes) -> None:
    assert layout_of(raw) is None


def test_the_most_that_is() -> None:
    assert layout_of(field(7, bytes(2)) * FIELDS_LIMIT) is not None
    assert layout_of(field(1, bytes(FIXED_LIMIT_BYTES - 3))) is not None


def test_an_id_that_is_no_text() -> None:
    raw = field(3, b"\xff")
    layout = layout_of(raw)
    assert layout is not None
    with pytest.raises(UnicodeDecodeError):
        layout.ident(raw)
