"""Decoders: what goes in comes out, and nothing else than RequestError comes of what does not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import cbor2
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import Preprocess, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.inbound.payloads import raw, tensors
from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, read_content_type
from gateway.serving.frontends.mqtt.inbound.payloads.formats import FORMATS
from gateway.serving.frontends.mqtt.settings.route import MqttRoute

CHANNELS = ("x", "y", "z")
SPEC = TensorSpec("x", Datatype.FP32, (-1, 3))
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
samples = st.lists(st.lists(floats, min_size=3, max_size=3), min_size=1, max_size=6)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
    max_leaves=12,
)
ROUTE = MqttRoute("r", ("t",), "m")


def read_document(media: str, payload: bytes) -> Any:
    return FORMATS[media](payload, ContentType(media, {}))


ENCODERS = {
    "application/json": lambda tree: json.dumps(tree).encode(),
    "application/cbor": cbor2.dumps,
    "application/x-msgpack": msgspec.msgpack.encode,
}


@pytest.mark.parametrize("media", ENCODERS)
@given(rows=samples)
def test_rows_survive_every_encoding(media: str, rows: list[list[float]]) -> None:
    document = read_document(media, ENCODERS[media](rows))
    assert (tensors.samples(document, CHANNELS, 3) == np.array(rows, np.float32)).all()


@given(samples)
def test_raw_rows_survive(rows: list[list[float]]) -> None:
    array = np.array(rows, "<f4")
    assert (raw.raw_samples(array.tobytes(), raw.Layout(Datatype.FP32), 3) == array).all()


@given(st.lists(floats, min_size=3, max_size=3))
def test_an_object_is_read_by_channel_name(row: list[float]) -> None:
    document = dict(zip(reversed(CHANNELS), reversed(row), strict=True)) | {"battery": "low"}
    assert tensors.samples(document, CHANNELS, 3).tolist() == [np.float32(row).tolist()]


@given(documents)
def test_any_document_is_samples_or_a_refusal(document: Any) -> None:
    with contextlib.suppress(RequestError):
        found = tensors.samples(document, CHANNELS, 3)
        assert found.shape[1] == 3
        assert np.isfinite(found).all()
    with contextlib.suppress(RequestError):
        tensor = tensors.document_tensor(document, SPEC)
        assert np.isfinite(tensor.array).all()


@pytest.mark.parametrize("media", ENCODERS)
@given(payload=st.binary(max_size=60))
def test_any_bytes_are_a_document_or_a_refusal(media: str, payload: bytes) -> None:
    with contextlib.suppress(RequestError):
        tensors.document_tensor(read_document(media, payload), SPEC)


@pytest.mark.parametrize(
    ("media", "payload"),
    [
        ("application/json", b"[" * 100_000),
        ("application/x-msgpack", b"\x91" * 100_000),
        ("application/cbor", b"\x81" * 100_000),
        ("application/cbor", b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff"),
        ("application/cbor", b"\xd8\x1c\x81\xd8\x1d\x00"),
        ("application/cbor", b"\xc5\x82\x1a\x3b\x9a\xca\x00\x01"),
        ("application/cbor", b"\x01\x02"),
    ],
    ids=["deep json", "deep msgpack", "deep cbor", "huge array", "cycle", "huge bigfloat", "trailing"],
)
def test_bombs_are_refused(media: str, payload: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        read_document(media, payload)
    assert refused.value.fault is Fault.INVALID


@pytest.mark.parametrize(
    "tagged", [b"\xd8\x1e\x82\x01\x02", b"\xc1\x1a\x00\x00\x00\x01", b"\xd8\x23\x61a", b"\xd8\x55\x41a"]
)
def test_cbor_tags_are_no_numbers(tagged: bytes) -> None:
    for read in (lambda row: tensors.samples(row, CHANNELS, 3), lambda row: tensors.document_tensor(row, SPEC)):
        with pytest.raises(RequestError, match=r"number|is not application/cbor"):
            read(read_document("application/cbor", b"\x83" + tagged * 3))


@pytest.mark.parametrize(
    ("document", "datatype", "shape", "expected"),
    [
        ([1, 2, 3], Datatype.FP32, (-1, 3), (1, 3)),
        ([[1, 2, 3], [4, 5, 6]], Datatype.FP32, (-1, 3), (2, 3)),
        ([1, 2, 3, 4], Datatype.INT8, (-1, 2, 2), (1, 2, 2)),
        (7, Datatype.INT64, (1,), (1,)),
        ([True, False], Datatype.BOOL, (2,), (2,)),
    ],
)
def test_documents_take_the_inputs_rank(
    document: Any, datatype: Datatype, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    tensor = tensors.document_tensor(document, TensorSpec("x", datatype, shape))
    assert tensor.array.shape == expected
    assert tensor.array.dtype == datatype.dtype


@pytest.mark.parametrize(
    ("document", "datatype"),
    [
        ([1.5], Datatype.INT8),
        ([300], Datatype.UINT8),
        ([-1], Datatype.UINT8),
        ([1e39], Datatype.FP32),
        ([1e5], Datatype.FP16),
        ([10**400], Datatype.FP64),
        ([[1], [1, 2]], Datatype.FP32),
        ([1, [2]], Datatype.FP32),
        ([], Datatype.FP32),
        (["1"], Datatype.FP32),
        ([1], Datatype.BOOL),
        ([1], Datatype.BYTES),
        ({"x": 1}, Datatype.FP32),
    ],
)
def test_numbers_are_never_bent(document: Any, datatype: Datatype) -> None:
    with pytest.raises(RequestError):
        tensors.document_tensor(document, TensorSpec("x", datatype, (-1,)))


def test_raw_layout_is_read_from_message_then_route_then_model() -> None:
    content = read_content_type('Application/Octet-Stream; dtype="int16"; shape=1,3')
    assert content.media == raw.RAW
    assert raw.read_layout(content, MqttRoute("r", ("t",), "m", dtype="FP64", shape=(9,)), SPEC) == raw.Layout(
        Datatype.INT16, (1, 3)
    )
    bare = read_content_type(raw.RAW)
    assert raw.read_layout(bare, MqttRoute("r", ("t",), "m", dtype="fp64", shape=(9,)), SPEC) == raw.Layout(
        Datatype.FP64, (9,)
    )
    assert raw.read_layout(bare, ROUTE, SPEC) == raw.Layout(Datatype.FP32)


@pytest.mark.parametrize("parameters", ["dtype=BYTES", "dtype=FP1", "shape=0", "shape=a", "shape=-1,2"])
def test_bad_layouts_are_refused(parameters: str) -> None:
    with pytest.raises(RequestError):
        raw.read_layout(read_content_type(f"{raw.RAW}; {parameters}"), ROUTE, SPEC)


def test_images_go_where_images_are_taken() -> None:
    taking = TensorSpec("x", Datatype.FP32, (-1, 3), preprocess=Preprocess(("jpeg",)))
    assert raw.encoded_tensor(b"j", "image/jpeg", taking).array.tolist() == [b"j"]
    with pytest.raises(RequestError, match="image/png"):
        raw.encoded_tensor(b"p", "image/png", taking)
    with pytest.raises(RequestError, match="numbers"):
        raw.encoded_tensor(b"j", "image/jpeg", SPEC)


def test_windows_take_the_inputs_layout() -> None:
    window = np.arange(6, dtype=np.float32).reshape(2, 3)
    last = tensors.window_tensor(window, TensorSpec("x", Datatype.FP32, (-1, 2, 3), layout="NLC"))
    first = tensors.window_tensor(window, TensorSpec("x", Datatype.FP16, (-1, 3, 2), layout="NCL"))
    bare = tensors.window_tensor(window, TensorSpec("x", Datatype.FP32, (2, 3)))
    assert last.array.tolist() == [window.tolist()]
    assert first.array.tolist() == [window.T.tolist()]
    assert first.array.dtype == np.float16
    assert bare.array.shape == (2, 3)
