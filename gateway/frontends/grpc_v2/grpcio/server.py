"""Service over grpcio's asyncio server. The only file that imports grpc, and only when it starts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gateway.domain.access import Address, AuthenticationError, Security
from gateway.domain.errors import ConfigurationError, Fault, RequestError
from gateway.domain.parameters import deadline_ns
from gateway.domain.problem import WAITING_HELPS, error_text
from gateway.domain.rights import Caller
from gateway.domain.shares import ANONYMOUS, RefusalReason
from gateway.frontends.authentication import Authentication
from gateway.frontends.grpc_v2.calls import (
    CallInfo,
    Rpc,
    RpcKind,
    certificate_name,
    is_local,
    peer_address,
    rights_changed,
    unexpected,
)
from gateway.frontends.grpc_v2.grpcio.listen import cannot_listen, check_certificates, claim_unix_path
from gateway.frontends.grpc_v2.service.inference import InferenceService
from gateway.frontends.grpc_v2.settings import GrpcSettings
from gateway.frontends.grpc_v2.status import GRPC_STATUS
from gateway.frontends.peer import Peer

PUSHBACK = "grpc-retry-pushback-ms"
"""Name of gRPC's own retry hint (gRFC A6), in the trailing metadata."""

QUIET_S = 0.02
"""Time without a new call after which a listener has passed on all calls that it had received."""

GRPCIO_LOG = "grpc._cython.cygrpc"

log = logging.getLogger(__name__)


class GrpcFrontend:
    """Listeners of the gRPC frontend."""

    def __init__(self, service: InferenceService, settings: GrpcSettings, security: Security) -> None:
        self._service, self._settings, self._security = service, settings, security
        self.authentication = Authentication("grpc", security)
        self._server: Any = None
        self._calls: _Calls | None = None

    async def start(self, addresses: Sequence[Address]) -> list[Address]:
        """Listen on all of `addresses`. Return them with port 0 resolved.

        Raises ConfigurationError with the first address that fails. TLS protects TCP; permissions protect a UNIX
        socket. Tokens are required on both.
        """
        import grpc.aio

        logging.getLogger(GRPCIO_LOG).addFilter(_is_worth_logging)
        credentials = self._credentials()
        server = grpc.aio.server(options=_options(self._settings))
        calls = _Calls(self._service, self._settings, self.authentication)
        server.add_generic_rpc_handlers((calls,))
        try:
            bound = [_bind(server, address, credentials, self._settings.unix_socket_mode) for address in addresses]
        except ConfigurationError:
            # grpcio frees the ports that it has bound only if the server was started first.
            await server.start()
            await server.stop(None)
            raise
        await server.start()
        self._server, self._calls = server, calls
        return bound

    def secure(self, security: Security) -> Callable[[], None]:
        """Return a function that applies `security` to callers from the next message on, and to new handshakes.

        TLS and client certificates stay on or off. Raises as `check_certificates` does.
        """
        check_certificates(security)
        return partial(self._take, security)

    def _take(self, security: Security) -> None:
        self._security = security
        self.authentication.replace(security)

    def _credentials(self) -> Any:
        """Return credentials that grpcio reads at each handshake, on its own thread; None without a certificate."""
        import grpc

        if not check_certificates(self._security):
            return None
        return grpc.dynamic_ssl_server_credentials(
            _certificates(self._security),
            lambda: _certificates(self._security),
            require_client_authentication=self._security.client_ca is not None,
        )

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, finish those in progress for up to `grace_s`, then cancel them."""
        if self._server is None or self._calls is None:
            return
        server, self._server = self._server, None
        self._service.drain()
        ends_s = time.monotonic() + grace_s
        await self._calls.last_calls(min(self._settings.last_calls_s, grace_s))
        await server.stop(max(0.0, ends_s - time.monotonic()))
        # grpcio returns when its connections are gone, before the cancelled calls are notified.
        await self._calls.ended(self._settings.cancel_limit_s)


class _Calls:
    """Implementation of grpc.GenericRpcHandler's interface.

    It looks a method up before the message is read, so that 64 MiB of an unknown caller are never parsed.
    """

    def __init__(self, service: InferenceService, settings: GrpcSettings, authentication: Authentication) -> None:
        import grpc.aio

        self._authentication, self._rpcs = authentication, service.rpcs()
        self._certificates = authentication.security.client_ca is not None
        self._load, self._retry_after_s = service.load, settings.retry_after_s
        self._arrived = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._load.on_end = self._check_idle
        self._codes = {fault: getattr(grpc.StatusCode, name) for fault, name in GRPC_STATUS.items()}
        self._transport_error = grpc.aio.BaseError
        self._refusing = grpc.stream_stream_rpc_method_handler
        self._methods = self._handlers()

    def service(self, details: Any) -> Any:
        """Return the handler of a call, one that refuses it, or None for an unknown method (UNIMPLEMENTED)."""
        method = self._methods.get(details.method)
        if method is None:
            return None
        self._arrived += 1
        rpc = self._rpcs[details.method]
        if not self._may_enter(rpc, details.invocation_metadata):
            return self._refusing(partial(self._refuse_caller, rpc))
        try:
            self._admit()
        except RequestError as error:
            return self._refusal(error)
        return method

    async def last_calls(self, limit_s: float) -> None:
        """Accept calls that were received but not yet passed on: a stop of grpcio would answer them CANCELLED.

        If more calls keep coming for `limit_s`, they are refused for the same time.
        """
        quiet = await self._quiet(limit_s)
        self._closing = True
        if not quiet:
            await self._quiet(limit_s)

    async def _quiet(self, limit_s: float) -> bool:
        """Wait until no call has come for a moment. Return False if that did not happen within `limit_s`."""
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            before = self._arrived
            await asyncio.sleep(QUIET_S)
            if self._arrived == before:
                return True
        return False

    async def ended(self, limit_s: float) -> None:
        """Wait until no call is in progress. Log a call that resists its cancellation for longer than `limit_s`."""
        self._check_idle()
        try:
            await asyncio.wait_for(self._idle.wait(), limit_s)
        except TimeoutError:
            log.warning("%d gRPC calls did not end within %s s of being cancelled", self._load.busy, limit_s)

    def _may_enter(self, rpc: Rpc, metadata: Any) -> bool:
        """Return False if the token alone shows, before the message is read, that the call will be refused."""
        security, sent = self._authentication.security, _authorization(metadata)
        if security.tokens is None or (sent is None and security.grants):
            return True
        try:
            return security.tokens.caller(sent).rights.allows(rpc.needs)
        except AuthenticationError:
            return False

    async def _refuse_caller(self, rpc: Rpc, _: Any, context: Any) -> None:
        """Refuse a call that `_may_enter` rejected, now that its peer is known."""
        try:
            self._identify(rpc, context)
        except RequestError as error:
            await self._abort(context, error)
        await self._abort(context, rights_changed())

    def _admit(self) -> None:
        if self._closing:
            raise RequestError(Fault.UNAVAILABLE, "the gateway is stopping; ask again later")
        calls = self._load.calls
        if calls.used >= calls.bounds.total:  # its caller is not known yet
            raise calls.refuse(ANONYMOUS, RefusalReason.TOTAL)

    def _check_idle(self) -> None:
        if not self._load.busy:
            self._idle.set()

    def _refusal(self, error: RequestError) -> Any:
        # A streaming handler is entered without waiting for the request message, whatever the client's method is.
        async def refuse(_: Any, context: Any) -> None:
            await self._abort(context, error)

        return self._refusing(refuse)

    def _handlers(self) -> dict[str, Any]:
        import grpc

        shapes: dict[RpcKind, tuple[Callable[..., Any], Callable[..., Any]]] = {
            RpcKind.UNARY: (grpc.unary_unary_rpc_method_handler, self._unary),
            RpcKind.SERVER_STREAM: (grpc.unary_stream_rpc_method_handler, self._server_stream),
            RpcKind.BIDIRECTIONAL: (grpc.stream_stream_rpc_method_handler, self._bidirectional),
        }
        methods = {}
        for path, rpc in self._rpcs.items():
            shape, call = shapes[rpc.kind]
            methods[path] = shape(partial(call, rpc), response_serializer=rpc.serialize)
        return methods

    async def _unary(self, rpc: Rpc, raw: bytes, context: Any) -> Any:
        try:
            info = self._info(rpc, context)
            with self._load.counted(self._load.calls, info):
                return await rpc.answer(rpc.parse(raw), info)
        except RequestError as error:
            refusal = _without_traceback(error)
        except Exception as error:  # noqa: BLE001 - the boundary: a defect must not show its traceback
            refusal = unexpected(error, rpc.path)
        del raw  # grpcio keeps an abort's frames until the next garbage collection
        return await self._abort(context, refusal)

    async def _server_stream(self, rpc: Rpc, raw: bytes, context: Any) -> None:
        await self._stream(rpc, context, lambda info: rpc.answer(rpc.parse(raw), info))

    async def _bidirectional(self, rpc: Rpc, requests: AsyncIterator[bytes], context: Any) -> None:
        await self._stream(rpc, context, lambda info: rpc.answer(self._parsed(rpc, requests, context, info), info))

    async def _parsed(
        self, rpc: Rpc, requests: AsyncIterator[bytes], context: Any, info: CallInfo
    ) -> AsyncIterator[Any]:
        async for raw in requests:
            self._check_again(rpc, context, info)
            yield rpc.parse(raw)

    async def _stream(self, rpc: Rpc, context: Any, answer: Callable[[CallInfo], Any]) -> None:
        # Written by hand rather than as an async generator: grpcio leaves those unclosed when a call is cancelled.
        try:
            info = self._info(rpc, context)
            with self._load.counted(self._load.streams, info):
                async with aclosing(answer(info)) as replies:
                    async for reply in replies:
                        self._check_again(rpc, context, info)
                        await context.write(reply)
                return
        except RequestError as error:
            refusal = _without_traceback(error)
        except self._transport_error:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary, as for unary calls
            refusal = unexpected(error, rpc.path)
        await self._abort(context, refusal)

    async def _abort(self, context: Any, error: RequestError) -> NoReturn:
        metadata: tuple[tuple[str, str], ...] = ()
        if error.fault in WAITING_HELPS:
            wait_s = self._retry_after_s if error.retry_after_s is None else error.retry_after_s
            metadata = ((PUSHBACK, str(round(wait_s * 1000))),)
        await context.abort(self._codes[error.fault], error_text(error.message), metadata)
        raise AssertionError("grpcio's abort raises")

    def _info(self, rpc: Rpc, context: Any) -> CallInfo:
        now_ns = time.monotonic_ns()
        ends_ns = deadline_ns(now_ns, remaining_s=context.time_remaining())
        caller = self._identify(rpc, context)
        share_key = self._peer(context).share_of(caller)
        return CallInfo(caller.name, ends_ns, is_local(context.peer()), rights=caller.rights, share_key=share_key)

    def _check_again(self, rpc: Rpc, context: Any, info: CallInfo) -> None:
        """Refuse to continue a call if a reload has revoked the caller's token or changed its rights."""
        caller = self._identify(rpc, context)
        if (caller.name, caller.rights) != (info.caller, info.rights):
            raise rights_changed()

    def _identify(self, rpc: Rpc, context: Any) -> Caller:
        return self._authentication.admit(self._peer(context), _authorization(context.invocation_metadata()), rpc.needs)

    def _peer(self, context: Any) -> Peer:
        certificate = certificate_name(context.auth_context()) if self._certificates else ""
        return Peer(certificate, address=peer_address(context.peer()))


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for grpcio's record of an answer without a caller.

    grpcio logs an error and its traceback for every answer whose caller has disconnected, even at the caller's own
    deadline.
    """
    return not (record.exc_info and type(record.exc_info[1]).__name__ == "ExecuteBatchError")


def _without_traceback(error: RequestError) -> RequestError:
    """Return `error` without its history: those frames hold the message, and grpcio holds the abort in a cycle.

    Measured: sixteen refused messages of 60 MB left 1.8 GB allocated.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _authorization(metadata: Any) -> str | None:
    sent = next((value for key, value in metadata if key == "authorization"), None)
    return sent if isinstance(sent, str) else None


def _certificates(security: Security) -> Any:
    import grpc

    pair = [(security.key, security.certificate)]
    return grpc.ssl_server_certificate_configuration(pair, root_certificates=security.client_ca)


def _bind(server: Any, address: Address, credentials: Any, unix_socket_mode: int) -> Address:
    if address.path:
        claim_unix_path(address)
    try:
        if credentials is None or address.path:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), credentials)
    except RuntimeError:
        raise cannot_listen(address) from None
    if not address.path:
        return replace(address, port=port)
    Path(address.path).chmod(unix_socket_mode)
    return address


def _options(settings: GrpcSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # else a second gateway would share the port without an error
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", settings.http2.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.http2.max_header_bytes),
        ("grpc.max_concurrent_streams", settings.http2.max_streams),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.keepalive_time_ms", settings.keepalive_ms),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", settings.http2.min_ping_interval_ms),
        ("grpc.http2.max_ping_strikes", settings.http2.max_ping_strikes),
    ]
