"""An MQTT frontend with simulated inference, as a context manager and as a program that can be killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec, Window
from gateway.common.domain.tensor import Datatype
from gateway.common.timeouts import timeout, wait_for
from gateway.serving.domain.cameras import KnownCamera
from gateway.serving.domain.ports import InferenceEngine
from gateway.serving.frontends.mqtt.frontend import MqttFrontend
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.constants import settings_with
from tests.simulators.inference import VARIANT, SimulatedInference, identity

ID = "gw"
WAIT_S = 15.0
CAMERA = "camera"
"""Argument of the program that serves a camera."""
CHANNELS = ("x", "y", "z")
FAST: dict[str, Any] = {
    "reconnect_min_s": 0.05,
    "reconnect_max_s": 0.2,
    "retry_min_s": 0.01,
    "retry_max_s": 0.05,
    "will_delay_s": 0,
}


def motion(name: str = "motion", *, size_rows: int = 4, hop_rows: int = 2) -> ModelManifest:
    """Return a model of windows [-1, size_rows, 3] that copies the window."""
    spec = TensorSpec("motion", Datatype.FP32, (-1, size_rows, len(CHANNELS)), layout="NLC", finite=True)
    scores = TensorSpec("scores", Datatype.FP32, (-1, size_rows, len(CHANNELS)), postprocess="softmax")
    window = Window(CHANNELS, size_rows, hop_rows, 10.0)
    return ModelManifest(name, "3", (spec,), (scores,), (VARIANT,), labels=("still", "walk"), window=window)


def moves(version: str = "1", labels: tuple[str, ...] = ("still", "walk")) -> ModelManifest:
    """Return a classifier that copies its scores."""
    x, scores = (TensorSpec(name, Datatype.FP32, (-1, 2)) for name in ("x", "scores"))
    return ModelManifest("moves", version, (x,), (scores,), (VARIANT,), labels=labels)


def digits(name: str = "digits") -> ModelManifest:
    """Return a model of images that copies its input."""
    image = TensorSpec("image", Datatype.FP32, (-1, 1, 2, 2), preprocess=Preprocess(("jpeg", "png")))
    scores = TensorSpec("scores", Datatype.FP32, (-1, 4))
    return ModelManifest(name, "1", (image,), (scores,), (VARIANT,), labels=("zero", "one", "two", "three"))


def simulated(*manifests: ModelManifest) -> SimulatedInference:
    """Return inference for `manifests`, or for one model of each kind."""
    return SimulatedInference(manifests or (identity(Datatype.FP32), motion(), digits(), moves()))


def echoed(result: Any) -> float:
    """Return the first value of the first output of a result."""
    return float(result["outputs"][0]["data"][0])


@asynccontextmanager
async def frontend(
    inference: InferenceEngine,
    url: str,
    *routes: MqttRoute,
    online: bool = True,
    grace_s: float = 5.0,
    folder: Path | None = None,
    cameras: Sequence[KnownCamera] = (),
    **settings: Any,
) -> AsyncIterator[MqttFrontend]:
    """Run a frontend, by default until it is online first. It is stopped at the end. `folder`: of its journal."""
    whole = settings_with(MqttSettings(url=url, route=routes), **(FAST | settings))
    one = MqttFrontend(inference, whole, ID, folder, cameras=cameras)
    await one.start()
    try:
        if online:
            await wait_for(one.online.wait(), WAIT_S)
        yield one
    finally:
        await one.stop(grace_s)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds by polling: for counters and other values without an event."""
    async with timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def _serve_and_hang(url: str) -> None:
    """Accept messages, print that on standard output, and never answer them."""
    inference = simulated()
    inference.gate.clear()
    route = MqttRoute("single", ("single/+",), "identity_fp32", sensor="topic[1]")
    async with frontend(inference, url, route):
        print("online", flush=True)
        await until(lambda: bool(inference.requests))
        print("received", flush=True)
        await asyncio.Event().wait()


async def _serve_windows(url: str, folder: str, protocol: str = "auto", *filters: str) -> None:
    """Serve windows of four samples with a journal, and print when it is online. Each filter is a route's."""
    routes = [
        MqttRoute(f"wave{index or ''}", (one,), "motion", sensor="topic[1]", hop_rows=4)
        for index, one in enumerate(filters or ("wave/+",))
    ]
    async with frontend(simulated(), url, *routes, folder=Path(folder), protocol=protocol):
        print("online", flush=True)
        await asyncio.Event().wait()


async def _serve_camera(url: str) -> None:
    """Publish that the camera `door` streams, and the picture of an event. Print when it is online."""
    async with frontend(simulated(), url, MqttRoute("camera", cameras=("door",))) as gateway:
        assert gateway.cameras is not None
        gateway.cameras.changed("door", streaming=True)
        gateway.cameras.pictured("door", 0, b"jpeg")
        print("online", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2:] == [CAMERA]:
        asyncio.run(_serve_camera(sys.argv[1]))
    else:
        asyncio.run(_serve_windows(*sys.argv[1:]) if len(sys.argv) > 2 else _serve_and_hang(sys.argv[1]))
