"""Small JSON requests as bytes: what they hold and how they are answered is what the usual way reads and writes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import CONVERTED, Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse, ResponseForm
from gateway.serving.frontends.oip_json import JSON_BODY, decode_request
from gateway.serving.frontends.oip_json_answers import encode_response
from gateway.serving.frontends.rest_v2.raw_requests import KNOWN_LIMIT, KnownRequest, RawRequests, response_of

PLAIN = [datatype for datatype in Datatype if datatype not in CONVERTED]
numbers = (
    st.integers(-130, 260)
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([3.4028235e38, 3.4028236e38, 65519.0, 65520.0, 1e-45, 0.1, -0.0])
)
odd = st.sampled_from(["NaN", "-Infinity", "null", "true", '"1"', "{}", "[1]", "1e999", "1.0", "1.5", "01", "", "1,"])
texts = st.lists(numbers.map(repr) | odd, min_size=1, max_size=6).map(",".join)


class Engine:
    """Submission that has a batch for every request."""

    def raw_batch(self, _request: InferRequest) -> Any:
        return self


def learned(datatype: Datatype, *shape: int, engine: object = None) -> KnownRequest | None:
    """Return what is known after a request of zeros."""
    zeros = np.zeros(shape).ravel().astype(int).tolist()
    parsed = JSON_BODY.decode(json.dumps(wrapped(datatype, shape, zeros)))
    raw = RawRequests(engine or Engine())  # type: ignore[arg-type]
    key = raw.key(("m", ""), parsed)
    raw.learn(
        key, parsed, decode_request(json.dumps(wrapped(datatype, shape, zeros)).encode(), "m", now_ns=0).request, 9
    )
    return None if key is None else raw.known.get(key)


def wrapped(datatype: Datatype, shape: tuple[int, ...], data: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": datatype.label, "shape": list(shape), "data": data}], **more}


def with_data(datatype: Datatype, shape: tuple[int, ...], data: str) -> bytes:
    return json.dumps(wrapped(datatype, shape, "@")).replace('"@"', data).encode()


def both(datatype: Datatype, shape: tuple[int, ...], data: str) -> tuple[list[bytes] | None, bytes | None]:
    """Return the contents by both ways, None for a refusal."""
    body, known = with_data(datatype, shape, data), learned(datatype, *shape)
    assert known is not None
    try:
        usual: bytes | None = decode_request(body, "m", now_ns=0).request.inputs["x"].array.tobytes()
    except RequestError:
        usual = None
    try:
        parsed = JSON_BODY.decode(body)
    except msgspec.MsgspecError:
        return None, usual
    return known.contents(parsed), usual


@given(st.sampled_from(PLAIN), texts)
def test_contents_are_those_of_the_usual_way(datatype: Datatype, text: str) -> None:
    quick, usual = both(datatype, (1, text.count(",") + 1), f"[{text}]")
    if quick is not None:
        assert quick == [usual]
    elif usual is not None:
        assert "N" in text or "Inf" in text


@given(st.sampled_from(PLAIN), st.lists(st.lists(numbers.map(repr) | odd, max_size=3), min_size=1, max_size=3))
def test_nested_contents_are_those_of_the_usual_way(datatype: Datatype, rows: list[list[str]]) -> None:
    data = "[" + ",".join(f"[{','.join(row)}]" for row in rows) + "]"
    quick, usual = both(datatype, (len(rows), max(1, len(rows[0]))), data)
    if quick is not None:
        assert quick == [usual]
    elif usual is not None:
        assert "N" in data or "Inf" in data


@pytest.mark.parametrize("data", ["[1,2,3]", "[1]", "[]", "[[1],[2]]", "[[1,2],[3]]", "1", '"a"', "[1,2]x", "null"])
def test_what_does_not_fit_is_left_to_the_usual_way(data: str) -> None:
    assert both(Datatype.FP32, (1, 2), data) == (None, None)


def test_what_is_never_known() -> None:
    class NoBatch(Engine):
        def raw_batch(self, _request: InferRequest) -> Any:
            return None

    assert learned(Datatype.FP32, 1, 2) is not None
    assert learned(Datatype.FP32, 1, 2, engine=NoBatch()) is None
    assert learned(Datatype.FP32, 1, 9000) is None
    raw = RawRequests(Engine())  # type: ignore[arg-type]
    plain = wrapped(Datatype.FP32, (1,), [1])
    options: list[dict[str, Any]] = [
        {"parameters": {"timeout": 1}},
        {"outputs": [{"name": "y", "parameters": {"a": 1}}]},
    ]
    for more in options:
        assert raw.key(("m", ""), JSON_BODY.decode(json.dumps({**plain, **more}))) is None
    plain["inputs"][0]["parameters"] = {"binary_data_size": 4}
    assert raw.key(("m", ""), JSON_BODY.decode(json.dumps(plain))) is None


def test_requests_of_other_models_names_shapes_and_outputs_are_others() -> None:
    raw = RawRequests(Engine())  # type: ignore[arg-type]
    keys = set[object]()
    for names in (("m", ""), ("m", "1"), ("n", "")):
        for shape in ((1, 2), (2, 1), (2,)):
            for datatype in (Datatype.FP32, Datatype.FP64):
                for outputs in (None, [], [{"name": "y"}], [{"name": "y"}, {"name": "z"}]):
                    body = wrapped(datatype, shape, [1, 2], outputs=outputs, id=str(len(keys)))
                    keys.add(raw.key(names, JSON_BODY.decode(json.dumps(body))))
    assert len(keys) == 3 * 3 * 2 * 3, "no outputs and an empty list are the same"


def test_no_more_is_remembered_than_allowed() -> None:
    raw = RawRequests(Engine())  # type: ignore[arg-type]
    for width in range(1, 2 * KNOWN_LIMIT):
        body = json.dumps(wrapped(Datatype.UINT8, (width,), [0] * width)).encode()
        parsed = JSON_BODY.decode(body)
        raw.learn(raw.key(("m", ""), parsed), parsed, decode_request(body, "m", now_ns=0).request, 9)
        raw.answer(ResponseForm("m", "1", (("y", Datatype.UINT8, (width,)),)), "", [b"\0" * width])
    assert len(raw.known) <= KNOWN_LIMIT
    assert len(raw._forms) <= KNOWN_LIMIT


@st.composite
def responses(draw: st.DrawFn) -> InferResponse:
    outputs = {}
    for name in draw(st.lists(st.text(max_size=3), min_size=1, max_size=3, unique=True)):
        datatype, shape = draw(st.sampled_from(PLAIN)), tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        size = int(np.prod(shape)) * datatype.dtype.itemsize
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), datatype.dtype).reshape(shape)
        outputs[name] = Tensor(datatype, array)
    return InferResponse(draw(st.text(max_size=3)), "1", draw(st.text(max_size=3)), outputs)


@given(responses())
def test_answers_are_those_of_the_usual_way(response: InferResponse) -> None:
    described = tuple((name, each.datatype, each.array.shape) for name, each in response.outputs.items())
    contents = [each.array.tobytes() for each in response.outputs.values()]
    form = ResponseForm(response.model, response.version, described)
    answer = RawRequests(Engine()).answer(form, response.id, contents)  # type: ignore[arg-type]
    assert answer == bytes(encode_response(response, literals=True))
    assert bytes(encode_response(response_of(form, response.id, contents), literals=True)) == answer
