"""An unmodified tritonclient and its own shared memory, against a real listener."""

import os

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from grpc import RpcError
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from gateway.common.domain.access import Address, Security, read_tokens
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.grpc_gateway import LOOPBACK, serving
from tests.simulators.segments import descriptors, mappings, shared

pytestmark = pytest.mark.asyncio

FRAME = np.arange(720 * 1280 * 3, dtype=np.uint32).astype(np.uint8).reshape(1, -1)
ROW = np.array([[1.5, -2.0, 3.25, 0.0]], "<f4")


def allowed(**changed):
    return Regions(SharedMemorySettings(**{"allowed": True, "over_tcp": True, **changed}))


def placed(label, shape, byte_size, offset=0, region="frames"):
    tensor = triton.InferInput("x", list(shape), label)
    tensor.set_shared_memory(region, byte_size, offset)
    return tensor


def wanted(byte_size, offset=0, region="frames", **more):
    output = triton.InferRequestedOutput("y", **more)
    output.set_shared_memory(region, byte_size, offset)
    return output


def contents(handle, dtype, shape, offset=0):
    """Return a copy: a view would keep the client's own handle from closing."""
    return shared_memory.get_contents_as_numpy(handle, dtype, shape, offset).copy()


@pytest.fixture(params=["tcp", "unix"])
def address(request, tmp_path):
    return LOOPBACK if request.param == "tcp" else Address(path=f"{tmp_path}/grpc.sock")


async def test_a_frame_is_neither_sent_nor_copied(address):
    with shared(FRAME.nbytes) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [FRAME])
        async with (
            serving(regions=allowed(copy_inputs=False), addresses=[address]) as gateway,
            triton.InferenceServerClient(gateway.target) as client,
        ):
            await client.register_system_shared_memory("frames", key, FRAME.nbytes)
            status = await client.get_system_shared_memory_status(as_json=True)
            result = await client.infer("identity_uint8", [placed("UINT8", FRAME.shape, FRAME.nbytes)])
            await client.unregister_system_shared_memory("frames")
            assert not (await client.get_system_shared_memory_status()).regions
        (request,) = gateway.inference.requests
        array = request.inputs["x"].array
        assert not array.flags.owndata
        assert not array.flags.writeable
        np.testing.assert_array_equal(result.as_numpy("y"), FRAME)
        assert status == {"regions": {"frames": {"name": "frames", "key": key, "byte_size": str(FRAME.nbytes)}}}
        path = f"/dev/shm{key}"
        kept = mappings(path)
        del array, request
        gateway.inference.requests.clear()
        assert mappings(path) == kept - 1


async def test_input_and_output_in_one_region():
    with shared(4096) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW], offset=64)
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            await client.register_system_shared_memory("frames", key, 2048, offset=32)
            result = await client.infer(
                "identity_fp32", [placed("FP32", ROW.shape, ROW.nbytes, 32)], outputs=[wanted(100, 128)]
            )
        reply = result.get_response()
        assert list(reply.raw_output_contents) == [b""]
        assert list(reply.outputs[0].shape) == [1, 4]
        said = reply.outputs[0].parameters
        assert {name: getattr(said[name], said[name].WhichOneof("parameter_choice")) for name in said} == {
            "shared_memory_region": "frames",
            "shared_memory_byte_size": ROW.nbytes,
            "shared_memory_offset": 128,
        }
        np.testing.assert_array_equal(contents(handle, np.float32, ROW.shape, 160), ROW)


@pytest.mark.parametrize("label", [d.label for d in Datatype if d is not Datatype.BF16])
async def test_every_datatype(label):
    dtype = Datatype[label].dtype
    values = np.array([[b"", b"\0\xff"]], object) if label == "BYTES" else np.array([[0, 1]], dtype)
    raw = np.frombuffer(serialize_byte_tensor(values).item() if label == "BYTES" else values.tobytes(), np.uint8)
    with shared(4096) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [raw])
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            await client.register_system_shared_memory("frames", key, 4096)
            inputs = [placed(label, values.shape, raw.nbytes)]
            result = await client.infer(f"identity_{label.lower()}", inputs)
            np.testing.assert_array_equal(result.as_numpy("y"), values)
            await client.infer(f"identity_{label.lower()}", inputs, outputs=[wanted(64, 512)])
        np.testing.assert_array_equal(contents(handle, np.uint8, (raw.nbytes,), 512), raw)


async def test_streams_take_it_too():
    async def one():
        inputs = [placed("FP32", ROW.shape, ROW.nbytes)]
        yield {"model_name": "identity_fp32", "inputs": inputs, "request_id": "1"}
        yield {"model_name": "identity_fp32", "inputs": [placed("FP32", (1, 4), 16, region="no")], "request_id": "2"}

    with shared(64) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW])
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            await client.register_system_shared_memory("frames", key, 64)
            heard = [answer async for answer in client.stream_infer(one())]
    good = [result for result, error in heard if error is None]
    np.testing.assert_array_equal(good[0].as_numpy("y"), ROW)
    assert "Unable to find shared memory region: 'no'" in str(next(error for _, error in heard if error))


def refusing(excluded, **fields):
    message = service_pb2.ModelInferRequest(model_name="identity_fp32", **fields)
    for index, name in excluded:
        message.inputs[index].parameters["shared_memory_region"].string_param = name
        message.inputs[index].parameters["shared_memory_byte_size"].int64_param = 16
    return message


X = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
Z = {**X, "name": "z"}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (refusing([(0, "r")], inputs=[X], raw_input_contents=[ROW.tobytes()]), "has 1 entries for 0 inputs"),
        (refusing([(0, "r")], inputs=[X, Z], raw_input_contents=[b"", b""]), "'z'"),
        (
            refusing([(0, "r")], inputs=[{**X, "contents": {"fp32_contents": [1, 2, 3, 4]}}]),
            "unexpected 'content' provided when using shared memory for input tensor 'x' for model 'identity_fp32'",
        ),
        (refusing([(0, "no")], inputs=[X]), "Unable to find shared memory region: 'no'"),
        (refusing([(0, "r")], inputs=[{**X, "shape": [1, 5]}]), "takes 20"),
    ],
    ids=["surplus", "too many", "contents too", "unknown", "shape"],
)
async def test_requests_that_contradict_themselves(message, problem):
    import grpc.aio

    with shared(64) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW])
        async with serving(regions=allowed()) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            register = service_pb2.SystemSharedMemoryRegisterRequest(name="r", key=key, byte_size=64)
            await stub.SystemSharedMemoryRegister(register)
            with pytest.raises(RpcError) as caught:
                await stub.ModelInfer(message)
            mixed = refusing([(0, "r")], inputs=[X, Z], raw_input_contents=[ROW.tobytes()])
            assert (await stub.ModelInfer(mixed)).raw_output_contents[0] == ROW.tobytes()
    assert problem in caught.value.details()


async def refused(awaited):
    with pytest.raises(InferenceServerException) as caught:
        await awaited
    return caught.value.status(), caught.value.message()


async def test_refusals_of_registration():
    with shared(64) as (key, _):
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            await client.register_system_shared_memory("r", key, 64)
            assert await refused(client.register_system_shared_memory("r", key, 64)) == (
                "StatusCode.INVALID_ARGUMENT",
                "shared memory region 'r' already in manager",
            )
            code, words = await refused(client.register_system_shared_memory("s", "/no-such-segment", 64))
            assert code == "StatusCode.INVALID_ARGUMENT"
            assert words.startswith("Unable to open shared memory region: '/no-such-segment'")
            for offset, size in ((0, 65), (64, 1), (2**64 - 1, 1), (0, 2**64 - 1), (0, 0)):
                code, words = await refused(client.register_system_shared_memory("s", key, size, offset))
                assert code == "StatusCode.INVALID_ARGUMENT"
                assert words.startswith("failed to register shared memory region 's': invalid args")
            assert await refused(client.get_system_shared_memory_status("s")) == (
                "StatusCode.NOT_FOUND",
                "Unable to find system shared memory region: 's'",
            )


async def test_refusals_of_use():
    with shared(64) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW])
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            await client.register_system_shared_memory("frames", key, 64)
            inputs = [placed("FP32", ROW.shape, ROW.nbytes)]
            for offset, size in ((64, 16), (2**62, 16), (0, 2**62), (-16, 16), (49, 16)):
                code, words = await refused(client.infer("identity_fp32", [placed("FP32", (1, 4), size, offset)]))
                assert code == "StatusCode.INVALID_ARGUMENT"
                assert "Invalid offset + byte size for shared memory region: 'frames'" in words
            code, words = await refused(client.infer("identity_fp32", inputs, outputs=[wanted(15)]))
            assert (code, "(15 bytes) should be at least 16 bytes to hold" in words) == (
                "StatusCode.INVALID_ARGUMENT",
                True,
            )
            os.truncate(f"/dev/shm{key}", 15)
            code, words = await refused(client.infer("identity_fp32", inputs))
            assert (code, "was truncated" in words) == ("StatusCode.INVALID_ARGUMENT", True)
            os.truncate(f"/dev/shm{key}", 64)
            assert (await client.infer("identity_fp32", inputs)).as_numpy("y").shape == (1, 4)


async def test_a_tcp_connection_registers_nothing_unless_allowed():
    with shared(64) as (key, _):
        async with (
            serving(regions=allowed(over_tcp=False)) as gateway,
            triton.InferenceServerClient(gateway.target) as client,
        ):
            code, words = await refused(client.register_system_shared_memory("frames", key, 64))
    assert (code, "[shared_memory] over_tcp = true" in words) == ("StatusCode.PERMISSION_DENIED", True)


async def test_it_is_off_unless_allowed():
    with shared(64) as (key, _):
        async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
            assert "system_shared_memory" not in (await client.get_server_metadata()).extensions
            code, words = await refused(client.register_system_shared_memory("frames", key, 64))
            assert (code, "[shared_memory] allowed = true" in words) == ("StatusCode.UNIMPLEMENTED", True)
            code, words = await refused(client.infer("identity_fp32", [placed("FP32", (1, 4), 16)]))
            assert (code, "[shared_memory] allowed = true" in words) == ("StatusCode.UNIMPLEMENTED", True)
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            extensions = (await client.get_server_metadata()).extensions
            assert ("system_shared_memory" in extensions, "cuda_shared_memory" in extensions) == (True, False)
            await client.unregister_cuda_shared_memory()
            code, words = await refused(client.register_cuda_shared_memory("c", b"", 0, 8))
            assert (code, "CUDA shared memory is not offered" in words) == ("StatusCode.UNIMPLEMENTED", True)


async def test_nothing_is_left_of_what_was_unregistered():
    """Whatever is remembered of requests, to answer the next like them more quickly, holds no caller's memory."""
    inputs = [placed("FP32", ROW.shape, ROW.nbytes)]
    with shared(64) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW])
        path = f"/dev/shm{key}"
        before = mappings(path)
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            for _ in range(2):
                opened = descriptors(path)
                await client.register_system_shared_memory("frames", key, 64)
                for _ in range(3):
                    await client.infer("identity_fp32", inputs, outputs=[wanted(16, 32)])
                await client.unregister_system_shared_memory("frames")
                gateway.inference.requests.clear()
                assert mappings(path) == before
            assert descriptors(path) == opened


async def test_tokens_keep_regions_apart():
    tokens = Security(tokens=read_tokens("ann secret-a\nbob secret-b\n", "tokens"))
    with shared(64) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW])
        async with (
            serving(regions=allowed(), security=tokens) as gateway,
            triton.InferenceServerClient(gateway.target) as client,
        ):
            ann, bob = ({"authorization": f"Bearer secret-{who}"} for who in "ab")
            await client.register_system_shared_memory("frames", key, 64, headers=ann)
            await client.unregister_system_shared_memory(headers=bob)
            inputs = [placed("FP32", ROW.shape, ROW.nbytes)]
            code, _ = await refused(client.infer("identity_fp32", inputs, headers=bob))
            assert code == "StatusCode.NOT_FOUND"
            result = await client.infer("identity_fp32", inputs, headers=ann)
            np.testing.assert_array_equal(result.as_numpy("y"), ROW)
