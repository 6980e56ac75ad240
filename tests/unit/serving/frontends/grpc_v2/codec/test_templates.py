"""Replies from templates are the messages that protobuf makes, whatever their tensors are like in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.tensor import Datatype, Tensor, finish
from gateway.serving.domain.infer import InferResponse, RequestedOutput
from gateway.serving.frontends.grpc_v2.codec import infer_codec as module
from gateway.serving.frontends.grpc_v2.codec.encode import encode_response, reply_steps
from gateway.serving.frontends.grpc_v2.codec.infer_codec import TEMPLATES_LIMIT, InferCodec
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.codec.templates import IN_PLACE_BYTES, Piece, shape_of
from gateway.serving.frontends.grpc_v2.framing import PREFIX, prefixed
from tests.simulators.examples import examples
from tests.simulators.infer_messages import NAMES, arrays


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


VIEWS = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T,
    "every second": lambda array: array[::2] if array.ndim else array,
    "backwards": lambda array: array[..., ::-1] if array.ndim else array,
    "read-only": _read_only,
    "by columns": np.asfortranarray,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
}
"""Arrays that an engine may hand out."""


@st.composite
def outputs(draw: st.DrawFn) -> Mapping[str, Tensor]:
    made = {}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True)):
        datatype = draw(st.sampled_from(Datatype))
        made[name] = Tensor(datatype, VIEWS[draw(st.sampled_from(list(VIEWS)))](draw(arrays(datatype))))
    return made


def joined(pieces: list[Piece], size: int) -> Any:
    """Return the message that the pieces make."""
    whole = b"".join(pieces)
    assert len(whole) == size
    assert PREFIX.unpack_from(whole) == (0, size - PREFIX.size)
    return message("inference.ModelInferResponse").FromString(whole[PREFIX.size :])


def response(tensors: Mapping[str, Tensor], ident: str = "7", **fields: Any) -> InferResponse:
    return InferResponse("m", "1", ident, dict(tensors), **fields)


def one(array: np.ndarray[Any, Any], datatype: Datatype = Datatype.FP32, ident: str = "") -> InferResponse:
    return response({"y": Tensor(datatype, array)}, ident)


@settings(deadline=None, max_examples=examples(300))
@given(outputs(), st.lists(st.text(max_size=20) | st.just("z" * 200), min_size=2, max_size=4))
def test_replies_are_protobufs(tensors: Mapping[str, Tensor], idents: list[str]) -> None:
    codec = InferCodec(None)
    for ident in idents:
        answer = response(tensors, ident)
        assert joined(*codec.encode(answer, ())) == encode_response(answer)


@pytest.mark.parametrize("datatype", Datatype)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_one_template_serves_other_numbers(datatype: Datatype, data: st.DataObject) -> None:
    first = data.draw(arrays(datatype))
    again = (
        data.draw(arrays(datatype).filter(lambda array: array.shape == first.shape)) if not first.ndim else first[::-1]
    )
    codec = InferCodec(None)
    for array in (first, again, first):
        answer = one(array, datatype, "id")
        assert joined(*codec.encode(answer, ())) == encode_response(answer)


@pytest.mark.parametrize("view", ["as it is", "transposed", "every second", "backwards", "read-only", "by columns"])
@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.UINT8, Datatype.FP16, Datatype.BOOL, Datatype.BF16])
def test_large_outputs(view: str, datatype: Datatype) -> None:
    numbers = np.arange(4 * IN_PLACE_BYTES).reshape(2, 2, -1) % 251
    array = VIEWS[view](numbers.astype(datatype.dtype))
    codec, answer = InferCodec(None), one(array, datatype)
    for _ in range(2):
        assert joined(*codec.encode(answer, ())) == encode_response(answer)


def test_large_outputs_go_out_as_they_lie() -> None:
    array = np.ones(IN_PLACE_BYTES // 4, "<f4")
    pieces, _ = InferCodec(None).encode(one(array), ())
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), array) for piece in pieces if len(piece))
    small, _ = InferCodec(None).encode(one(array[1:]), ())
    assert not any(np.shares_memory(np.frombuffer(piece, np.uint8), array) for piece in small if len(piece))


def test_a_response_without_outputs() -> None:
    for ident in ("", "7"):
        answer = response({}, ident)
        assert joined(*InferCodec(None).encode(answer, ())) == encode_response(answer)


def test_what_an_answer_says_besides() -> None:
    answer = response(
        {"y": Tensor(Datatype.FP32, np.ones(2, "<f4"))}, parameters={"a": 1, "b": True, "c": "d", "e": 0.5}
    )
    for asked in ((), (RequestedOutput("y"),)):
        assert joined(*InferCodec(None).encode(answer, asked)) == encode_response(answer)


def test_outputs_with_a_destination_do_not_travel() -> None:
    class Taken:
        def __init__(self) -> None:
            self.raw: list[bytes] = []

        def put(self, raw: bytes) -> dict[str, str]:
            self.raw.append(raw)
            return {"shared_memory_region": "r"}

    taken, codec = Taken(), InferCodec(None)
    answer = one(np.ones(2, "<f4"))
    codec.encode(answer, ())
    reply = joined(*codec.encode(answer, (RequestedOutput("y", destination=taken),)))
    assert taken.raw == [np.ones(2, "<f4").tobytes()]
    assert list(reply.raw_output_contents) == [b""]
    assert reply.outputs[0].parameters["shared_memory_region"].string_param == "r"
    assert joined(*codec.encode(answer, (RequestedOutput("y"),))) == encode_response(answer)
    assert joined(*finish(reply_steps(answer, (RequestedOutput("y", destination=taken),)))) == reply
    assert taken.raw == [np.ones(2, "<f4").tobytes()] * 2


def test_an_answer_that_is_not_what_its_datatype_says() -> None:
    """An engine's float64 under FP32 is converted, as the slow path converts it."""
    for array in (np.arange(3, dtype="f8"), np.arange(3, dtype=">f4"), np.arange(3, dtype="i4")):
        answer = one(array)
        assert joined(*InferCodec(None).encode(answer, ())) == encode_response(answer)


def test_strings_are_bytes() -> None:
    answer = one(np.array(["größe", ""]), Datatype.BYTES)
    assert joined(*InferCodec(None).encode(answer, ())) == encode_response(answer)


@settings(deadline=None, max_examples=examples(200))
@given(outputs())
def test_replies_encoded_in_steps_are_the_same(tensors: Mapping[str, Tensor]) -> None:
    answer = response(tensors, parameters={"a": 1})
    assert joined(*finish(reply_steps(answer))) == encode_response(answer)


@pytest.mark.parametrize(
    ("datatype", "limit"), [(Datatype.BYTES, 4096), (Datatype.BF16, 131_072), (Datatype.BOOL, 131_072)]
)
def test_what_takes_long_to_convert_is_left_to_steps(datatype: Datatype, limit: int) -> None:
    codec = InferCodec(None)
    for count in (limit, limit + 1):
        answer = one(np.zeros(count, "f4").astype(datatype.dtype), datatype)
        answer.outputs["y"].array[:] = b"ab" if datatype is Datatype.BYTES else 1
        for parameters in ({}, {"a": 1}):
            answer.parameters = parameters
            encoded = codec.encode(answer, ())
            assert (encoded is None) is (count > limit)
            assert joined(*encoded or finish(reply_steps(answer))) == encode_response(answer)


def test_large_numbers_are_encoded_at_once() -> None:
    assert InferCodec(None).encode(one(np.zeros(2**22, "<f4")), ()) is not None


def test_templates_are_told_apart() -> None:
    tensor, other = Tensor(Datatype.FP32, np.ones(2, "<f4")), Tensor(Datatype.INT32, np.ones(2, "<i4"))
    shapes = [
        response({}),
        response({"y": tensor}),
        response({"z": tensor}),
        response({"y": other}),
        response({"y": Tensor(Datatype.FP32, np.ones((2, 1), "<f4"))}),
        response({"y": tensor, "z": tensor}),
        response({"z": tensor, "y": tensor}),
        response({"y": tensor, "z": other}),
        InferResponse("n", "1", "", {"y": tensor}),
        InferResponse("m", "2", "", {"y": tensor}),
    ]
    assert len({shape_of(each) for each in shapes}) == len(shapes)
    codec = InferCodec(None)
    for each in shapes * 2:
        assert joined(*codec.encode(each, ())) == encode_response(each)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, made = InferCodec(None), []
    make = module.template_of
    monkeypatch.setattr(module, "template_of", lambda form, **how: made.append(form) or make(form, **how))
    for rows in range(1, 2 * TEMPLATES_LIMIT):
        codec.encode(one(np.ones(rows, "<f4")), ())
        assert len(codec._templates) <= TEMPLATES_LIMIT
    count = len(made)
    codec.encode(one(np.zeros(rows, "<f4"), ident="other"), ())
    assert len(made) == count


def test_a_message_with_its_prefix() -> None:
    assert prefixed(b"abc") == ([b"\0\0\0\0\3", b"abc"], 8)
    assert prefixed(b"") == ([b"\0\0\0\0\0", b""], 5)
