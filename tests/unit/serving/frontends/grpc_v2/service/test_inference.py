"""The core without any transport: messages in, messages or RequestError out."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import Preprocess, TensorSpec
from gateway.common.domain.rights import EVERYTHING
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.ports import IndexEntry
from gateway.serving.frontends import documents
from gateway.serving.frontends.grpc_v2.calls import CallInfo, RpcKind
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.framing import PREFIX
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.inference import SimulatedInference, identity


@pytest.fixture
def inference():
    return SimulatedInference()


@pytest.fixture
def service(inference):
    return InferenceService(inference, inference, inference, GrpcSettings())


def call(service, method, **fields):
    rpc = service.rpcs()[f"/inference.GRPCInferenceService/{method}"]
    request = rpc.parse(rpc.request(**fields).SerializeToString())
    return asyncio.run(rpc.answer(request, CallInfo("ann")))


def refused(service, method, **fields):
    with pytest.raises(RequestError) as caught:
        call(service, method, **fields)
    return caught.value


def test_every_method_of_the_protocol_has_an_answer(service):
    rpcs = service.rpcs()
    assert len(rpcs) == 24
    kinds = {path.rpartition("/")[2]: rpc.kind for path, rpc in rpcs.items() if rpc.kind is not RpcKind.UNARY}
    both = {"ModelStreamInfer": RpcKind.BIDIRECTIONAL, "ServerReflectionInfo": RpcKind.BIDIRECTIONAL}
    assert kinds == {**both, "Watch": RpcKind.SERVER_STREAM}


def test_bytes_that_are_no_message(service):
    rpc = service.rpcs()["/inference.GRPCInferenceService/ModelInfer"]
    with pytest.raises(RequestError, match=r"the 3 bytes sent are no inference\.ModelInferRequest message") as caught:
        asyncio.run(rpc.answer(b"\xff\xff\xff", CallInfo("ann")))
    assert caught.value.fault is Fault.INVALID


def test_infer(service, inference):
    values = np.ones((1, 2), "<f4")
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2]}]
    raw = call(
        service, "ModelInfer", model_name="identity_fp32", id="7", inputs=inputs, raw_input_contents=[values.tobytes()]
    )
    reply = message("inference.ModelInferResponse").FromString(b"".join(raw[0])[PREFIX.size :])
    assert reply.raw_output_contents[0] == values.tobytes()
    assert (inference.requests[0].caller, reply.id) == ("ann", "7")


@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [("identity_fp32", "", True), ("identity_fp32", "1", True), ("identity_fp32", "2", False), ("no", "", False)],
)
def test_model_ready_never_fails(service, model, version, ready):
    assert call(service, "ModelReady", name=model, version=version).ready is ready


def test_model_ready_without_a_name_is_not_the_servers_readiness(service):
    assert call(service, "ModelReady").ready is False


def test_an_unready_model(service, inference):
    inference.unready.add("identity_fp32")
    assert call(service, "ModelReady", name="identity_fp32").ready is False
    assert refused(service, "ModelMetadata", name="identity_fp32").fault is Fault.UNAVAILABLE
    assert refused(service, "ModelConfig", name="identity_fp32").fault is Fault.UNAVAILABLE


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_an_unknown_model(service, method):
    error = refused(service, method, name="no")
    assert (error.fault, error.message) == (Fault.NOT_FOUND, "Request for unknown model: 'no' is not found")


def test_metadata_shapes_have_the_batch_dimension_and_config_dims_do_not(service):
    described = call(service, "ModelMetadata", name="identity_bytes")
    config = call(service, "ModelConfig", name="identity_bytes").config
    assert (list(described.inputs[0].shape), described.inputs[0].datatype) == ([-1, -1], "BYTES")
    assert (list(config.input[0].dims), config.input[0].data_type) == ([-1], 13)
    assert config.max_batch_size == 8
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert list(described.versions) == ["1"]


def placed(rows, accelerator="cpu"):
    return Placement("v", "onnx", "int8", accelerator, "why", rows)


def configured(manifest, placement, *versions):
    return message("inference.ModelConfig")(**documents.model_config(manifest, placement, versions or ("1",)))


def test_config_of_a_model_that_is_not_batched():
    manifest = identity(Datatype.FP32)
    fixed = replace(manifest, inputs=(TensorSpec("x", Datatype.FP32, (1, 3, 8, 8), "NCHW"),))
    config = configured(fixed, placed(8))
    assert (config.max_batch_size, list(config.input[0].dims), config.input[0].format) == (0, [1, 3, 8, 8], 2)
    assert config.WhichOneof("scheduling_choice") is None


def test_config_tells_which_inputs_may_be_left_out():
    mask = TensorSpec("mask", Datatype.UINT8, (-1, 8), default=1.0)
    model = replace(identity(Datatype.FP32), inputs=(*identity(Datatype.FP32).inputs, mask))
    assert [each.optional for each in configured(model, placed(8)).input] == [False, True]


def test_config_names_variant_and_accelerator():
    config = configured(identity(Datatype.BF16), placed(1, "intel-gpu"), "1", "2")
    assert config.parameters["variant"].string_value == "v"
    assert config.parameters["accelerator"].string_value == "intel-gpu"
    assert (config.instance_group[0].kind, config.backend, config.input[0].data_type) == (3, "onnx", 14)
    assert config.version_policy.latest.num_versions == 2


def test_config_repeats_the_parameters_of_the_model_but_its_own_come_first():
    model = replace(identity(Datatype.FP32), parameters={"metadata": "{'task': 'détect'}", "variant": "x"})
    parameters = configured(model, placed(8)).parameters
    assert parameters["metadata"].string_value == "{'task': 'détect'}"
    assert parameters["variant"].string_value == "v"


def test_statistics_count_cancelled_requests_as_triton_does():
    counted = ServableStatistics("m", "1")
    counted.fail.add(5)
    counted.cancelled.add(7, 2)
    reply = message("inference.ModelStatisticsResponse")(**documents.model_statistics([counted]))
    theirs = service_pb2.ModelStatisticsResponse.FromString(reply.SerializeToString()).model_stats[0]
    assert (theirs.inference_stats.fail.count, theirs.inference_stats.fail.ns) == (3, 12)
    assert (theirs.response_stats["0"].cancel.count, theirs.response_stats["0"].cancel.ns) == (2, 7)


def test_config_tells_which_images_become_an_input():
    raw = Preprocess(("nv12",), frame=(4, 6), color_matrix="bt709")
    inputs = (
        TensorSpec("raw", Datatype.FP32, (-1, 3, 4, 6), "NCHW", preprocess=raw),
        TensorSpec("file", Datatype.FP32, (-1, 3, 4, 6), "NCHW", preprocess=Preprocess(("jpeg", "png"))),
        TensorSpec("plain", Datatype.FP32, (-1, 3)),
    )
    told = configured(replace(identity(Datatype.FP32), inputs=inputs), placed(1)).parameters
    assert json.loads(told["preprocess.raw"].string_value) == {
        "decode": ["nv12"],
        "frame": [4, 6],
        "color_matrix": "bt709",
        "color_range": "limited",
    }
    assert json.loads(told["preprocess.file"].string_value) == {"decode": ["jpeg", "png"], "orientation": "upright"}
    assert "preprocess.plain" not in told


def test_every_datatype_has_a_config_type():
    for datatype in Datatype:
        config = configured(identity(datatype), placed(1))
        assert config.input[0].data_type != 0


def test_statistics():
    counted = ServableStatistics("m", "1", last_inference_ms=99, inferences=6, executions=2)
    counted.success.add(500, 2)
    counted.queue.add(40, 2)
    counted.batch(4).compute_infer.add(70)
    counted.batch(2).compute_infer.add(30)
    (line,) = message("inference.ModelStatisticsResponse")(**documents.model_statistics([counted])).model_stats
    assert (line.name, line.last_inference, line.inference_count, line.execution_count) == ("m", 99, 6, 2)
    assert (line.inference_stats.success.ns, line.inference_stats.queue.count) == (500, 2)
    assert [(batch.batch_size, batch.compute_infer.ns) for batch in line.batch_stats] == [(2, 30), (4, 70)]


def test_index_of_all_and_of_the_ready():
    entries = [IndexEntry("a", "1", "READY"), IndexEntry("b", "1", "UNAVAILABLE", "wrong digest")]
    assert [line["reason"] for line in documents.repository_index(entries, EVERYTHING, only_ready=False)] == [
        "",
        "wrong digest",
    ]
    assert [line["name"] for line in documents.repository_index(entries, EVERYTHING, only_ready=True)] == ["a"]


def test_an_index_message_names_states(service, inference):
    inference.unready.add("identity_fp32")
    models = call(service, "RepositoryIndex").models
    assert {(line.name, line.state) for line in models} >= {
        ("identity_fp32", "UNAVAILABLE"),
        ("identity_bytes", "READY"),
    }
    assert "identity_fp32" not in {line.name for line in call(service, "RepositoryIndex", ready=True).models}


def test_load_and_unload(service, inference):
    call(service, "RepositoryModelLoad", model_name="identity_fp32")
    unload_dependents = {"unload_dependents": message("inference.ModelRepositoryParameter")(bool_param=False)}
    call(service, "RepositoryModelUnload", model_name="identity_fp32", parameters=unload_dependents)
    assert inference.loaded == ["identity_fp32"]
    assert "identity_fp32" not in inference.manifests


def test_loading_with_files_or_a_config_is_refused(service, inference):
    config = {"config": message("inference.ModelRepositoryParameter")(string_param="{}")}
    error = refused(service, "RepositoryModelLoad", model_name="identity_fp32", parameters=config)
    assert (error.fault, inference.loaded) == (Fault.UNSUPPORTED, [])
    assert "load parameter 'config'" in error.message


@pytest.mark.parametrize("method", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_there_is_one_repository(service, method):
    named = {} if method == "RepositoryIndex" else {"model_name": "identity_fp32"}
    assert refused(service, method, repository_name="other", **named).fault is Fault.UNSUPPORTED


@pytest.mark.parametrize("kind", ["System", "Cuda"])
def test_shared_memory_is_off(service, kind):
    assert not call(service, f"{kind}SharedMemoryStatus").regions
    assert refused(service, f"{kind}SharedMemoryStatus", name="r").fault is Fault.NOT_FOUND
    error = refused(service, f"{kind}SharedMemoryRegister", name="r")
    assert (error.fault, "not offered" in error.message) == (Fault.UNSUPPORTED, True)


def test_programs_may_forget_cuda_regions_that_cannot_be(service):
    assert refused(service, "SystemSharedMemoryUnregister", name="r").fault is Fault.UNSUPPORTED
    for name in ("", "r"):
        assert not call(service, "CudaSharedMemoryUnregister", name=name).ListFields()


@pytest.mark.parametrize("method", ["TraceSetting", "LogSettings"])
def test_settings_over_the_network_are_off(service, method):
    assert refused(service, method).fault is Fault.UNSUPPORTED


def test_only_what_works_is_advertised(service):
    extensions = set(call(service, "ServerMetadata").extensions)
    assert {"classification", "statistics", "model_repository", "sequence"} <= extensions
    assert not {name for name in extensions if "shared_memory" in name or name in {"trace", "logging"}}
