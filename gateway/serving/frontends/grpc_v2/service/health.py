"""Health service `grpc.health.v1.Health`: the server under "" or its service name, each model under its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import READ, check_model, check_scope
from gateway.serving.domain.ports import Inference
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.service.load import Load

SERVER_NAMES = ("", "inference.GRPCInferenceService")


class HealthService:
    """Methods Check and Watch. Nothing polls: code that changes readiness calls `changed`, on the event loop."""

    def __init__(self, inference: Inference, load: Load) -> None:
        self._inference, self._load = inference, load
        self._watches: set[asyncio.Event] = set()
        self._stopping = False

    def changed(self) -> None:
        """Notify watches that the readiness of a model or of the server may have changed."""
        for watch in self._watches:
            watch.set()

    def drain(self) -> None:
        """Report NOT_SERVING for everything from now on; open watches report it and end."""
        self._stopping = True
        self.changed()

    async def check(self, request: Any, call: CallInfo) -> Any:
        """Return HealthCheckResponse. Raises NOT_FOUND for an unknown name, DENIED for a model that is hidden."""
        _check(request.service, call)
        status = self._status(request.service)
        if status == "SERVICE_UNKNOWN":
            raise RequestError(Fault.NOT_FOUND, f"unknown service '{request.service:.200}'")
        return _response(status)

    async def watch(self, request: Any, call: CallInfo) -> AsyncGenerator[Any, None]:
        """Yield the status now and at every change. Raises OVERLOADED at too many watches, DENIED as `check`."""
        _check(request.service, call)
        with self._load.counted(self._load.watches, call):
            wake = asyncio.Event()
            self._watches.add(wake)
            try:
                async for status in self._changes(request.service, wake):
                    yield _response(status)
            finally:
                self._watches.discard(wake)

    async def _changes(self, service: str, wake: asyncio.Event) -> AsyncGenerator[str, None]:
        sent = ""
        while True:
            wake.clear()
            status = self._status(service)
            if status != sent:
                sent = status
                yield status
            elif self._stopping:
                return
            else:
                await wake.wait()

    def _status(self, service: str) -> str:
        model = "" if service in SERVER_NAMES else service
        if self._stopping:
            return "NOT_SERVING"
        if self._inference.ready(model):
            return "SERVING"
        try:
            if model:
                self._inference.describe(model)
        except RequestError as error:
            if error.fault is Fault.NOT_FOUND:
                return "SERVICE_UNKNOWN"
        return "NOT_SERVING"


def _check(service: str, call: CallInfo) -> None:
    """Refuse a model to a caller that may not see it; the server's health is open to every caller."""
    if service not in SERVER_NAMES:
        check_scope(call.caller, call.rights, READ)
        check_model(call.caller, call.rights, service)


def _response(status: str) -> Any:
    return message("grpc.health.v1.HealthCheckResponse")(status=status)
