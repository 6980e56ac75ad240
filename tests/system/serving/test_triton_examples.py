"""The calls that Triton's shared memory examples make, in their order, with the real tritonclient and the real daemon.

simple_{http,grpc}_shm_client, …_shm_string_client and …_cudashm_client of triton-inference-server/client: each begins
with two calls that forget all regions, of system and of CUDA shared memory.
"""

import importlib
import uuid

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import (
    InferenceServerException,
    serialize_byte_tensor,
    serialized_byte_size,
    shared_memory,
    triton_to_np_dtype,
)

from tests.simulators.daemon import QUIET, SHORT_TRIALS, running

ALLOWED = "[shared_memory]\nallowed = true\nover_tcp = true\n"
NAMES = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
NUMBERS = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
TEXTS = tuple(np.array([[str(number).encode() for number in row] for row in rows], object) for rows in NUMBERS)


def write_model(folder, name, kind, operators):
    """Write two inputs and two outputs of [rows, 16], as Triton's `simple` and `simple_string` have them."""
    tensors = [helper.make_tensor_value_info(tensor, kind, ["rows", 16]) for tensor in NAMES]
    nodes = [
        helper.make_node(kind, inputs, [output]) for output, (kind, inputs) in zip(NAMES[2:], operators, strict=True)
    ]
    graph = helper.make_graph(nodes, name, tensors[:2], tensors[2:])
    (folder / name).mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / name / "model.onnx")


@pytest.fixture(scope="module")
def device(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "simple", TensorProto.INT32, [("Add", NAMES[:2]), ("Sub", NAMES[:2])])
    write_model(folder, "simple_string", TensorProto.STRING, [("Identity", [name]) for name in NAMES[:2]])
    config = QUIET + SHORT_TRIALS + ALLOWED
    with running(tmp_path_factory.mktemp("gateway"), models=folder, state=state, config=config) as daemon:
        yield daemon


@pytest.fixture(params=["http", "grpc"])
def triton(request, device):
    """Yield a module of tritonclient and a client of it."""
    module = importlib.import_module(f"tritonclient.{request.param}")
    with module.InferenceServerClient(getattr(device, request.param)) as client:
        yield module, client


def place(client, name, size_bytes, values=None):
    """Make a segment, fill it and register it, as the examples do for each tensor."""
    key = f"/edge-gateway-test-{uuid.uuid4().hex}"
    handle = shared_memory.create_shared_memory_region(name, key, size_bytes)
    if values is not None:
        shared_memory.set_shared_memory_region(handle, [values])
    client.register_system_shared_memory(name, key, size_bytes)
    return handle


def in_region(tensor, region, size_bytes):
    tensor.set_shared_memory(region, size_bytes)
    return tensor


def read(handle, output):
    """Return what an output in shared memory holds, by the datatype and shape that the answer says."""
    described = output if isinstance(output, dict) else {"datatype": output.datatype, "shape": list(output.shape)}
    return shared_memory.get_contents_as_numpy(
        handle, triton_to_np_dtype(described["datatype"]), described["shape"]
    ).copy()


@pytest.mark.parametrize(
    ("model", "datatype", "inputs", "expected"),
    [
        ("simple", "INT32", NUMBERS, (NUMBERS[0] + NUMBERS[1], NUMBERS[0] - NUMBERS[1])),
        ("simple_string", "BYTES", TEXTS, TEXTS),
    ],
)
def test_system_shared_memory(triton, model, datatype, inputs, expected):
    module, client = triton
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    content = [serialize_byte_tensor(rows) if datatype == "BYTES" else rows for rows in (*inputs, *expected)]
    sizes = [serialized_byte_size(rows) if datatype == "BYTES" else rows.nbytes for rows in content]
    handles = {}
    try:
        for name, size, values in zip(NAMES, sizes, (*content[:2], None, None), strict=True):
            handles[name] = place(client, name, size, values)
        tensors = [module.InferInput(name, [1, 16], datatype) for name in NAMES[:2]]
        wanted = [module.InferRequestedOutput(name) for name in NAMES[2:]]
        for tensor, name, size in zip((*tensors, *wanted), NAMES, sizes, strict=True):
            in_region(tensor, name, size)
        result = client.infer(model_name=model, inputs=tensors, outputs=wanted)
        for name, rows in zip(NAMES[2:], expected, strict=True):
            np.testing.assert_array_equal(read(handles[name], result.get_output(name)), rows)
        status = client.get_system_shared_memory_status()
        assert len(status if isinstance(status, list) else status.regions) == len(NAMES)
        client.unregister_system_shared_memory()
    finally:
        for handle in handles.values():
            shared_memory.destroy_shared_memory_region(handle)


def test_cuda_shared_memory_is_refused_where_it_is_registered(triton):
    _, client = triton
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="CUDA shared memory is not offered by this gateway") as caught:
        client.register_cuda_shared_memory("output0_data", b"QUJD", 0, 64)
    assert caught.value.status() in {"501", "StatusCode.UNIMPLEMENTED"}
    status = client.get_cuda_shared_memory_status()
    assert not (status if isinstance(status, list) else status.regions)
