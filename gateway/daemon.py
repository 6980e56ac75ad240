"""The composition root: builds the rooms, wires them, starts them in order and stops them in reverse."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gateway import assembly
from gateway.config import Config, check_listeners, gateway_id, load_config, models_folder, read_security
from gateway.domain.errors import ConfigurationError
from gateway.domain.events import Event
from gateway.engine.engine import Engine
from gateway.engine.registry import Registry
from gateway.engine.repository import ModelRepository
from gateway.observe.logs import configure_logging, get_logger, log_event
from gateway.observe.notify import Notifier, watchdog_period_s
from gateway.store.state import State

if TYPE_CHECKING:
    from gateway.domain.access import Address, Security
    from gateway.frontends.mqtt.frontend import MqttFrontend

Overrides = Callable[[Config], Config]
"""What the command line lays over a configuration, also when SIGHUP reads it again."""


class Daemon:
    """One running gateway. `run()` returns when it was told to stop and everything is drained."""

    def __init__(self, config: Config, state_folder: Path, overrides: Overrides) -> None:
        self._config, self._state_folder, self._overrides = config, state_folder, overrides
        self._log = get_logger("daemon")
        self._notify = Notifier.from_environment(os.environ)
        self._stop = asyncio.Event()
        self._refining: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Start, serve until SIGTERM or SIGINT, drain. Raises ConfigurationError where it cannot start."""
        self._catch_signals()
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._notify.ready(self._summary())
            await self._stop.wait()
            self._notify.stopping()
            self._log.info("stopping", drain_s=self._config.limits.drain_s)
            self._engine.serving = False
        self._log.info("stopped")

    async def _start(self, stack: AsyncExitStack) -> None:
        config = self._config
        security = read_security(config)
        check_listeners(config, security)
        state = State.open(self._state_folder, config.state)
        stack.callback(state.close)
        await self._build(state)
        stack.push_async_callback(self._repository.close)
        stack.push_async_callback(self._end_background)
        await self._start_grpc(stack, security)
        await self._synchronise()
        self._engine.serving = True
        await self._start_http(stack, security)
        await self._start_mqtt(stack)
        self._start_watchdog(stack)
        self._begin_refining()

    async def _build(self, state: State) -> None:
        config = self._config
        self._surveyed = await assembly.survey(config)
        where = assembly.site(config, self._surveyed, str(self._state_folder / "compiled"))
        self._log.info("device surveyed", profile=where.profile.name, threads=where.threads)
        registry = Registry(config.limits.retry_after_s)
        self._engine = Engine(registry)
        self._repository = ModelRepository(
            registry,
            self._engine,
            assembly.loader(config, where, state, self._publish),
            lambda model: assembly.releases_of(self._config, model),
            settings=config.limits,
            selection=config.selection,
            control=lambda: self._config.models.control,
            publish=self._publish,
        )

    async def _synchronise(self) -> None:
        releases = await asyncio.to_thread(assembly.releases, self._config)
        await self._repository.synchronise(releases)
        self._log.info("models in step", folder=str(models_folder(self._config)), serving=self._summary())

    async def _start_grpc(self, stack: AsyncExitStack, security: Security) -> None:
        if not self._config.grpc_listen:
            return
        from gateway.frontends.grpc_v2.grpcio_server import GrpcFrontend
        from gateway.frontends.grpc_v2.service import InferenceService

        service = InferenceService(self._engine, self._repository, self._engine, self._config.grpc)
        frontend = GrpcFrontend(service, self._config.grpc, security)
        bound = await frontend.start(self._config.grpc_listen)
        stack.push_async_callback(frontend.stop, self._config.limits.drain_s)
        self._announce("grpc", bound)

    async def _start_http(self, stack: AsyncExitStack, security: Security) -> None:
        if not self._config.http_listen:
            return
        from gateway.frontends.rest_v2.server import RestFrontend
        from gateway.observe.metrics import Metrics

        metrics = Metrics(self._engine, self._engine, sources=[self._mqtt_samples])
        frontend = RestFrontend(
            self._engine, self._repository, self._engine, self._config.http, security, metrics.render
        )
        bound = await frontend.start(self._config.http_listen)
        stack.push_async_callback(frontend.stop, self._config.limits.drain_s)
        self._announce("http", bound)

    async def _start_mqtt(self, stack: AsyncExitStack) -> None:
        self._mqtt: MqttFrontend | None = None
        if not self._config.mqtt.url:
            return
        from gateway.frontends.mqtt.frontend import MqttFrontend

        self._mqtt = MqttFrontend(self._engine, self._config.mqtt, gateway_id(self._config))
        await self._mqtt.start()
        stack.push_async_callback(self._mqtt.stop, self._config.limits.drain_s)
