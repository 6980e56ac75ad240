"""The gRPC frontend on real sockets with simulated inference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.common.domain.access import Address, Security
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.settings import ShareSettings
from tests.simulators.inference import SimulatedInference

LOOPBACK = Address("127.0.0.1", 0)
UNDIVIDED = ShareSettings(caller_percent=100, local_percent=0)
"""A single caller may use each total."""


class Gateway:
    """A running frontend. `target` is its first address in the form for gRPC clients."""

    def __init__(
        self,
        inference: SimulatedInference,
        settings: GrpcSettings,
        security: Security,
        regions: Regions | None = None,
        shares: ShareSettings = UNDIVIDED,
    ) -> None:
        self.inference, self.pools = inference, Pools(shares)
        self.service = InferenceService(inference, inference, inference, settings, regions, pools=self.pools)
        self.frontend = GrpcServer(self.service, settings, security)
        self.addresses: list[Address] = []

    @property
    def target(self) -> str:
        return str(self.addresses[0])


@asynccontextmanager
async def serving(
    *,
    settings: GrpcSettings | None = None,
    security: Security | None = None,
    addresses: Sequence[Address] = (LOOPBACK,),
    inference: SimulatedInference | None = None,
    regions: Regions | None = None,
    shares: ShareSettings = UNDIVIDED,
) -> AsyncIterator[Gateway]:
    inference, settings, security = (
        inference or SimulatedInference(),
        settings or GrpcSettings(),
        security or Security(),
    )
    gateway = Gateway(inference, settings, security, regions, shares)
    gateway.addresses = await gateway.frontend.start(addresses)
    try:
        yield gateway
    finally:
        await gateway.frontend.stop(0)
