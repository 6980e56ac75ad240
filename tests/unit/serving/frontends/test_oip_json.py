"""The JSON body codec: round trips per datatype, and what hostile JSON gets."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import DATATYPES, Datatype, Tensor, encode_raw, finish
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends import oip_json_arrays
from gateway.serving.frontends.oip_json import JsonRequest, decode_request
from gateway.serving.frontends.oip_json_answers import JsonAnswer, encode_response
from gateway.serving.frontends.oip_json_arrays import STEP_BYTES, array_steps

NOW_NS = 1_000
JSON_DATATYPES = [datatype for datatype in Datatype if datatype is not Datatype.BF16]


def decode(body: object, **options: Any) -> JsonRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_request(raw, "m", now_ns=NOW_NS, **options)


def one(datatype: str, shape: list[int], data: object, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}], **more}


def refused(body: object, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(body, **options)
    return caught.value


def attempt(body: object) -> JsonRequest | RequestError:
    try:
        return decode(body)
    except RequestError as error:
        return error


def elements(datatype: Datatype) -> st.SearchStrategy[Any]:
    if datatype is Datatype.BYTES:
        return st.text().map(str.encode)
    if datatype is Datatype.BOOL:
        return st.booleans()
    if datatype.dtype.kind == "f":
        return st.floats(width=datatype.dtype.itemsize * 8)
    bounds = np.iinfo(datatype.dtype)
    return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from(JSON_DATATYPES))
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    count = int(np.prod(shape))
    array = np.empty(count, datatype.dtype)
    array[:] = draw(st.lists(elements(datatype), min_size=count, max_size=count))
    return Tensor(datatype, array.reshape(shape))


def as_request(answer: JsonAnswer) -> dict[str, Any]:
    return {"inputs": json.loads(answer.header)["outputs"]}


@given(tensors(), st.booleans())
def test_what_is_written_is_read_back(tensor: Tensor, nested: bool) -> None:
    body = as_request(encode_response(InferResponse("m", "1", "", {"x": tensor}), literals=True))
    if nested and tensor.datatype is not Datatype.BYTES:
        body["inputs"][0]["data"] = tensor.array.tolist()
    read = decode(body).request.inputs["x"]
    assert read.datatype is tensor.datatype
    assert read.array.dtype == tensor.datatype.dtype
    assert read.array.shape == tensor.array.shape
    np.testing.assert_array_equal(read.array, tensor.array)


@given(tensors(), tensors())
def test_binary_tensors_follow_in_order(first: Tensor, second: Tensor) -> None:
    asked = JsonRequest(decode(one("FP32", [1], [1])).request, binary_default=True)
    answer = encode_response(InferResponse("m", "1", "", {"a": first, "b": second}), asked)
    binary = memoryview(b"".join(answer.tensors))
    read = decode(as_request(answer), binary=binary).request.inputs
    for name, tensor in (("a", first), ("b", second)):
        assert encode_raw(read[name].datatype, read[name].array) == encode_raw(tensor.datatype, tensor.array)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_invalid(body: bytes) -> None:
    assert refused(body).fault is Fault.INVALID


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from([*DATATYPES, "FP8", ""]),
    st.lists(st.integers(-1, 3), max_size=3),
)
def test_any_data_is_an_array_of_the_shape_or_invalid(data: object, datatype: str, shape: list[int]) -> None:
    outcome = attempt(one(datatype, shape, data))
    if isinstance(outcome, RequestError):
        assert outcome.fault is Fault.INVALID
        assert "'x'" in outcome.message
    else:
        assert list(outcome.request.inputs["x"].array.shape) == shape


@pytest.mark.parametrize("datatype", ["INT8", "UINT64", "BOOL", "BYTES"])
@pytest.mark.parametrize("literal", [b"NaN", b"-Infinity"])
def test_only_floats_hold_nan_and_infinity(datatype: str, literal: bytes) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"%b","shape":[1],"data":[%b]}]}' % (datatype.encode(), literal)
    assert f"NaN or infinity in data, which {datatype} cannot hold" in refused(body).message


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_the_literals_that_rapidjson_reads(datatype: str) -> None:
    data = b"[[NaN , -NaN,Inf],[-Inf,\nInfinity,-Infinity]]"
    body = b'{"inputs":[{"name":"x","datatype":"%b","shape":[2,3],"data":%b}]}' % (datatype.encode(), data)
    read = decode(body).request.inputs["x"].array
    np.testing.assert_array_equal(read, [[np.nan, np.nan, np.inf], [-np.inf, np.inf, -np.inf]])


@given(st.lists(st.text(alphabet='\\"NaInfity-,[{ :é') | st.text(), min_size=1, max_size=4))
def test_texts_are_not_searched_for_literals(texts: list[str]) -> None:
    body = one("BYTES", [len(texts)], texts, id=texts[0])
    body["inputs"].append({"name": "y", "datatype": "FP32", "shape": [1], "data": [float("inf")]})
    request = decode(json.dumps(body, ensure_ascii=False).encode()).request
    assert [element.decode() for element in request.inputs["x"].array] == texts
    assert (request.id, request.inputs["y"].array.tolist()) == (texts[0], [np.inf])


def test_text_may_hold_what_json_is_made_of() -> None:
    texts = [['[[,"', "\\"], ['],"[', '\\"\n']]
    array = decode(one("BYTES", [2, 2], texts)).request.inputs["x"].array
    assert array.tolist() == [[text.encode() for text in row] for row in texts]


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=4))
def test_nested_text_is_read_back(texts: list[list[str]]) -> None:
    array = decode(one("BYTES", [len(texts), 2], texts)).request.inputs["x"].array
    assert array.tolist() == [[text.encode() for text in row] for row in texts]


def test_a_raw_tensor_is_a_view_of_the_body() -> None:
    binary = memoryview(np.arange(6, dtype="<f4").tobytes())
    item = {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
    array = decode({"inputs": [item]}, binary=binary).request.inputs["x"].array
    assert np.shares_memory(array, np.frombuffer(binary, "<f4"))


def test_bfloat16_travels_binary_only() -> None:
    values = np.array([1.5, -2.0], "f4")
    response = InferResponse("m", "1", "", {"y": Tensor(Datatype.BF16, values)})
    answer = encode_response(response, JsonRequest(decode(one("FP32", [1], [1])).request, binary_default=True))
    body = as_request(answer)
    read = decode(body, binary=memoryview(answer.tensors[0])).request.inputs["y"]
    assert read.array.tolist() == [1.5, -2.0]
    with pytest.raises(RequestError, match=r"'y' is BF16.*binary_data"):
        encode_response(response)
    assert "binary" in refused(one("BF16", [1], [1])).message


def test_parameters_reach_the_request() -> None:
    body = one("FP32", [1], [1], id="r1", parameters={"timeout": 5, "priority": 2, "mine": True})
    body["outputs"] = [
        {"name": "y", "parameters": {"binary_data": True, "other": 1}},
        {"name": "z", "parameters": {"classification": 3}},
    ]
    asked = decode(body, version="7")
    request = asked.request
    assert (request.model, request.version, request.id) == ("m", "7", "r1")
    assert (request.deadline_ns, request.priority, request.ignored_parameters) == (NOW_NS + 5000, 2, 2)
    assert [(o.name, o.classification) for o in request.outputs] == [("y", 0), ("z", 3)]
    assert (asked.wants_binary("y"), asked.wants_binary("z")) == (True, False)


def test_absent_and_null_mean_the_same() -> None:
    body = one("FP32", [1], [1], id=None, outputs=None, parameters=None, whatever={"deep": [1]})
    request = decode(body).request
    assert (request.id, request.outputs, request.deadline_ns) == ("", (), None)


REFUSED: list[tuple[str, object, str]] = [
    ("integer out of range", one("INT8", [1], [300]), r"'x'.*data\[0\]|`data\[0\]`"),
    ("negative for unsigned", one("UINT8", [2], [1, -1]), r"data\[1\]"),
    ("beyond int64", one("INT64", [1], [2**63]), "INT64"),
    ("beyond uint64", one("UINT64", [1], [2**64]), "range of UINT64"),
    ("fraction for integer", one("INT32", [1], [1.5]), "got `float`"),
    ("bool for integer", one("INT32", [1], [True]), "got `bool`"),
    ("integer for bool", one("BOOL", [1], [1]), "got `int`"),
    ("number for text", one("BYTES", [1], [1]), "got `int`"),
    ("null for number", one("FP32", [1], [None]), "got `null`"),
    ("too large for fp32", one("FP32", [1], [1e39]), "range of FP32"),
    ("too large for fp16", one("FP16", [1], [70000]), "range of FP16"),
    ("too few", one("FP32", [3], [1, 2]), "has 2 elements"),
    ("too many", one("FP32", [1], [1, 2]), "has 2 elements"),
    ("ragged", one("FP32", [2, 2], [[1, 2, 3], [4]]), "ragged"),
    ("ragged text", one("BYTES", [2, 2], [["a", "b", "c"], ["d"]]), "ragged"),
    ("elements for none", one("FP32", [2, 0], [[], [1]]), "takes 0"),
    ("empty arrays for numbers", one("FP32", [2, 2], [[], [], [], []]), "more arrays"),
    ("empty arrays for text", one("BYTES", [2, 2], [[], [], [], []]), "more arrays"),
    ("nested otherwise", one("FP32", [2, 3], [[1, 2], [3, 4], [5, 6]]), r"nested as|more arrays"),
    ("nested too deep", one("FP32", [1], [[1]]), "nested 2 deep"),
    ("no array", one("FP32", [1], 1), "nested 0 deep"),
    ("negative dimension", one("FP32", [-1], [1]), "negative dimension"),
    ("huge shape", one("FP32", [2**40, 2**40], [1]), "impossibly large"),
    ("many dimensions", one("FP32", [1] * 40, [1]), "40 dimensions"),
    ("unknown datatype", one("FP8", [1], [1]), "unknown datatype"),
    ("no data", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}, "neither 'data'"),
    ("twice", {"inputs": one("FP32", [1], [1])["inputs"] * 2}, "already exists"),
    ("output twice", one("FP32", [1], [1], outputs=[{"name": "y"}] * 2), "output 'y' already exists in request"),
    ("wrong parameter", one("FP32", [1], [1], parameters={"timeout": "1"}), "'timeout'"),
    ("nested parameter", one("FP32", [1], [1], parameters={"a": [1]}), "parameters"),
    ("no object", [1], "object"),
    ("no inputs", {}, "inputs"),
    ("NaN as a name", b'{"inputs":[{"name":NaN,"datatype":"FP32","shape":[1],"data":[1]}]}', "name"),
    ("NaN as a parameter", b'{"parameters":{"timeout":NaN},"inputs":[]}', "parameters"),
    ("NaN as data", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":NaN}]}', "nested 0 deep"),
    ("NaN misspelt", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[nan]}]}', "malformed"),
    ("Infinity cut short", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[Infin]}]}', "malformed"),
    ("NaN as a text", one("FP32", [2], ["NaN", float("nan")]), "got `str`"),
    ("null beside NaN", one("FP32", [2], [None, float("nan")]), "got `null`"),
    ("too large beside NaN", one("FP32", [2], [1e39, float("nan")]), "outside the range of FP32"),
    ("too many NaN", one("FP32", [65_537], [float("nan")] * 65_537), "binary data"),
    ("deep", b'{"inputs":' + b"[" * 200_000, "expected|Expected"),
    ("deep and unknown", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "recursion"),
    (
        "lone surrogate",
        b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}',
        r"\\ud800 at byte 63 is half of a surrogate pair; send both",
    ),
    ("lone surrogate in a name", rb'{"inputs":[{"name":"a\ude00b"}],"id":"0123456"}', r"\\ude00 at byte 21 is half"),
    ("pair and a half", rb'{"id":"\ud83d\ude00\uDE00 and more text"}', r"\\uDE00 at byte 19 is half"),
    ("half and another", rb'{"id":"\ud83d\u0041 and more text"}', r"\\ud83d at byte 7 is half"),
    ("half after a backslash", rb'{"id":"\\\ud83d and more text"}', r"\\ud83d at byte 9 is half"),
    ("cut short", b'{"id":"\\ud8', "truncated"),
    ("no utf-8", b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\xff"]}]}', "utf-8"),
]


@pytest.mark.parametrize(("body", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_does_not_fit_is_named(body: object, says: str) -> None:
    error = refused(body)
    assert error.fault is Fault.INVALID
    assert re.search(says, error.message), error.message


def raw_input(size: object, shape: list[int], **more: Any) -> dict[str, Any]:
    item = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}, **more}
    return {"inputs": [item]}


@pytest.mark.parametrize(
    ("body", "binary", "says"),
    [
        (raw_input(8, [1]), b"1234", "announces 8 bytes"),
        (raw_input(4, [2]), b"1234", "takes 8"),
        (raw_input(4, [1]), b"12345", "1 bytes follow"),
        (raw_input(-4, [1]), b"1234", "number of bytes"),
        (raw_input("4", [1]), b"1234", "number of bytes"),
        (raw_input(True, [1]), b"1", "number of bytes"),
        (raw_input(4, [1], data=[1]), b"1234", "both"),
        (raw_input(4, [1]), None, "Inference-Header-Content-Length"),
        (one("FP32", [1], [1]), b"1", "1 bytes follow"),
    ],
)
def test_binary_data_must_add_up(body: object, binary: bytes | None, says: str) -> None:
    error = refused(body, binary=None if binary is None else memoryview(binary))
    assert error.fault is Fault.INVALID
    assert says in error.message


def test_shared_memory_is_not_offered() -> None:
    body = one("FP32", [1], [1])
    body["inputs"][0]["parameters"] = {"shared_memory_region": "r"}
    assert refused(body).fault is Fault.UNSUPPORTED


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(Datatype.FP32, np.array([np.nan], "f4")),
        Tensor(Datatype.FP64, np.array([np.inf], "f8")),
        Tensor(Datatype.BYTES, np.array([b"\xff"], object)),
    ],
)
def test_what_json_cannot_say_is_refused(tensor: Tensor) -> None:
    with pytest.raises(RequestError, match=r"'y' holds .*binary_data") as caught:
        encode_response(InferResponse("m", "1", "", {"y": tensor}))
    assert caught.value.fault is Fault.INVALID


def test_the_answer_says_who_answered() -> None:
    response = InferResponse(
        "m", "3", "r1", {"y": Tensor(Datatype.INT8, np.array([[1, 2]], "i1"))}, parameters={"k": 1}
    )
    assert json.loads(bytes(encode_response(response))) == {
        "model_name": "m",
        "model_version": "3",
        "id": "r1",
        "parameters": {"k": 1},
        "outputs": [{"name": "y", "datatype": "INT8", "shape": [1, 2], "data": [1, 2]}],
    }


# ---- large data, read in parts ---------------------------------------------------------------------------------------
LARGE = [datatype for datatype in JSON_DATATYPES if datatype is not Datatype.BYTES]


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
@pytest.mark.parametrize("datatype", LARGE, ids=lambda each: each.label)
def test_large_arrays_are_read_in_parts(datatype: Datatype, flat: bool) -> None:
    array = (np.arange(60_000) % 100).astype(datatype.dtype).reshape(3, 1, 20_000)
    data = array.ravel().tolist() if flat else array.tolist()
    raw = json.dumps(data, indent=1).encode()
    steps = array_steps(datatype, array.shape, raw, "x")
    assert sum(1 for _ in steps) > len(raw) // STEP_BYTES
    (found,) = decode(one(datatype.label, [3, 1, 20_000], data)).request.inputs.values()
    assert found.array.dtype == array.dtype
    assert np.array_equal(found.array, array)


@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=60),
    st.sampled_from(["\n", "", " "]),
    st.integers(1, 40),
)
def test_parts_are_cut_anywhere(values: list[float], space: str, step: int) -> None:
    text = json.dumps([values], separators=("," + space, ":"))
    body = one("FP32", [1, len(values)], "?")
    raw = json.dumps(body).encode().replace(b'"?"', text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oip_json_arrays, "STEP_BYTES", step)
        (found,) = decode(raw).request.inputs.values()
    np.testing.assert_array_equal(found.array, np.array([values], np.float32))


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 3], "[[1,1],[1,1,1,1]]"),
        ([2, 3], "[[1,1,1,1,1,1]]"),
        ([2, 3], "[[1,1,1],[1,1,[1]]]"),
        ([2, 3], "[[1,1,1],[1,1,1]"),
        ([2, 3], "[[1,1,1],[1,1,1]]]"),
        ([2, 3], "[[1,1,1]1,[1,1,1]]"),
        ([2, 3], "[[1,1,1],[1,1,]]"),
        ([6], "[1,1,1,1,1,1"),
        ([6], "[1,1,1,1,1,1 1]"),
        ([6], "[1,1,1,1,1,x]"),
        ([6], "[1,1,1,1,1,]"),
        ([6], "[,1,1,1,1,1]"),
        ([6], "[1,1,,1,1,1]"),
        ([6], "[1,1,1,1,1,1]]"),
        ([6], '[1,1,1,1,1,"a"]'),
    ],
)
def test_large_data_of_another_form_is_refused(shape: list[int], data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oip_json_arrays, "STEP_BYTES", 2)
    steps = array_steps(Datatype.FP32, shape, data.encode(), "x")
    with pytest.raises(RequestError) as caught:
        finish(steps)
    assert caught.value.fault is Fault.INVALID


def test_strings_are_counted_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oip_json_arrays, "_numbers", None)
    error = refused(one("BYTES", [2], ["a", 'b\\"', "c,"]))
    assert "has 3 elements in data, but shape [2] takes 2" in error.message
