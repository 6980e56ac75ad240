"""MQTT frontends of all brokers, one for each: a broker that is away does not affect the others (decision 0049)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.domain.ports import InferenceEngine
from gateway.domain.statistics import MetricSample
from gateway.files.durable import make_folder
from gateway.files.locks import sole_writer
from gateway.frontends.mqtt.frontend import MqttFrontend
from gateway.frontends.mqtt.settings.broker import MqttSettings
from gateway.frontends.mqtt.settings.brokers import blamed_on
from gateway.frontends.mqtt.settings.route import DEFAULT_BROKER

FOLDER = "mqtt-brokers"
"""Folder of the folders of all brokers but the default one, whose journal has kept its place."""
LOCK_FILE = "mqtt.lock"
REMEDY = "stop it, or give this gateway a folder of its own with --state: only verdicts are shared"
_LOG = logging.getLogger(__name__)


class MqttFrontends:
    """Frontends by the name of their broker. Construct, `start`, `stop`; all on one event loop."""

    def __init__(
        self,
        engine: InferenceEngine,
        brokers: Mapping[str, MqttSettings],
        gateway_id: str,
        folder: Path | None,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the frontends. Raises ConfigurationError as `MqttFrontend`."""
        self._frontends: dict[str, MqttFrontend] = {}
        self._folders: list[Path] = []
        for name, settings in brokers.items():
            own = folder if folder is None or name == DEFAULT_BROKER else folder / FOLDER / name
            self._folders += [own] if own else []
            with blamed_on(name):
                self._frontends[name] = MqttFrontend(engine, settings, gateway_id, own, name=name, idle=idle)

    @property
    def online(self) -> bool:
        """Return True if all brokers grant everything that was asked for."""
        return all(frontend.online.is_set() for frontend in self._frontends.values())

    @property
    def problem(self) -> str:
        """Return what brokers do not grant, for operators; "" if all grant everything."""
        found = {name: frontend.problem for name, frontend in self._frontends.items()}
        if len(found) == 1:
            return next(iter(found.values()))
        return "; ".join(f"broker {name}: {problem}" for name, problem in found.items() if problem)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of the brokers' folders. Raises UnreachableError if another daemon writes to one of them."""
        with ExitStack() as stack:
            for folder in self._folders:
                try:
                    make_folder(folder)
                    stack.enter_context(sole_writer(folder / LOCK_FILE, "edge-gateway with MQTT", REMEDY))
                except OSError as error:
                    _LOG.warning("MQTT state not locked: %s: %s; let no other gateway use this folder", folder, error)
            yield

    async def start(self) -> None:
        """Begin to connect to all brokers."""
        for frontend in self._frontends.values():
            await frontend.start()

    async def stop(self, grace_s: float) -> None:
        """Stop all frontends at the same time, each as `MqttFrontend.stop`."""
        await asyncio.gather(*(frontend.stop(grace_s) for frontend in self._frontends.values()))

    def readiness_changed(self) -> None:
        """Tell all frontends that models may have become ready or unready."""
        for frontend in self._frontends.values():
            frontend.readiness_changed()

    def samples(self) -> Iterable[MetricSample]:
        """Yield the metrics of all brokers (METRICS.md)."""
        for frontend in self._frontends.values():
            yield from frontend.samples()
