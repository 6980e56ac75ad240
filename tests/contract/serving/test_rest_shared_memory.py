"""An unmodified tritonclient and its own shared memory, against a real HTTP listener."""

import httpx
import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException, shared_memory

from gateway.common.domain.access import Address
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.rest_v2.settings import RestSettings
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.rest_gateway import serving
from tests.simulators.segments import shared

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("rest_way")]

ROW = np.array([[1.5, -2.0, 3.25, 0.0]], "<f4")
SEGMENTS = "/v2/systemsharedmemory"


def allowed(**changed):
    return Regions(SharedMemorySettings(**{"allowed": True, "over_tcp": True, **changed}))


def placed(byte_size=ROW.nbytes, offset=0, shape=(1, 4), region="frames"):
    tensor = triton.InferInput("x", list(shape), "FP32")
    tensor.set_shared_memory(region, byte_size, offset)
    return [tensor]


def wanted(byte_size, offset=0):
    output = triton.InferRequestedOutput("y")
    output.set_shared_memory("frames", byte_size, offset)
    return [output]


async def refused(awaited):
    with pytest.raises(InferenceServerException) as caught:
        await awaited
    return caught.value.status(), caught.value.message()


async def test_an_output_in_shared_memory_takes_no_memory_of_answers():
    """Sent in JSON it could take 7.5 MB."""
    values = np.ones((1, 300_000), "<f4")
    settings = RestSettings(max_buffered_bytes=2_000_000)
    with shared(2 * values.nbytes) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [values])
        async with (
            serving(regions=allowed(), settings=settings) as gateway,
            triton.InferenceServerClient(gateway.target) as client,
        ):
            await client.register_system_shared_memory("frames", key, 2 * values.nbytes)
            inputs = placed(values.nbytes, shape=values.shape)
            await client.infer("identity_fp32", inputs, outputs=wanted(values.nbytes, values.nbytes))
            assert await refused(
                client.infer("identity_fp32", inputs, outputs=[triton.InferRequestedOutput("y", False)])
            )
        written = shared_memory.get_contents_as_numpy(handle, np.float32, values.shape, values.nbytes).copy()
    np.testing.assert_array_equal(written, values)


async def test_tensors_stay_where_they_are():
    with shared(4096) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW], offset=8)
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            assert await client.get_system_shared_memory_status() == []
            await client.register_system_shared_memory("frames", key, 2048, offset=8)
            region = {"name": "frames", "key": key, "offset": 8, "byte_size": 2048}
            assert await client.get_system_shared_memory_status() == [region]
            assert await client.get_system_shared_memory_status("frames") == [region]
            result = await client.infer("identity_fp32", placed())
            np.testing.assert_array_equal(result.as_numpy("y"), ROW)
            result = await client.infer("identity_fp32", placed(), outputs=wanted(64, 512))
            # no parameters: Triton's C++ client takes none without binary_data_size
            assert result.get_output("y") == {"name": "y", "datatype": "FP32", "shape": [1, 4]}
            assert not gateway.inference.requests[0].inputs["x"].array.flags.owndata
            await client.unregister_system_shared_memory("frames")
            assert await client.get_system_shared_memory_status() == []
            await client.unregister_system_shared_memory()
        written = shared_memory.get_contents_as_numpy(handle, np.float32, ROW.shape, 520).copy()
        np.testing.assert_array_equal(written, ROW)


async def test_refusals():
    with shared(64) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW])
        async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
            await client.register_system_shared_memory("frames", key, 64)
            again = client.register_system_shared_memory("frames", key, 64)
            assert await refused(again) == ("400", "shared memory region 'frames' already in manager")
            for offset, size in ((0, 65), (-1, 8), (0, -8), (0, 0), (2**63, 8)):
                code, words = await refused(client.register_system_shared_memory("s", key, size, offset))
                assert (code, words.startswith("failed to register shared memory region 's'")) == ("400", True)
            assert await refused(client.get_system_shared_memory_status("s")) == (
                "404",
                "Unable to find system shared memory region: 's'",
            )
            assert await refused(client.infer("identity_fp32", placed(region="s"))) == (
                "404",
                "Unable to find shared memory region: 's'",
            )
            code, words = await refused(client.infer("identity_fp32", placed(offset=56)))
            assert (code, "Invalid offset + byte size" in words) == ("400", True)
            code, words = await refused(client.infer("identity_fp32", placed(), outputs=wanted(8)))
            assert (code, "(8 bytes) should be at least 16 bytes" in words) == ("400", True)


@pytest.mark.parametrize(
    "body", ["[]", "{}", '{"key": "/k"}', '{"key": 1, "byte_size": 8}', '{"key": "/k", "byte_size": 1e3']
)
async def test_bodies_that_register_nothing(body):
    async with serving(regions=allowed()) as gateway:
        answer = await gateway.client.post(f"{SEGMENTS}/region/r/register", content=body)
    assert (answer.status_code, "error" in answer.json()) == (400, True)


@pytest.mark.parametrize(
    "more", [{"data": [1, 2, 3, 4]}, {"parameters": {"binary_data_size": 16}}], ids=["json", "binary"]
)
async def test_a_tensor_is_in_one_place(more):
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 16, **more.get("parameters", {})}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], **more, "parameters": parameters}
    async with serving(regions=allowed()) as gateway:
        answer = await gateway.client.post("/v2/models/identity_fp32/infer", json={"inputs": [tensor]})
    assert (answer.status_code, "has data of its own as well" in answer.json()["error"]) == (400, True)


async def test_a_unix_socket_tells_who_registers(tmp_path):
    path = f"{tmp_path}/http.sock"
    with shared(64) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [ROW])
        async with serving(regions=allowed(over_tcp=False), addresses=[Address(path=path)]):
            transport = httpx.AsyncHTTPTransport(uds=path)
            async with httpx.AsyncClient(transport=transport, base_url="http://device") as client:
                body = {"key": key, "byte_size": 64}
                assert (await client.post(f"{SEGMENTS}/region/r/register", json=body)).status_code == 200
                assert [line["name"] for line in (await client.get(f"{SEGMENTS}/status")).json()] == ["r"]


async def test_cuda_regions_are_forgotten_but_never_registered():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        assert await client.get_cuda_shared_memory_status() == []
        assert (await refused(client.get_cuda_shared_memory_status("r"))) == (
            "404",
            "Unable to find CUDA shared memory region: 'r'",
        )
        for name in ("", "r"):
            await client.unregister_cuda_shared_memory(name)
        code, words = await refused(client.register_cuda_shared_memory("r", b"QUJD", 0, 64))
        assert (code, "CUDA shared memory is not offered" in words) == ("501", True)


async def test_it_is_off_unless_allowed():
    with shared(64) as (key, _):
        async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
            assert "system_shared_memory" not in (await client.get_server_metadata())["extensions"]
            assert await client.get_system_shared_memory_status() == []
            assert (await refused(client.get_system_shared_memory_status("r")))[0] == "404"
            for refusal in (
                client.register_system_shared_memory("r", key, 64),
                client.unregister_system_shared_memory("r"),
                client.infer("identity_fp32", placed()),
            ):
                code, words = await refused(refusal)
                assert (code, "[shared_memory] allowed = true" in words) == ("501", True)
    async with serving(regions=allowed()) as gateway, triton.InferenceServerClient(gateway.target) as client:
        assert "system_shared_memory" in (await client.get_server_metadata())["extensions"]
