"""`edge-gateway` with grpcio's server in front of the same service, as a judge of what clients see of our HTTP/2.

It serves TCP without TLS, to callers on this device. `COMMAND` runs it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc.aio

from gateway.cli import main
from gateway.common.domain.access import Address, Security
from gateway.common.domain.errors import RequestError
from gateway.common.domain.problem import WAITING_HELPS, error_text
from gateway.serving.domain.parameters import deadline_ns
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.grpc_v2.calls import CallInfo, Rpc, RpcKind
from gateway.serving.frontends.grpc_v2.framing import PREFIX
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport import server
from gateway.serving.frontends.grpc_v2.transport.replies import GRPC_STATUS
from gateway.serving.frontends.peer import Peer

COMMAND = (sys.executable, "-m", "tests.system.grpcio_daemon")


class GrpcioServer:
    """Listener with the interface of `GrpcServer`."""

    def __init__(self, service: InferenceService, settings: GrpcSettings, security: Security) -> None:
        self.authentication, self._settings = Authentication("grpc", security), settings
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", settings.max_message_bytes)])
        shapes: dict[RpcKind, tuple[Callable[..., Any], Callable[..., Any]]] = {
            RpcKind.UNARY: (grpc.unary_unary_rpc_method_handler, self._unary),
            RpcKind.SERVER_STREAM: (grpc.unary_stream_rpc_method_handler, self._stream),
            RpcKind.BIDIRECTIONAL: (grpc.stream_stream_rpc_method_handler, self._stream),
        }
        for path, rpc in service.rpcs().items():
            shape, call = shapes[rpc.kind]
            handler = shape(partial(call, rpc), response_serializer=partial(_serialized, rpc))
            _, package, method = path.split("/")
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(package, {method: handler})])

    async def start(self, addresses: Sequence[Address]) -> list[Address]:
        bound = [Address(each.host, self._server.add_insecure_port(str(each))) for each in addresses]
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def secure(self, _: Security) -> Callable[[], None]:
        return lambda: None

    async def _unary(self, rpc: Rpc, raw: bytes, context: Any) -> Any:
        try:
            return await rpc.answer(rpc.parse(raw), self._info(rpc, context))
        except RequestError as error:
            await self._abort(context, error)

    async def _stream(self, rpc: Rpc, raw: Any, context: Any) -> None:
        async def parsed() -> AsyncIterator[Any]:
            async for each in raw:
                yield rpc.parse(each)

        try:
            asked = parsed() if rpc.kind is RpcKind.BIDIRECTIONAL else rpc.parse(raw)
            async with aclosing(rpc.answer(asked, self._info(rpc, context))) as replies:
                async for reply in replies:
                    await context.write(reply)
        except RequestError as error:
            await self._abort(context, error)

    def _info(self, rpc: Rpc, context: Any) -> CallInfo:
        peer = Peer(address="127.0.0.1")
        caller = self.authentication.admit(peer, None, rpc.needs)
        ends_ns = deadline_ns(time.monotonic_ns(), remaining_s=context.time_remaining())
        return CallInfo(caller.name, ends_ns, rights=caller.rights, share_key=peer.share_of(caller))

    async def _abort(self, context: Any, error: RequestError) -> None:
        metadata: tuple[tuple[str, str], ...] = ()
        if error.fault in WAITING_HELPS:
            wait_s = self._settings.retry_after_s if error.retry_after_s is None else error.retry_after_s
            metadata = (("grpc-retry-pushback-ms", str(round(wait_s * 1000))),)
        code = getattr(grpc.StatusCode, GRPC_STATUS[error.fault])
        await context.abort(code, error_text(error.message), metadata)


def _serialized(rpc: Rpc, reply: Any) -> bytes:
    if not rpc.raw:
        return bytes(reply.SerializeToString())
    pieces, _ = reply
    return b"".join((pieces[0][PREFIX.size :], *pieces[1:]))


if __name__ == "__main__":
    server.GrpcServer = GrpcioServer  # type: ignore[misc, assignment]
    sys.exit(main())
