"""The HTTP port with the language model of `talker`, by the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx

from gateway.common.domain.access import Security
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.rest_v2.server import RestFrontend
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.grpc_gateway import LOOPBACK, UNDIVIDED
from tests.simulators.rest_gateway import metrics
from tests.simulators.talker import TalkerRuntime, TalkerSession
from tests.simulators.writing import sessions, until, writing


class Served:
    """The model `writer`, its sessions, and where it answers."""

    def __init__(self, rig: Any, http: httpx.AsyncClient, address: Any) -> None:
        self.rig, self.http, self.address = rig, http, address

    @property
    def sessions(self) -> list[TalkerSession]:
        return cast("list[TalkerSession]", sessions(self.rig))

    def documents(self) -> list[dict[str, Any]]:
        return [each for session in self.sessions for each in session.documents]

    async def is_free(self) -> None:
        """Wait until no run is under way."""
        await until(lambda: not self.rig.engine.statistics("writer")[0].busy)


@asynccontextmanager
async def talking(**limits: Any) -> AsyncIterator[Served]:
    rig = await writing(runs=8, runtime=TalkerRuntime(), **limits)
    for session in sessions(rig):
        session.gate.set()
    rest = RestFrontend(
        rig.engine, rig.repository, rig.engine, RestSettings(hosts=("*",)), Security(), metrics, None,
        cameras=None, pools=Pools(UNDIVIDED),
    )  # fmt: skip
    (address,) = await rest.start((LOOPBACK,))
    await rest.answer()
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60, trust_env=False) as client:
        yield Served(rig, client, address)
    await rest.stop(0)
    for session in sessions(rig):
        session.gate.set()
    await rig.repository.close()
