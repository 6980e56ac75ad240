"""Encoded answers, read like clients do it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import InferResult, service_pb2

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import MESSAGE_LIMIT_CHARS
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.grpc_v2.codec.encode import (
    encode_response,
    encode_stream_error,
    encode_stream_reply,
    mark_final,
    set_parameter,
)
from gateway.serving.frontends.grpc_v2.codec.infer_codec import InferCodec
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.codec.templates import IN_PLACE_BYTES
from gateway.serving.frontends.grpc_v2.framing import PREFIX, prefixed


def seen_by_client(reply):
    return InferResult(service_pb2.ModelInferResponse.FromString(reply.SerializeToString()))


def answer(**outputs):
    return InferResponse("m", "1", "7", outputs)


NUMERIC = [d for d in Datatype if d not in {Datatype.BYTES, Datatype.BF16}]


@pytest.mark.parametrize("datatype", NUMERIC)
@settings(deadline=None, max_examples=20)
@given(values=st.lists(st.integers(0, 1), max_size=12))
def test_every_numeric_datatype_reaches_the_client(datatype, values):
    array = np.array(values, datatype.dtype).reshape(-1, 1)
    got = seen_by_client(encode_response(answer(y=Tensor(datatype, array)))).as_numpy("y")
    assert got.dtype == datatype.dtype
    np.testing.assert_array_equal(got, array)


def test_bfloat16_reaches_the_client():
    array = np.array([1.5, -2.0, 0.0], "<f4")
    np.testing.assert_array_equal(
        seen_by_client(encode_response(answer(y=Tensor(Datatype.BF16, array)))).as_numpy("y"), array
    )


def test_bytes_reach_the_client():
    array = np.array([b"", b"\0\xff", b"abc"], object)
    got = seen_by_client(encode_response(answer(y=Tensor(Datatype.BYTES, array)))).as_numpy("y")
    assert got.tolist() == array.tolist()


def test_one_raw_entry_per_output_in_order_even_for_empty_ones():
    empty = Tensor(Datatype.FP32, np.empty((0, 2), "<f4"))
    seven, nine = (Tensor(Datatype.UINT8, np.array([value], "u1")) for value in (7, 9))
    reply = encode_response(answer(b=empty, a=seven, c=nine))
    assert [output.name for output in reply.outputs] == ["b", "a", "c"]
    assert list(reply.raw_output_contents) == [b"", b"\x07", b"\x09"]
    assert list(reply.outputs[0].shape) == [0, 2]
    assert (reply.model_name, reply.model_version, reply.id) == ("m", "1", "7")


def test_an_array_that_is_not_contiguous():
    array = np.arange(6, dtype="<i4").reshape(2, 3).T
    np.testing.assert_array_equal(
        seen_by_client(encode_response(answer(y=Tensor(Datatype.INT32, array)))).as_numpy("y"), array
    )


@pytest.mark.parametrize(
    ("value", "choice"),
    [(True, "bool"), (-5, "int64"), (2**63, "uint64"), (0.5, "double"), ("s", "string")],
)
def test_parameters_keep_their_type(value, choice):
    parameter = message("inference.InferParameter")()
    set_parameter(parameter, value)
    assert parameter.WhichOneof("parameter_choice") == f"{choice}_param"
    assert getattr(parameter, f"{choice}_param") == value


def test_response_parameters_are_sent():
    reply = encode_response(InferResponse("m", "1", "", {}, parameters={"note": "late"}))
    assert reply.parameters["note"].string_param == "late"


@pytest.mark.parametrize("final", [True, False])
def test_stream_replies_say_that_they_are_final_only_when_asked(final):
    response = mark_final(answer()) if final else answer()
    good = on_stream(encode_stream_reply(prefixed(encode_response(response).SerializeToString())))
    bad = on_stream(encode_stream_error(RequestError(Fault.INVALID, "no"), request(), final=final))
    for reply in (good, bad):
        assert ("triton_final_response" in reply.infer_response.parameters) is final
    assert good.error_message == ""


def test_a_stream_error_names_its_request_and_is_never_empty_or_endless():
    reply = on_stream(encode_stream_error(RequestError(Fault.INVALID, "x" * 9000), request(), final=False))
    assert len(reply.error_message) == MESSAGE_LIMIT_CHARS
    assert (reply.infer_response.id, reply.infer_response.model_name) == ("9", "m")


def test_errors_that_cannot_travel_as_they_are():
    empty = on_stream(encode_stream_error(RequestError(Fault.EXPIRED, ""), request(), final=False))
    assert empty.error_message == "EXPIRED"
    path = on_stream(encode_stream_error(RequestError(Fault.INVALID, "file \udcff"), request(), final=False))
    assert path.error_message == "file ?"


@pytest.mark.parametrize("count", [1, IN_PLACE_BYTES])
def test_a_stream_reply_is_the_answer_in_an_envelope(count):
    response = answer(y=Tensor(Datatype.UINT8, np.ones(count, "u1")))
    reply = on_stream(encode_stream_reply(InferCodec(None).encode(response, ())))
    assert reply.infer_response == encode_response(response)


def on_stream(encoded):
    """Return the message of a stream that was encoded."""
    pieces, size = encoded
    whole = b"".join(pieces)
    assert PREFIX.unpack_from(whole) == (0, size - PREFIX.size)
    assert len(whole) == size
    return message("inference.ModelStreamInferResponse").FromString(whole[PREFIX.size :])


def request():
    return message("inference.ModelInferRequest")(model_name="m", id="9")
