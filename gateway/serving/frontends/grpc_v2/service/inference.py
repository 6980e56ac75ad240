"""GRPCInferenceService, Health and ServerReflection on messages and domain types, independent of any transport.

A transport takes `rpcs()`, parses each request with `Rpc.request.FromString`, and awaits `Rpc.answer(message,
CallInfo)`. It converts RequestError to a status with `gateway.serving.frontends.status`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn

from gateway.common.domain.errors import Fault, RequestError, of_answer
from gateway.common.domain.rights import ANY_CALLER, CONTROL, MEMORY, READ, Needs, check_model
from gateway.common.domain.rights import INFER as MAY_INFER
from gateway.common.domain.text_model import REQUEST, STREAM, TEXT, is_generative
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.serving.domain.ports import InferenceEngine, Repository, Statistics
from gateway.serving.frontends import documents
from gateway.serving.frontends.grpc_v2.calls import INFER, CallInfo, Rpc, RpcKind, unexpected
from gateway.serving.frontends.grpc_v2.codec.decode import wants_final_response
from gateway.serving.frontends.grpc_v2.codec.encode import (
    encode_stream_error,
    encode_stream_reply,
    mark_final,
    reply_size_steps,
    reply_steps,
)
from gateway.serving.frontends.grpc_v2.codec.infer_codec import InferCodec
from gateway.serving.frontends.grpc_v2.codec.protocol import REFLECTION, SERVICES, message, pool, services
from gateway.serving.frontends.grpc_v2.framing import Encoded, PartReply
from gateway.serving.frontends.grpc_v2.service.health import HealthService
from gateway.serving.frontends.grpc_v2.service.large_requests import LargeRequestReader, OpenedRequest
from gateway.serving.frontends.grpc_v2.service.load import Load
from gateway.serving.frontends.grpc_v2.service.message_memory import MemoryShare, MessageMemory
from gateway.serving.frontends.grpc_v2.service.reflection import ReflectionStream
from gateway.serving.frontends.grpc_v2.service.stream import InferStream, SendPart, StreamAnswer, stopping
from gateway.serving.frontends.grpc_v2.service.submission import InferSubmission
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.not_offered import (
    no_cuda_regions,
    no_log_settings,
    no_regions,
    no_trace_settings,
    refuse_load_parameters,
)
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import EXTENSION, Regions, Registrant, unknown_region

STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
NEEDS: Mapping[str, Needs] = {
    "ServerLive": ANY_CALLER,
    "ServerReady": ANY_CALLER,
    "Check": ANY_CALLER,  # for a model: READ
    "Watch": ANY_CALLER,  # the same for a model
    "ServerMetadata": READ,
    "ModelReady": READ,
    "ModelMetadata": READ,
    "ModelConfig": READ,
    "ModelStatistics": READ,
    "RepositoryIndex": READ,
    "ServerReflectionInfo": READ,
    "ModelInfer": MAY_INFER,
    "ModelStreamInfer": MAY_INFER,
    "RepositoryModelLoad": CONTROL,
    "RepositoryModelUnload": CONTROL,
    "SystemSharedMemoryRegister": MEMORY,
    # Only a caller's own regions, and clients request these before they register any.
    "SystemSharedMemoryStatus": READ,
    "SystemSharedMemoryUnregister": READ,
    "CudaSharedMemoryStatus": READ,
    "CudaSharedMemoryUnregister": READ,
    # Not offered: every caller gets that answer.
    "CudaSharedMemoryRegister": ANY_CALLER,
    "TraceSetting": ANY_CALLER,
    "LogSettings": ANY_CALLER,
}
"""Scopes that the methods need. A method that is not listed stops the start: it would be open to everyone."""
Answer = Callable[[Any, CallInfo], Any]


class InferenceService:
    """Methods of the service. Each takes (message, CallInfo), returns the reply message and may raise RequestError."""

    def __init__(
        self,
        inference: InferenceEngine,
        repository: Repository,
        statistics: Statistics,
        settings: GrpcSettings,
        regions: Regions | None = None,
        *,
        pools: Pools | None = None,
    ) -> None:
        """Set up the service. `regions`: None if shared memory is not allowed. `pools`: factory of shared resources."""
        self._inference, self._repository, self._statistics = inference, repository, statistics
        self._regions = regions
        self.codec = InferCodec(regions)
        self.reader = LargeRequestReader(inference, regions, settings.max_message_bytes)
        self.decoding = inference.decoding
        self.submission = InferSubmission(self.codec, inference)
        self.hold, self.release = inference.hold, inference.release
        self._settings = settings
        self._names = (*SERVICES, *REFLECTION) if settings.reflection else SERVICES
        self._streams: set[InferStream] = set()
        self._draining = False
        self.load = load = Load(settings, pools or Pools())
        self.message_memory = MessageMemory(
            load.pools.make_bytes("grpc request bytes", "[grpc] max_receiving_bytes", settings.max_receiving_bytes)
        )
        self.health = HealthService(inference, load)

    def rpcs(self) -> Mapping[str, Rpc]:
        """Return every method by its path, "/package.Service/Method"."""
        answers = self._answers()
        rpcs = {}
        for service in services(self._names):
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                request, answer = message(method.input_type.full_name), answers[method.name]
                raw = path in {INFER, STREAM_PATH}
                kind = RpcKind.SERVER_STREAM if method.server_streaming else RpcKind.UNARY
                kind = RpcKind.BIDIRECTIONAL if method.client_streaming else kind
                rpcs[path] = Rpc(path, kind, request, answer, NEEDS[method.name], raw=raw)
        return rpcs

    def drain(self) -> None:
        """Set health to NOT_SERVING. Open streams answer the requests they have read and end; new ones are refused."""
        self._draining = True
        self.health.drain()
        for stream in tuple(self._streams):
            stream.drain()

    async def server_live(self, request: Any, call: CallInfo) -> Any:
        """Report that the server is live: it answers."""
        return message("inference.ServerLiveResponse")(live=True)

    async def server_ready(self, request: Any, call: CallInfo) -> Any:
        """Report if the server accepts inference requests."""
        return message("inference.ServerReadyResponse")(ready=self._inference.ready())

    async def model_ready(self, request: Any, call: CallInfo) -> Any:
        """Report if a model is ready. Raises DENIED.

        An unknown model is not ready, and no error: clients rely on that, as Triton answers.
        """
        check_model(call.caller, call.rights, request.name)
        ready = bool(request.name) and self._inference.ready(request.name, request.version)
        return message("inference.ModelReadyResponse")(ready=ready)

    async def server_metadata(self, request: Any, call: CallInfo) -> Any:
        """Return name, version and extensions."""
        return message("inference.ServerMetadataResponse")(
            **documents.server_metadata(*([EXTENSION] if self._regions else []))
        )

    async def model_metadata(self, request: Any, call: CallInfo) -> Any:
        """Return inputs and outputs as clients see them. Raises NOT_FOUND, UNAVAILABLE."""
        return message("inference.ModelMetadataResponse")(**documents.model_metadata(*self._described(request, call)))

    async def model_config(self, request: Any, call: CallInfo) -> Any:
        """Return Triton's configuration of the model, as far as it has one here. Raises NOT_FOUND, UNAVAILABLE."""
        return message("inference.ModelConfigResponse")(config=documents.model_config(*self._described(request, call)))

    async def model_statistics(self, request: Any, call: CallInfo) -> Any:
        """Return counters of one version, one model or all that the caller may see. Raises NOT_FOUND, DENIED."""
        if request.name:
            check_model(call.caller, call.rights, request.name)
        counted = documents.visible_statistics(self._statistics, call.rights, request.name, request.version)
        return message("inference.ModelStatisticsResponse")(**documents.model_statistics(counted))

    async def encode(self, response: InferResponse, asked: Sequence[RequestedOutput], call: CallInfo) -> Encoded:
        """Return the reply of a response that takes long to encode. Its memory is counted until it is returned.

        Raises as `encode_response` and `MemoryShare.grow` do.
        """
        share, run = MemoryShare(self.message_memory.pool, call), self.decoding.run
        try:
            size = await run(call.caller, reply_size_steps(response))
            try:
                share.grow(size)
            except RequestError as error:
                raise of_answer(error) from None
            return await run(call.caller, reply_steps(response, asked))
        finally:
            share.free()

    async def model_infer(self, raw: bytes | memoryview, call: CallInfo) -> Encoded:
        """Answer one request; a faster transport uses `codec`, `submit` and `encode` itself."""
        now_ns, share = time.monotonic_ns(), MemoryShare(self.message_memory.pool, call)
        try:
            asked = self.codec.decode(raw, call, now_ns, lent=False)
            if asked is None:
                opened = await self.reader.open(raw, call.caller)
                check_model(call.caller, call.rights, opened.sent.model_name)
                asked = await self.reader.read(opened, call, now_ns, share)
                self.codec.learn(raw, opened.sent, asked)
            check_model(call.caller, call.rights, asked.model)
            response = await self._inference.infer(asked)
            return await self._reply(response, asked.outputs, call)
        finally:
            share.free()

    async def _reply(self, response: InferResponse, asked: Sequence[RequestedOutput], call: CallInfo) -> Encoded:
        encoded = self.codec.encode(response, asked)
        return await self.encode(response, asked, call) if encoded is None else encoded

    async def _answer_opened(
        self, opened: OpenedRequest, part: SendPart, call: CallInfo, order: asyncio.Lock
    ) -> Encoded:
        check_model(call.caller, call.rights, opened.sent.model_name)
        share = MemoryShare(self.message_memory.pool, call)
        try:
            asked = await self.reader.read(opened, call, time.monotonic_ns(), share)
            known = self.codec.find(opened.raw)
            if known is None:  # the transport needs no method for the next of its like
                self.codec.learn(opened.raw, opened.sent, asked)
            self.submission.find_batch(known, asked)
            is_text = self._is_text(asked)
            if is_text and STREAM in asked.inputs and asked.inputs[STREAM].array.all():
                response = await self._send_parts(asked, part, call)
            else:
                response = await self._inference.infer(asked)
            if is_text or wants_final_response(opened.sent):
                response = mark_final(response)
            async with order:
                return await self._reply(response, asked.outputs, call)
        finally:
            share.free()

    def _is_text(self, asked: InferRequest) -> bool:
        """Return True if a request is for a language model, whose answers may have parts: Triton's decoupled models."""
        if TEXT not in asked.inputs and REQUEST not in asked.inputs:
            return False
        return is_generative(self._inference.describe(asked.model, asked.version))

    async def _send_parts(self, asked: InferRequest, part: SendPart, call: CallInfo) -> InferResponse:
        """Send the parts of an answer, and return the rest of it."""
        async with aclosing(self._inference.infer_in_parts(asked)) as parts:
            async for response, is_last in parts:
                if is_last:
                    break
                encoded = await self._reply(mark_final(response, is_final=False), asked.outputs, call)
                await part(PartReply(encode_stream_reply(encoded)))
        return response

    def model_stream_infer(self, requests: AsyncIterator[bytes], call: CallInfo) -> AsyncGenerator[Encoded, None]:
        """Answer requests as they complete; an error of one is in-band and the stream continues."""
        opened = self._opened(requests, call.caller)
        answer = partial(self._counted_answer, call=call, order=asyncio.Lock())
        return self._stream(opened, answer, self._settings.stream_in_flight)

    def server_reflection_info(self, requests: AsyncIterator[Any], call: CallInfo) -> AsyncGenerator[Any, None]:
        """Answer questions about the services, one after the other. Raises TOO_LARGE above the settings' bounds."""
        reflection = ReflectionStream(pool(), self._names, self._settings)
        return self._stream(requests, lambda question, _: reflection.answer(question), in_flight=1)

    async def repository_index(self, request: Any, call: CallInfo) -> Any:
        """Return every known model version that the caller may see, or only the ready ones."""
        _refuse_repository_name(request.repository_name)
        lines = documents.repository_index(self._repository.index(), call.rights, only_ready=request.ready)
        return message("inference.RepositoryIndexResponse")(models=lines)

    async def repository_model_load(self, request: Any, call: CallInfo) -> Any:
        """Read the model's folder again. Raises DENIED unless `[models] control = true`."""
        model = _model_of(request)
        refuse_load_parameters(request.parameters)
        check_model(call.caller, call.rights, model)
        await self._repository.load(model)
        return message("inference.RepositoryModelLoadResponse")(model_name=model, isLoaded=True)

    async def repository_model_unload(self, request: Any, call: CallInfo) -> Any:
        """Drain and unload. `unload_dependents` has no effect: no model depends on another here."""
        model = _model_of(request)
        check_model(call.caller, call.rights, model)
        await self._repository.unload(model)
        return message("inference.RepositoryModelUnloadResponse")(model_name=model, isUnloaded=True)

    async def system_shared_memory_status(self, request: Any, call: CallInfo) -> Any:
        """Return the caller's regions, or one of them. Raises NOT_FOUND.

        If regions are not allowed, the answer is empty: clients expect that rather than an error.
        """
        if self._regions is None and request.name:
            raise unknown_region(request.name, "system ")
        lines = [] if self._regions is None else self._regions.status(call.caller, request.name)
        return message("inference.SystemSharedMemoryStatusResponse")(regions={line["name"]: line for line in lines})

    async def system_shared_memory_register(self, request: Any, call: CallInfo) -> Any:
        """Map a segment of the caller's. Raises UNSUPPORTED, DENIED, OVERLOADED, INVALID."""
        who = Registrant(call.caller, call.local, call.uid, call.pid, call.share_key)
        self._allowed_regions().register(who, request.name, request.key, request.offset, request.byte_size)
        return message("inference.SystemSharedMemoryRegisterResponse")()

    async def system_shared_memory_unregister(self, request: Any, call: CallInfo) -> Any:
        """Forget one of the caller's regions, or with "" all of them. Raises UNSUPPORTED."""
        self._allowed_regions().unregister(call.caller, request.name)
        return message("inference.SystemSharedMemoryUnregisterResponse")()

    async def cuda_shared_memory_status(self, request: Any, call: CallInfo) -> Any:
        """Return no regions: none is ever registered."""
        if request.name:
            raise unknown_region(request.name, "CUDA ")
        return message("inference.CudaSharedMemoryStatusResponse")()

    async def cuda_shared_memory_register(self, request: Any, call: CallInfo) -> NoReturn:
        """Refuse with UNSUPPORTED: there is no CUDA shared memory here."""
        raise no_cuda_regions()

    async def cuda_shared_memory_unregister(self, request: Any, call: CallInfo) -> Any:
        """Do nothing: programs unregister all regions before they register their first one, and Triton accepts it."""
        return message("inference.CudaSharedMemoryUnregisterResponse")()

    async def trace_setting(self, request: Any, call: CallInfo) -> NoReturn:
        """Refuse with UNSUPPORTED to read or change the trace settings."""
        raise no_trace_settings()

    async def log_settings(self, request: Any, call: CallInfo) -> NoReturn:
        """Refuse with UNSUPPORTED to read or change the log settings."""
        raise no_log_settings()

    def _answers(self) -> Mapping[str, Answer]:
        return {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "ModelStreamInfer": self.model_stream_infer,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_model_load,
            "RepositoryModelUnload": self.repository_model_unload,
            "SystemSharedMemoryStatus": self.system_shared_memory_status,
            "SystemSharedMemoryRegister": self.system_shared_memory_register,
            "SystemSharedMemoryUnregister": self.system_shared_memory_unregister,
            "CudaSharedMemoryStatus": self.cuda_shared_memory_status,
            "CudaSharedMemoryRegister": self.cuda_shared_memory_register,
            "CudaSharedMemoryUnregister": self.cuda_shared_memory_unregister,
            "TraceSetting": self.trace_setting,
            "LogSettings": self.log_settings,
            "Check": self.health.check,
            "Watch": self.health.watch,
            "ServerReflectionInfo": self.server_reflection_info,
        }

    def _allowed_regions(self) -> Regions:
        if self._regions is None:
            raise no_regions()
        return self._regions

    def _described(self, request: Any, call: CallInfo) -> tuple[Any, Any, Any]:
        check_model(call.caller, call.rights, request.name)
        return documents.described(self._inference, self._repository, request.name, request.version)

    async def _stream(
        self, requests: AsyncIterator[Any], answer: StreamAnswer, in_flight: int
    ) -> AsyncGenerator[Any, None]:
        if self._draining:
            raise stopping()
        stream = InferStream(requests, answer, in_flight, self._settings.stream_idle_s)
        self._streams.add(stream)
        try:
            async with aclosing(stream.replies()) as replies:
                async for reply in replies:
                    yield reply
        finally:
            self._streams.discard(stream)

    async def _opened(self, requests: AsyncIterator[bytes | memoryview], caller: str) -> AsyncIterator[OpenedRequest]:
        async for raw in requests:
            opened = await self.reader.open(raw, caller)
            del raw  # its memory is counted until no reference to it is left
            yield opened
            del opened

    async def _counted_answer(
        self, opened: OpenedRequest, part: SendPart, call: CallInfo, order: asyncio.Lock
    ) -> Encoded:
        """Answer one request of a stream, which is a call while it is in flight; `order` is taken to encode it."""
        sent, final = opened.sent, wants_final_response(opened.sent)
        try:
            with self.load.counted(self.load.calls, call):
                return encode_stream_reply(await self._answer_opened(opened, part, call, order))
        except RequestError as error:
            return encode_stream_error(error, sent, final=final)
        except Exception as error:  # noqa: BLE001 - a task's boundary: the other requests of the stream continue
            return encode_stream_error(unexpected(error, STREAM_PATH), sent, final=final)


def _model_of(request: Any) -> str:
    """Return the model to load or unload, which KServe's clients send where Triton's send a repository's name."""
    if request.model_name:
        _refuse_repository_name(request.repository_name)
    return str(request.model_name or request.repository_name)


def _refuse_repository_name(name: str) -> None:
    if name:
        raise RequestError(
            Fault.UNSUPPORTED, "'repository_name' specification is not supported: there is one repository"
        )
