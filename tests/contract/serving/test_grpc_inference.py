"""An unmodified tritonclient, asynchronous and blocking, against a real listener."""

import asyncio
import os

import grpc
import grpc.aio
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as blocking
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.access import Address
from gateway.common.domain.tensor import Datatype
from tests.simulators.grpc_gateway import LOOPBACK, serving

pytestmark = pytest.mark.asyncio

VALUES = {
    **{d.label: np.array([[0, 1, 2]], d.dtype) for d in Datatype if d not in {Datatype.BYTES, Datatype.BF16}},
    "BYTES": np.array([[b"", b"\0\xff", "grüß".encode()]], object),
    "BF16": np.array([[0.5, -1.0, 3.0]], "<f4"),
}


def tensor(label, values):
    given = triton.InferInput("x", list(values.shape), label)
    given.set_data_from_numpy(values)
    return given


@pytest.mark.parametrize("label", [datatype.label for datatype in Datatype])
async def test_every_datatype_comes_back_as_sent(label):
    values = VALUES[label]
    sent = values.astype(ml_dtypes.bfloat16) if label == "BF16" else values
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        result = await client.infer(f"identity_{label.lower()}", [tensor(label, sent)], request_id="42")
    np.testing.assert_array_equal(result.as_numpy("y"), values)
    assert (result.get_response().id, result.get_output("y").datatype) == ("42", label)


async def test_models_are_loaded_and_unloaded_in_the_dialect_of_kserve():
    name = b"\x0a\x0didentity_fp32"  # field 1, where Triton's clients send the name of a repository
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            assert await call(name) == name + b"\x10\x01"  # model_name = 1, isLoaded or isUnloaded = 2
        both = service_pb2.RepositoryModelLoadRequest(repository_name="r", model_name="identity_fp32")
        with pytest.raises(grpc.aio.AioRpcError, match="specification is not supported"):
            await service_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryModelLoad(both)
    assert gateway.inference.loaded == ["identity_fp32"]


async def test_every_other_call_of_the_client():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("identity_fp32")
        assert not await client.is_model_ready("no")
        assert (await client.get_server_metadata()).name == "edge-inference-gateway"
        metadata = await client.get_model_metadata("identity_fp32", as_json=True)
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "-1"]}]
        config = (await client.get_model_config("identity_fp32", as_json=True))["config"]
        assert (config["max_batch_size"], config["input"][0]["data_type"]) == (8, "TYPE_FP32")
        assert config["input"][0]["dims"] == ["-1"]
        index = await client.get_model_repository_index()
        assert ("identity_fp32", "1", "READY") in {(m.name, m.version, m.state) for m in index.models}
        statistics = await client.get_inference_statistics("identity_fp32")
        assert statistics.model_stats[0].inference_count == 3
        assert len((await client.get_inference_statistics()).model_stats) == len(Datatype)
        await client.load_model("identity_fp32")
        await client.unload_model("identity_fp32")
        assert not await client.is_model_ready("identity_fp32")
        assert not (await client.get_system_shared_memory_status()).regions
        assert not (await client.get_cuda_shared_memory_status()).regions


async def test_parameters_reach_the_engine():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        await client.infer(
            "identity_fp32",
            [tensor("FP32", VALUES["FP32"])],
            model_version="1",
            priority=2,
            sequence_id=5,
            sequence_start=True,
            parameters={"colour": "red"},
        )
        (request,) = gateway.inference.requests
    assert (request.version, request.priority, request.ignored_parameters, request.caller) == ("1", 2, 1, "127.0.0.1")
    assert request.deadline_ns is None


async def test_classification():
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], "<f4")
    wanted = triton.InferRequestedOutput("y", class_count=2)
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        result = await client.infer("identity_fp32", [tensor("FP32", scores)], outputs=[wanted])
    assert result.as_numpy("y").tolist() == [[b"0.700000:1", b"0.200000:2"], [b"0.500000:0", b"0.300000:1"]]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_requests(algorithm):
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        given = [tensor("FP32", VALUES["FP32"])]
        result = await client.infer("identity_fp32", given, compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("y"), VALUES["FP32"])


async def test_a_unix_socket_and_tcp_at_once(tmp_path):
    unix = Address(path=str(tmp_path / "grpc.sock"))
    async with serving(addresses=[LOOPBACK, unix]) as gateway:
        assert (tmp_path / "grpc.sock").stat().st_mode & 0o777 == 0o660
        for address in gateway.addresses:
            async with triton.InferenceServerClient(str(address)) as client:
                await client.infer("identity_fp32", [tensor("FP32", VALUES["FP32"])])
        assert [request.caller for request in gateway.inference.requests] == ["127.0.0.1", f"uid:{os.getuid()}"]
    assert not (tmp_path / "grpc.sock").exists()


async def test_the_blocking_client():
    def use(target):
        with blocking.InferenceServerClient(target) as client:
            given = blocking.InferInput("x", [1, 3], "FP32")
            given.set_data_from_numpy(VALUES["FP32"])
            return client.is_server_ready(), client.infer("identity_fp32", [given]).as_numpy("y")

    async with serving() as gateway:
        ready, answer = await asyncio.to_thread(use, gateway.target)
    assert ready
    np.testing.assert_array_equal(answer, VALUES["FP32"])


async def test_several_hundred_calls_at_once_each_get_their_own_answer():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        given = [np.full((1, 2), number, "<i4") for number in range(300)]
        calls = (client.infer("identity_int32", [tensor("INT32", v)], request_id=str(v[0, 0])) for v in given)
        results = await asyncio.gather(*calls)
    for values, result in zip(given, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("y"), values)
        assert result.get_response().id == str(values[0, 0])
