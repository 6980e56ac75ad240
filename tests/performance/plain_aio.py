"""The baseline `grpcio.aio`: what an engineer writes by hand in an hour. grpc.aio, protobuf, ONNX Runtime, no more.

It runs the model on the event loop, which for a tiny model is the quickest it can do. Says its port when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime

from gateway.serving.frontends.grpc_v2.codec.protocol import message

DTYPES = {"FP32": np.float32, "UINT8": np.uint8}
Request, Response = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
StreamResponse = message("inference.ModelStreamInferResponse")


class Model:
    """One session and the names of its outputs."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def answer(self, request: Any) -> Any:
        """Return the reply to one request with raw contents."""
        feeds = {
            tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        reply = Response(model_name=request.model_name, model_version="1", id=request.id)
        for name, array in zip(self.outputs, self.session.run(self.outputs, feeds), strict=True):
            reply.outputs.add(name=name, datatype="FP32", shape=array.shape)
            reply.raw_output_contents.append(array.tobytes())
        return reply


async def serve(options: argparse.Namespace) -> None:
    """Serve until it is killed."""
    models = {file.parent.name: Model(file) for file in options.models.glob("*/model.onnx")}

    async def infer(request: Any, _context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        return models[request.model_name].answer(request)

    async def stream(requests: AsyncIterator[Any], _context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield StreamResponse(infer_response=models[request.model_name].answer(request))

    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer, Request.FromString, Response.SerializeToString),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
            stream, Request.FromString, StreamResponse.SerializeToString
        ),
    }
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    if options.tls:
        key, certificate = (options.tls.with_suffix(suffix).read_bytes() for suffix in (".key", ".pem"))
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
        server.add_insecure_port(f"unix:{options.unix}")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="directory of NAME/model.onnx")
    parser.add_argument("--unix", type=Path, help="a UNIX socket beside the TCP port")
    parser.add_argument("--tls", type=Path, help="certificate chain, with its key beside it as .key: TLS on TCP")
    asyncio.run(serve(parser.parse_args()))
