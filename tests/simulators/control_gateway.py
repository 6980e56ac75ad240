"""The control API on a real UNIX socket over a fake engine that records commands."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from gateway.common.domain.access import Address
from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import Artifact, Variant
from gateway.common.domain.selection import Candidate
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.common.domain.verdict import Measurement
from gateway.serving.domain.ports import Loaded, Replayed, SettingsStanding, VersionStatus
from gateway.serving.domain.vitals import Vitals
from gateway.serving.frontends.control.about import About
from gateway.serving.frontends.control.server import ControlFrontend
from gateway.serving.frontends.control.settings import ControlServerSettings
from tests.simulators.constants import settings_with

ACTIVATION: dict[str, Any] = {
    "slot": "meter",
    "target": "models/acme/meter/2/release",
    "release": "a" * 64,
    "variants": ["onnx-int8"],
    "evidence": ["b" * 64, "c" * 64],
    "root": 1,
}
SETTINGS: dict[str, Any] = {**ACTIVATION, "slot": "@settings", "target": "settings/berlin/2/release", "variants": []}
PLACEMENT = Placement("onnx-int8", "onnx", "int8", CPU, "the only one", 8, signed=True)


class SimulatedServing:
    """Fake of Serving, Standings, Statistics and SettingsTrials.

    The list `told` has every command in order. The next commands raise `error` if it is set; they wait while `gate` is
    cleared.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def plan(self, activation: Activation) -> Sequence[Candidate]:
        await self._note("plan", activation)
        variants = (Variant(name, "onnx", "int8", (Artifact("m", "0" * 64, 1),)) for name in ("onnx-int8", "onnx-fp32"))
        first, second = variants
        return (Candidate(first, CPU, 1, True, "fits"), Candidate(second, None, None, False, "no step"))

    async def load(self, activation: Activation) -> Loaded:
        await self._note("load", activation)
        return Loaded("onnx-int8", CPU, "the only one", Measurement(100.0, 200.0, 90.0, 4096))

    async def route(self, model: str, weights: Mapping[str, int], *, shadow: str = "", lease_s: float) -> None:
        await self._note("route", model, dict(weights), shadow, lease_s)

    async def replay(self, model: str, version: str) -> Replayed:
        await self._note("replay", model, version)
        return Replayed(8, True, "it answers its golden set")

    async def unload(self, model: str, version: str, drain_s: float) -> None:
        await self._note("unload", model, version, drain_s)

    async def commit(self) -> None:
        await self._note("commit")

    def standing(self) -> SettingsStanding:
        return SettingsStanding("settings/berlin/2/release", "d" * 64, 12.5, "settings/berlin/1/release")

    async def try_out(self, activation: Activation, within_s: float) -> None:
        await self._note("try", activation, within_s)

    async def confirm(self, sha256: str) -> None:
        await self._note("confirm", sha256)

    async def revert(self, sha256: str, reason: str) -> None:
        await self._note("revert", sha256, reason)

    def standings(self) -> Sequence[VersionStatus]:
        return (
            VersionStatus("hand", "1", "UNAVAILABLE", reason="broken"),
            VersionStatus("meter", "2", "READY", weight=100, placement=PLACEMENT),
        )

    def statistics(self, model: str = "", version: str = "") -> Sequence[ServableStatistics]:
        del version
        if model not in {"", "meter"}:
            raise RequestError(Fault.NOT_FOUND, f"Request for unknown model: '{model}' is not found")
        statistics = ServableStatistics("meter", "2", executions=5, failed_runs=1, weight=100)
        statistics.success.add(1000, 7)
        statistics.shadow.count(3, 1, 0.5)
        return [statistics]

    async def _note(self, *what: Any) -> None:
        self.told.append(what)
        await self.gate.wait()
        if self.error is not None:
            raise self.error


class Gateway:
    """A listening frontend and its client."""

    def __init__(self, settings: ControlServerSettings, path: Path, restart: Callable[[], str]) -> None:
        self.engine, self.path = SimulatedServing(), path
        vitals = Vitals({"cpu": 41.5}, {"board": 3.5}, memory_available_bytes=1024, throttled=False)
        inventory = {"arch": "x86_64", "profile": "generic-x86"}
        about = About("generic-x86", inventory, lambda: vitals, restart, lambda: "", lambda: None)
        self.frontend = ControlFrontend(self.engine, self.engine, self.engine, self.engine, about, settings)
        self.client = httpx.AsyncClient()

    def ended(self, answering: asyncio.Task[None]) -> None:
        """Close the listeners if the application failed to start, so that clients do not wait."""
        if not answering.cancelled() and answering.exception() is not None:
            for listener in self.frontend._listeners._sockets:
                listener.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a raw connection."""
        return await asyncio.open_unix_connection(str(self.path))


@asynccontextmanager
async def serving(*, restart: Callable[[], str] = lambda: "", **settings: Any) -> AsyncIterator[Gateway]:
    """Run a frontend on a socket in a folder that all users may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    gateway = Gateway(settings_with(ControlServerSettings(), **settings), folder / "control.sock", restart)
    await gateway.frontend.start([Address(path=str(gateway.path))])
    answering = asyncio.create_task(gateway.frontend.serve())
    answering.add_done_callback(gateway.ended)
    transport = httpx.AsyncHTTPTransport(uds=str(gateway.path))
    gateway.client = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30, trust_env=False)
    try:
        async with gateway.client:
            yield gateway
    finally:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        await gateway.frontend.stop(0)
        shutil.rmtree(folder)
