"""Requests as peers send them: well formed in every datatype, and hostile."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.grpc import service_pb2

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Datatype, encode_raw
from gateway.serving.domain.infer import RequestedOutput
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.decode import decode_request, read_values, wants_final_response
from gateway.serving.frontends.grpc_v2.codec.protocol import message

NOW_NS = 1_000_000_000_000
TYPED = [d for d in Datatype if d not in {Datatype.FP16, Datatype.BF16}]
FIELD = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def arrays(datatype):
    if datatype is Datatype.BYTES:
        return hnp.arrays(object, SHAPES, elements=st.binary(max_size=9), fill=st.nothing())
    if datatype is Datatype.BF16:
        return hnp.arrays("<u2", SHAPES).map(lambda bits: (bits.astype("<u4") << 16).view("<f4"))
    return hnp.arrays(datatype.dtype, SHAPES)


def request(*, model="m", **fields):
    return message("inference.ModelInferRequest")(model_name=model, **fields)


def tensor(name="x", datatype="FP32", shape=(1, 2), **fields):
    return {"name": name, "datatype": datatype, "shape": shape, **fields}


def decode(sent, call=None, now_ns=NOW_NS):
    return decode_request(sent, call or CallInfo(), now_ns)


def refused(sent, fault=Fault.INVALID):
    with pytest.raises(RequestError) as caught:
        decode(sent)
    assert caught.value.fault is fault
    return caught.value.message


@pytest.mark.parametrize("datatype", Datatype)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_raw_tensors_of_every_datatype_arrive_as_sent(datatype, data):
    array = data.draw(arrays(datatype))
    sent = request(inputs=[tensor(datatype=datatype.label, shape=array.shape)])
    sent.raw_input_contents.append(encode_raw(datatype, array))
    # Through the bytes of the client's own message class, as they come over the wire.
    wire = service_pb2.ModelInferRequest.FromString(sent.SerializeToString()).SerializeToString()
    got = decode(message("inference.ModelInferRequest").FromString(wire)).inputs["x"]
    assert got.datatype is datatype
    np.testing.assert_array_equal(got.array, array)
    assert got.array.shape == array.shape


@pytest.mark.parametrize("datatype", TYPED)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_typed_tensors_of_every_datatype_arrive_as_sent(datatype, data):
    array = data.draw(arrays(datatype))
    contents = {FIELD[datatype.label]: array.ravel().tolist()}
    got = decode(request(inputs=[tensor(datatype=datatype.label, shape=array.shape, contents=contents)])).inputs["x"]
    assert (got.datatype, got.array.dtype, got.array.shape) == (datatype, datatype.dtype, array.shape)
    np.testing.assert_array_equal(got.array, array)


def test_a_raw_tensor_is_a_view_of_the_messages_bytes():
    sent = request(inputs=[tensor(shape=(1, 4))], raw_input_contents=[bytes(16)])
    array = decode(sent).inputs["x"].array
    assert not array.flags.owndata
    assert not array.flags.writeable


class CountedEntries:
    """raw_input_contents that counts how often each entry is taken: every access copies the whole tensor."""

    def __init__(self, entries):
        self.entries, self.taken = entries, []

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, index):
        self.taken.append(index)
        return self.entries[index]


class WithCountedEntries:
    def __init__(self, sent):
        self._sent, self.raw_input_contents = sent, CountedEntries(sent.raw_input_contents)

    def __getattr__(self, name):
        return getattr(self._sent, name)


def test_each_raw_entry_is_touched_once():
    sent = WithCountedEntries(request(inputs=[tensor("a"), tensor("b")], raw_input_contents=[bytes(8)] * 2))
    decode(sent)
    assert sent.raw_input_contents.taken == [0, 1]


def test_everything_else_of_a_request():
    sent = request(model_version="stable", id="7", inputs=[tensor()], raw_input_contents=[bytes(8)])
    sent.parameters["timeout"].int64_param = 5
    sent.parameters["priority"].uint64_param = 2
    sent.parameters["colour"].string_param = "red"
    sent.inputs[0].parameters["unheard"].double_param = 1.0
    sent.outputs.add(name="y").parameters["classification"].int64_param = 3
    got = decode(sent, CallInfo("ann", None))
    assert (got.model, got.version, got.id, got.caller, got.priority) == ("m", "stable", "7", "ann", 2)
    assert (got.deadline_ns, got.ignored_parameters) == (NOW_NS + 5000, 2)
    assert got.outputs == (RequestedOutput("y", 3),)


@pytest.mark.parametrize(
    ("call_ns", "timeout_us", "expected"), [(None, 0, None), (7, 0, 7), (NOW_NS + 9000, 5, NOW_NS + 5000), (7, 5, 7)]
)
def test_the_sooner_deadline_counts(call_ns, timeout_us, expected):
    sent = request(inputs=[tensor()], raw_input_contents=[bytes(8)])
    if timeout_us:
        sent.parameters["timeout"].int64_param = timeout_us
    assert decode(sent, CallInfo("", call_ns)).deadline_ns == expected


def test_parameters_of_every_kind():
    sent = request()
    for field, value in {"bool": True, "int64": -1, "string": "s", "double": 0.5, "uint64": 2**64 - 1}.items():
        setattr(sent.parameters[field], f"{field}_param", value)
    read = read_values(sent.parameters, "request")
    assert read == {"bool": True, "int64": -1, "string": "s", "double": 0.5, "uint64": 2**64 - 1}


@pytest.mark.parametrize(("sent", "expected"), [(None, False), (False, False), (True, True)])
def test_the_final_response_is_sent_only_to_who_asks(sent, expected):
    asked = request()
    if sent is not None:
        asked.parameters["triton_enable_empty_final_response"].bool_param = sent
    assert wants_final_response(asked) is expected


def test_contents_beside_raw_are_refused_in_tritons_words():
    sent = request(inputs=[tensor(contents={"fp32_contents": [1, 2]})], raw_input_contents=[bytes(8)])
    expected = "contents field must not be specified when using raw_input_contents for 'x' for model 'm'"
    assert refused(sent) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"raw_input_contents": [bytes(8)] * 2}, "raw_input_contents has 2 entries for 1 inputs of model 'm'"),
        ({"raw_input_contents": [bytes(7)]}, "has 7 bytes, but FP32 of shape [1, 2] takes 8"),
        ({}, "input 'x' has 0 elements in fp32_contents, but shape [1, 2] takes 2"),
    ],
)
def test_tensor_data_that_does_not_fit(fields, expected):
    assert expected in refused(request(inputs=[tensor()], **fields))


def test_a_missing_raw_entry():
    sent = request(inputs=[tensor(), tensor("z")], raw_input_contents=[bytes(8)])
    assert refused(sent) == "raw_input_contents has no entry for input 'z' of model 'm'"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (tensor(contents={"int_contents": [1, 2]}), "FP32 and belongs in fp32_contents, not in int_contents"),
        (tensor(contents={"fp32_contents": [1, 2], "int_contents": [1]}), "not in int_contents"),
        (tensor(contents={"fp32_contents": [1]}), "has 1 elements in fp32_contents"),
        (tensor(datatype="INT8", contents={"int_contents": [1, 128]}), "a value that INT8 cannot hold"),
        (tensor(datatype="UINT16", contents={"uint_contents": [1, 65536]}), "a value that UINT16 cannot hold"),
        (tensor(datatype="FP16", contents={"fp32_contents": [1, 2]}), "FP16, which only raw_input_contents can"),
        (tensor(datatype="BF16"), "BF16, which only raw_input_contents can carry"),
        (tensor(datatype="float"), "unknown datatype 'float'"),
        (tensor(shape=(-1, 2)), "negative dimension"),
        (tensor(shape=(2**62, 2**62)), "impossibly large"),
        (tensor(shape=(0, 2**62, 2**62)), "impossibly large"),
        (tensor(shape=[1] * 33), "33 dimensions"),
    ],
)
def test_hostile_typed_tensors(sent, expected):
    assert expected in refused(request(inputs=[sent]))


@pytest.mark.parametrize("shape", [(-1, 2), (2**62, 2**62), (0, 2**62, 2**62), [1] * 33, (2**40,), (3, 1)])
def test_hostile_shapes_of_raw_tensors(shape):
    refused(request(inputs=[tensor(shape=shape)], raw_input_contents=[bytes(8)]))


@settings(deadline=None)
@given(raw=st.binary(max_size=40), shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_bytes_of_anything_are_decoded_or_refused(raw, shape):
    sent = request(inputs=[tensor(datatype="BYTES", shape=shape)], raw_input_contents=[raw])
    try:
        got = decode(sent)
    except RequestError as error:
        fault = error.fault
    else:
        fault = None
        assert got.inputs["x"].array.shape == tuple(shape)
    assert fault in {None, Fault.INVALID}


@pytest.mark.parametrize("raw", [b"\x05\0\0\0abc", b"\x01\0\0", b"\xff\xff\xff\xff", b"\x01\0\0\0ab", b""])
def test_truncated_bytes(raw):
    refused(request(inputs=[tensor(datatype="BYTES", shape=(1,))], raw_input_contents=[raw]))


def test_duplicate_names():
    twice = request(inputs=[tensor(), tensor()], raw_input_contents=[bytes(8)] * 2)
    assert refused(twice) == "input 'x' already exists in request"
    outputs = request(inputs=[tensor()], raw_input_contents=[bytes(8)], outputs=[{"name": "y"}, {"name": "y"}])
    assert refused(outputs) == "output 'y' already exists in request"


def test_parameters_that_cannot_be():
    empty = request()
    empty.parameters["timeout"].SetInParent()
    assert refused(empty) == "parameter 'timeout' of the request has no value"
    wrong = request()
    wrong.parameters["timeout"].string_param = "5"
    assert "parameter 'timeout' of the request must be int" in refused(wrong)
    many = request()
    for number in range(257):
        many.parameters[str(number)].bool_param = True
    assert "257 parameters" in refused(many)


def test_too_many_tensors():
    assert "1025 inputs" in refused(request(inputs=[tensor(str(n)) for n in range(1025)]))
    outputs = [{"name": str(n)} for n in range(1025)]
    sent = request(inputs=[tensor()], raw_input_contents=[bytes(8)], outputs=outputs)
    assert "1025 outputs" in refused(sent)


def test_shared_memory_is_refused_for_inputs_and_outputs():
    into = request(inputs=[tensor()])
    into.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert "input 'x' is in shared memory" in refused(into, Fault.UNSUPPORTED)
    out = request(inputs=[tensor()], raw_input_contents=[bytes(8)], outputs=[{"name": "y"}])
    out.outputs[0].parameters["shared_memory_byte_size"].string_param = "r"
    assert "output 'y' is in shared memory" in refused(out, Fault.UNSUPPORTED)


def test_long_names_stay_out_of_messages():
    sent = request(inputs=[tensor("x" * 5000, contents={"int_contents": [1, 2]})])
    assert len(refused(sent)) < 400
