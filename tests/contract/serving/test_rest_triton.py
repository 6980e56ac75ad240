"""Unmodified tritonclients, asynchronous and blocking, against a real listener."""

import asyncio

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as blocking
import tritonclient.http.aio as triton
from gevent import monkey
from tritonclient.utils import InferenceServerException

from gateway.common.domain.tensor import Datatype, Tensor
from tests.simulators.rest_gateway import serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("rest_way")]
DATATYPES = [datatype for datatype in Datatype if datatype is not Datatype.BF16]
WAYS_IN = [(datatype, True) for datatype in DATATYPES]
WAYS_IN += [(datatype, False) for datatype in DATATYPES if datatype is not Datatype.FP16]  # refused by tritonclient


def values(datatype):
    if datatype is Datatype.BYTES:
        return np.array([[b"", "grüße".encode()], [b"a" * 300, b"[,]"]], object)
    return np.array([[0, 1], [2, 3]]).astype(datatype.dtype)


def given(module, datatype, *, binary=True):
    array = values(datatype)
    item = module.InferInput("x", list(array.shape), datatype.label)
    item.set_data_from_numpy(array, binary_data=binary)
    return [item]


def same(result, datatype):
    got = result.as_numpy("y")
    expected = values(datatype)
    if datatype is Datatype.BYTES:
        return [bytes(e) if isinstance(e, bytes) else e.encode() for e in got.ravel()] == expected.ravel().tolist()
    return got.dtype == expected.dtype and np.array_equal(got, expected)


@pytest.mark.parametrize("binary_out", [True, False], ids=["binary out", "json out"])
@pytest.mark.parametrize(("datatype", "binary_in"), WAYS_IN, ids=lambda w: getattr(w, "label", w))
async def test_every_datatype(datatype, binary_in, binary_out):
    outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        result = await client.infer(
            f"identity_{datatype.label.lower()}", given(triton, datatype, binary=binary_in), outputs=outputs
        )
        assert same(result, datatype)
        assert ("data" in result.get_output("y")) is not binary_out


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_nan_and_infinity_travel_in_json_too(binary_in, binary_out):
    values = np.array([[np.nan, np.inf], [-np.inf, 1.5]], "f4")
    item = triton.InferInput("x", [2, 2], "FP32")
    item.set_data_from_numpy(values, binary_data=binary_in)
    outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        result = await client.infer("identity_fp32", [item], outputs=outputs)
        np.testing.assert_array_equal(result.as_numpy("y"), values)


async def test_bfloat16_travels_binary():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        item = triton.InferInput("x", [1, 2], "BF16")
        item.set_data_from_numpy(np.array([[1.5, -2.0]], ml_dtypes.bfloat16))
        result = await client.infer("identity_bf16", [item])
        assert result.get_output("y")["parameters"] == {"binary_data_size": 4}
        assert gateway.inference.requests[0].inputs["x"].array.tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compression_both_ways(encoding):
    array = np.zeros((1, 4096), "f4")
    item = triton.InferInput("x", [1, 4096], "FP32")
    item.set_data_from_numpy(array)
    compressed = {"request_compression_algorithm": encoding, "response_compression_algorithm": encoding}
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        assert (await client.infer("identity_fp32", [item], **compressed)).as_numpy("y").shape == (1, 4096)
        asked = given(triton, Datatype.INT32, binary=False)
        assert same(await client.infer("identity_int32", asked, **compressed), Datatype.INT32)


async def test_empty_tensors():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        item = triton.InferInput("x", [0, 4], "FP32")
        item.set_data_from_numpy(np.empty((0, 4), "f4"))
        assert (await client.infer("identity_fp32", [item])).as_numpy("y").shape == (0, 4)


async def test_what_the_client_asks_for_arrives():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        outputs = [triton.InferRequestedOutput("y", class_count=2)]
        options = {"request_id": "r7", "priority": 3, "timeout": 5_000_000, "parameters": {"mine": 1}}
        result = await client.infer("identity_fp32", given(triton, Datatype.FP32), "1", outputs, **options)
        (request,) = gateway.inference.requests
        assert result.get_response()["id"] == request.id == "r7"
        assert (request.version, request.priority, request.ignored_parameters) == ("1", 3, 1)
        assert request.deadline_ns is not None
        assert [(o.name, o.classification) for o in request.outputs] == [("y", 2)]
        assert request.caller == "127.0.0.1"


async def test_the_questions_of_a_client():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("identity_fp32", "1")
        assert not await client.is_model_ready("absent")
        assert (await client.get_server_metadata())["name"] == "edge-inference-gateway"
        metadata = await client.get_model_metadata("identity_fp32")
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]
        config = await client.get_model_config("identity_fp32", "1")
        assert config["input"][0] | {"format": ""} == {
            "name": "x",
            "data_type": "TYPE_FP32",
            "dims": [-1],
            "format": "",
        }
        assert config["max_batch_size"] == 8
        statistics = await client.get_inference_statistics("identity_fp32")
        assert statistics["model_stats"][0]["inference_count"] == 3
        assert len((await client.get_inference_statistics())["model_stats"]) == len(Datatype)
        assert {line["state"] for line in await client.get_model_repository_index()} == {"READY"}


async def test_load_and_unload():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        await client.load_model("identity_fp32")
        assert gateway.inference.loaded == ["identity_fp32"]
        await client.unload_model("identity_fp32")
        assert not await client.is_model_ready("identity_fp32")
        with pytest.raises(InferenceServerException, match="parameter 'config' is not offered"):
            await client.load_model("identity_fp32", config="{}")


async def test_an_error_reaches_the_client():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'absent' is not found"):
            await client.infer("absent", given(triton, Datatype.FP32))


async def test_an_encoded_image_arrives_as_bytes():
    image = b"\xff\xd8\xff\xe0 not quite a jpeg"
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        item = triton.InferInput("x", [1], "BYTES")
        item.set_data_from_numpy(np.array([image], object))
        result = await client.infer("identity_bytes", [item])
        assert gateway.inference.requests[0].inputs["x"] == Tensor(Datatype.BYTES, np.array([image], object))
        assert result.as_numpy("y").tolist() == [image]


def ask_blocking(target):
    """Ask with the blocking client, in a thread of its own: gevent's hub belongs to one thread."""
    with blocking.InferenceServerClient(target, concurrency=2) as client:
        results = [
            same(client.infer(f"identity_{d.label.lower()}", given(blocking, d)), d)
            for d in (Datatype.FP32, Datatype.BYTES, Datatype.INT8)
        ]
        zipped = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
        results.append(same(client.infer("identity_fp64", given(blocking, Datatype.FP64), **zipped), Datatype.FP64))
        later = client.async_infer("identity_fp32", given(blocking, Datatype.FP32)).get_result()
        return [*results, same(later, Datatype.FP32), client.is_server_ready()]


async def test_the_blocking_client():
    async with serving() as gateway:
        assert all(await asyncio.to_thread(ask_blocking, gateway.target))


async def test_gevent_stays_in_its_corner():
    assert not monkey.saved
