"""The REST frontend on real sockets with simulated inference."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx

from gateway.common.domain.access import Address, Security
from gateway.serving.domain.cameras import CameraViews
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.rest_v2.server import RestFrontend
from gateway.serving.frontends.rest_v2.settings import RestSettings
from gateway.serving.frontends.settings import ShareSettings
from tests.simulators.inference import SimulatedInference

LOOPBACK = Address("127.0.0.1", 0)
UNDIVIDED = ShareSettings(caller_percent=100, local_percent=0)
"""A single caller may use each total."""
METRICS = (b"# TYPE up gauge\nup 1.0\n", "text/plain; version=0.0.4; charset=utf-8")


async def metrics() -> tuple[bytes, str]:
    """Return a metrics page."""
    return METRICS


class Gateway:
    """A running frontend. `target` is its first address in the form for clients; `client` is connected to it."""

    def __init__(
        self,
        inference: SimulatedInference,
        settings: RestSettings,
        security: Security,
        regions: Regions | None,
        *,
        shares: ShareSettings,
        cameras: CameraViews | None = None,
    ) -> None:
        self.inference, self.pools = inference, Pools(shares)
        self.frontend = RestFrontend(
            inference,
            inference,
            inference,
            settings,
            security,
            metrics,
            regions,
            cameras=cameras,
            pools=self.pools,
        )
        self.addresses: tuple[Address, ...] = ()
        self.client = httpx.AsyncClient()

    @property
    def target(self) -> str:
        return str(self.addresses[0])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a raw connection to the first address."""
        return await asyncio.open_connection(self.addresses[0].host, self.addresses[0].port)


@asynccontextmanager
async def serving(
    *,
    settings: RestSettings | None = None,
    security: Security | None = None,
    addresses: Sequence[Address] = (LOOPBACK,),
    inference: SimulatedInference | None = None,
    regions: Regions | None = None,
    hosts: tuple[str, ...] = ("*",),
    shares: ShareSettings = UNDIVIDED,
    cameras: CameraViews | None = None,
) -> AsyncIterator[Gateway]:
    inference, settings, security = (
        inference or SimulatedInference(),
        replace(settings or RestSettings(), hosts=hosts),
        security or Security(),
    )
    gateway = Gateway(inference, settings, security, regions, shares=shares, cameras=cameras)
    gateway.addresses = await gateway.frontend.start(addresses)
    await gateway.frontend.answer()
    gateway.client = httpx.AsyncClient(base_url=f"http://{gateway.target}", timeout=30, trust_env=False)
    try:
        async with gateway.client:
            yield gateway
    finally:
        await gateway.frontend.stop(0)


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    """Close a raw connection and ignore errors."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def infer_body(*values: float, **more: object) -> dict[str, object]:
    """Return a JSON request to identity_fp32."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}
    return {"inputs": [tensor], **more}
