"""Status, words and hints as clients read them."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import MESSAGE_LIMIT_CHARS, error_text
from gateway.serving.frontends.grpc_v2.http2.hpack import Decoder
from gateway.serving.frontends.grpc_v2.transport import replies

from .conftest import Serve

REQUEST = service_pb2.ModelInferRequest(
    model_name="identity_fp32",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 1]}],
    raw_input_contents=[bytes(4)],
)
TEXTS = {
    "plain": "model 'm' is not ready",
    "newlines": "first\nsecond\r\n\tthird\0end",
    "percent": "100 % of %41 %zz",
    "unicode": "größe ≥ 3 – 模型 🦆",
    "edges": " blanks at both ends ",
    "surrogate": "file \udcff name",
    "long": "x" * 3000,
    "long unicode": "ä" * 3000,
    "longest characters": "🦆" * 3000,
    "empty": "",
}


def read(block: bytes) -> dict[bytes, bytes]:
    return dict(Decoder(64_000).decode(block) or ())


def test_codes_are_grpcs() -> None:
    assert {code.name: code.value[0] for code in grpc.StatusCode} == replies.CODES


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_its_code(fault: Fault) -> None:
    said = read(replies.refusal(RequestError(fault, "words"), 0.1))
    assert said[b"grpc-status"].decode() == str(replies.CODES[replies.GRPC_STATUS[fault]])
    assert (said[b":status"], said[b"content-type"], said[b"grpc-message"]) == (b"200", b"application/grpc", b"words")


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize(("given_s", "milliseconds"), [(None, b"100"), (0.0, b"0"), (1.5, b"1500")])
def test_hints_when_to_come_back(fault: Fault, given_s: float | None, milliseconds: bytes) -> None:
    said = read(replies.ending(RequestError(fault, "", retry_after_s=given_s), 0.1))
    helps = fault in {Fault.OVERLOADED, Fault.THROTTLED, Fault.UNAVAILABLE}
    assert said.get(b"grpc-retry-pushback-ms") == (milliseconds if helps else None)
    assert b":status" not in said


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_words_travel(text: str) -> None:
    coded = replies.percent_encoded(text)
    assert unquote_to_bytes(coded) == text.encode()
    assert all(0x20 <= byte <= 0x7E for byte in coded)


def test_constants() -> None:
    assert read(replies.RESPONSE.payload) == {b":status": b"200", b"content-type": b"application/grpc"}
    assert read(replies.OK.payload) == {b"grpc-status": b"0"}
    assert read(replies.NO_GRPC) == {b":status": b"415", b"content-length": b"0"}
    assert read(replies.NO_POST) == {b":status": b"405", b"allow": b"POST", b"content-length": b"0"}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", TEXTS)
async def test_grpcio_reads_the_words(served: Serve, name: str) -> None:
    text = TEXTS[name]
    expected = error_text(text)
    assert expected.removesuffix("…") in text.replace("\udcff", "?")
    assert len(expected) >= min(len(text), MESSAGE_LIMIT_CHARS // 2)
    async with served() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.fault = RequestError(Fault.OVERLOADED, text, retry_after_s=0.25)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(REQUEST)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == expected
        assert dict(caught.value.trailing_metadata() or ()) == {"grpc-retry-pushback-ms": "250"}
