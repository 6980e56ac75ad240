"""Composition root: makes the packages' objects, wires them, starts them in order and stops them in reverse."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.common.domain.access import Address
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.events import (
    AcceleratorChanged,
    CandidateFailed,
    CandidateRecovered,
    Event,
    ImagesDecoded,
    ModelRefused,
    ServableChanged,
    VariantChosen,
)
from gateway.common.domain.model_files import NO_MODEL
from gateway.common.domain.settings_layer import SettingsLayer
from gateway.common.logs import configure_logging, get_logger, log_event
from gateway.common.notify import Notifier, feed_watchdog, forget_failures
from gateway.common.timeouts import timeout
from gateway.common.wire.kept_listeners import KEPT
from gateway.serving import assembly
from gateway.serving.committed.store import CommittedStore
from gateway.serving.config import Config, gateway_id, load_config, models_folders, models_place, mqtt_brokers
from gateway.serving.credentials import Credentials
from gateway.serving.domain.cameras import KnownCamera
from gateway.serving.engine.openings import WAIT_S
from gateway.serving.fleet_settings import Life, SettingsControl, check_startable
from gateway.serving.frontends.cameras.snapshots import Snapshots
from gateway.serving.frontends.pools import Pools
from gateway.serving.hardware.device_watch import DeviceWatch
from gateway.serving.model_sources import Fleet, MarkedRepository, control_frontend
from gateway.serving.observe.heap import Trimming, settle
from gateway.serving.store.folder_watch import FolderWatch
from gateway.serving.store.state import StateStore

if TYPE_CHECKING:
    from gateway.common.domain.statistics import MetricSample
    from gateway.serving.domain.vitals import Vitals
    from gateway.serving.frontends.cameras.cameras import Cameras
    from gateway.serving.frontends.cameras.settings import CameraSettings
    from gateway.serving.frontends.mqtt.frontend import MqttFrontends
    from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
    from gateway.serving.frontends.regions import Regions
    from gateway.serving.frontends.rest_v2.server import RestFrontend

LIVE = frozenset({"models", "log", "file", "sources", "auth", "tls", "camera"})
"""Settings that SIGHUP applies at once; the others need a restart."""

HTTP_WAITS_S = 1.0
"""Time that HTTP waits for the models to be loaded. With kept verdicts they take a tenth of that."""
STABLE_S = 600.0
"""Time of service after which earlier failures are forgotten."""

Overrides = Callable[[Config], Config]
"""Options of the command line that override a configuration, also when SIGHUP reads it again."""


class Daemon:
    """One running gateway. `run()` returns when it was stopped and everything is drained.

    `failures`: the ends of processes of this unit before it (`notify.failures_in_a_row`).
    """

    def __init__(self, config: Config, life: Life, overrides: Overrides, failures: str = "") -> None:
        self._config, self._life, self._overrides = config, life, overrides
        self.restart: str | None = None
        """Argument of `execute_again` if the process is to be replaced; None: it ends."""
        self._log = get_logger("daemon")
        self._notify = Notifier.from_environment(os.environ)
        self._stop, self._ready = asyncio.Event(), asyncio.Event()
        self._refining: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._reload_again = self._models_again = self._is_reloading = False
        self._wanted: Config | None = None
        """Configuration that a reload has read, until the models are read with it."""
        self._roots: dict[Path, tuple[int, int]] = {}
        """Folders of models that were read, and the directories that stood there."""
        self._up = False
        self._trimming = Trimming(self._stop.is_set)
        self._failures = failures
        self._mqtt: MqttFrontends | None = None
        self._cameras: Cameras | None = None
        self._regions: Regions | None = None
        self._pools = Pools(config.shares)
        self._readiness_changed: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Start, serve until SIGTERM or SIGINT, drain. Raises ConfigurationError if it cannot start."""
        configure_logging(self._config.log)
        if self._failures:
            self._log.warning("started after failures", problem=self._failures)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_for_good)
        loop.add_signal_handler(signal.SIGHUP, self._begin_reloading)
        store = CommittedStore(self._config.fleet, self._config.library)
        self._trials = SettingsControl(self._life, store, self._check, self._restart, self._stop.is_set)
        if self._life.ends_in_s is not None:  # this process tries settings
            loop.call_later(self._life.ends_in_s, self._trials.end_trial)
        async with AsyncExitStack() as stack:
            KEPT.retain(self._listeners())
            if await self._started(stack):
                self._notify.ready(self._status())
                loop.call_later(STABLE_S, self._forget_failures)
                self._ready.set()
                settle()
                await self._stop.wait()
            if self.restart is None:
                self._notify.stopping()
            else:
                self._notify.reloading("restarting with other settings of the fleet")
            self._log.info("stopping", drain_s=self._config.limits.drain_s)
            if self._up:
                self._engine.draining = True
        self._log.info("stopped")

    async def _started(self, stack: AsyncExitStack) -> bool:
        """Start, unless stopped first: trials may take minutes, and a stop does not wait for them."""
        starting, stopping = asyncio.create_task(self._start(stack)), asyncio.create_task(self._stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (starting, stopping):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await starting
            self._up = True
            self._begin_reading()
        return self._up

    def _listeners(self) -> list[tuple[str, Address]]:
        """Return the table and the address of every listener."""
        config = self._config
        found = [("grpc", each) for each in config.grpc_listen] + [("http", each) for each in config.http_listen]
        if config.control.address is not None:
            found.append(("control", config.control.address))
        if config.shared_memory.allowed and config.shared_memory.socket:
            found.append(("shared_memory", Address(path=config.shared_memory.socket)))
        return found

    async def _start(self, stack: AsyncExitStack) -> None:
        stack.callback(feed_watchdog(self._notify, os.environ))
        self._credentials = Credentials(self._config)
        self._state = state = StateStore.open(self._life.folder, self._config.state)
        stack.callback(state.close)
        if state.problem:
            self._log.warning("state kept in memory", problem=state.problem)
        self._snapshots = Snapshots(None if state.problem else self._life.folder / "snapshots", self._camera_statuses)
        self._streams = assembly.streams(None if state.problem else self._life.folder)
        await self._build(state)
        stack.push_async_callback(self._streams.close)
        stack.callback(self._watch.close)
        stack.callback(self._devices.close)
        stack.push_async_callback(self._repository.close)
        stack.push_async_callback(self._fleet.close)
        stack.push_async_callback(self._end_background)
        self._build_mqtt(stack)
        self._start_regions(stack)
        await self._start_http(stack)  # first: commands take a gateway that listens anywhere for one that answers here
        await self._start_grpc(stack)
        await self._start_control(stack)
        self._loading = asyncio.create_task(self._first_synchronisation(), name="load")
        done, _ = await asyncio.wait({self._loading}, timeout=self._config.limits.notify_within_s)
        if done:
            loading, self._loading = self._loading, None
            await loading
        else:
            self._log.warning("started while models are still loading", serving=self._summary())
            self._loading.add_done_callback(self._answers)
        if self._mqtt is not None:  # not before: what waits at brokers would be held for models that load at once
            await self._mqtt.start()
            stack.push_async_callback(self._mqtt.stop, self._config.limits.drain_s)
        stack.push_async_callback(self._stop_cameras)  # before MQTT, which publishes that they are offline
        self._follow_cameras(self._config.camera)

    async def _build(self, state: StateStore) -> None:
        config, store = self._config, CommittedStore(self._config.fleet, self._config.library)
        self._surveyed = surveyed = await assembly.survey(config, store=store)
        where = assembly.site(config, surveyed, "" if state.problem else str(self._life.folder / "compiled"))
        self._log.info("device surveyed", profile=surveyed.profile_sentence, threads=where.threads)
        loader = assembly.loader(config, where, state, self._publish)
        self._engine, self._repository = assembly.serving(
            config,
            loader,
            streams=self._streams,
            opening_wait_s=WAIT_S,
            scan_model=lambda model: self._fleet.of_model(model, partial(assembly.releases_of, self._config, model)),
            control=lambda: self._config.models.control,
        )
        self._fleet = Fleet(store, self._repository, loader, config.fleet)
        self._listed = MarkedRepository(self._repository, store)
        self._watch = FolderWatch(self._models_changed)
        recovery = self._repository.recovery
        self._devices = DeviceWatch(surveyed.inventory.accelerators, recovery.accelerator_changed)

    async def _first_synchronisation(self) -> None:
        """Load the models, then become ready."""
        await self._streams.read()
        try:
            await self._synchronise(self._config)
        except Exception as error:
            if not self._up:  # the start fails
                raise
            self._log.error("the model directory could not be read to its end", problem=str(error))
        self._engine.settled = True
        self._readiness_changed()
        self._repository.changed = self._begin_refining
        self._begin_refining()

    async def _synchronise(self, config: Config, *, changed_only: bool = False) -> None:
        """Serve the model directory of `config`. If it cannot be read, nothing of `config` is applied."""
        before, folders = models_folders(self._config), models_folders(config)
        await self._watch.follow(list(dict.fromkeys((*before, *folders))))  # what serves, too, if reading is refused
        roots = dict(self._roots) if changed_only else {}
        releases = await asyncio.to_thread(assembly.releases, config, roots)
        self._roots = roots
        # Apply [models] and [log] (Credentials has applied [auth] and [tls]); log what needs a restart.
        brokers = {} if changed_only else mqtt_brokers(config, checked=True)
        names = [spec.name for spec in dataclasses.fields(Config) if spec.name not in {*LIVE, "mqtt"}]
        waiting = [name for name in names if getattr(config, name) != getattr(self._config, name)]
        waiting += ["mqtt"] if _restarting(config) != _restarting(self._config) else []
        if waiting:
            self._log.warning("these settings wait for a restart", settings=", ".join(waiting))
        self._config = dataclasses.replace(self._config, models=config.models, log=config.log, camera=config.camera)
        configure_logging(config.log)
        if self._up:
            if self._mqtt is not None and not changed_only:
                self._mqtt.follow(brokers, _known(config.camera))
            self._follow_cameras(config.camera)
        if folders != before:
            await self._watch.follow(folders)
        if not config.fleet.store and all(release.problem for release in releases):
            self._log.warning("no models found", folder=models_place(config), problem=NO_MODEL)
        await self._fleet.synchronise(releases, changed_only=changed_only)
        self._log.info("models in step", folder=models_place(self._config), serving=self._summary())

    async def _start_grpc(self, stack: AsyncExitStack) -> None:
        if not self._config.grpc_listen:
            return
        from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
        from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer

        engine, guards = self._engine, self._credentials
        ports = (engine, self._listed, engine, self._config.grpc, self._regions)
        service = InferenceService(*ports, pools=self._pools)
        frontend = guards.guard(GrpcServer(service, self._config.grpc, guards.security))
        bound = await frontend.start(self._config.grpc_listen)
        stack.push_async_callback(frontend.stop, self._config.limits.drain_s)
        self._readiness_changed = service.health.changed
        self._announce("grpc", bound)

    async def _start_http(self, stack: AsyncExitStack) -> None:
        if not self._config.http_listen:
            return
        from gateway.serving.frontends.rest_v2.server import RestFrontend
        from gateway.serving.observe.metrics import Metrics, Source

        refused = (self._credentials.samples, self._pools.refusals.samples)
        absent: Source = tuple
        regions = absent if self._regions is None else self._regions.samples
        mqtt = absent if self._mqtt is None else self._mqtt.samples
        own = (self._state.samples, self._camera_samples, _worker_samples, self._repository.residency.samples)
        sources = (mqtt, regions, *own, *refused)
        metrics = Metrics(self._engine, self._engine, vitals=self._vitals, sources=sources)
        engine, security = self._engine, self._credentials.security
        ports = (engine, self._listed, engine, self._config.http, security, metrics.render, self._regions)
        frontend = RestFrontend(*ports, cameras=self._snapshots, pools=self._pools)
        bound = await self._credentials.guard(frontend).start(self._config.http_listen)
        stack.push_async_callback(frontend.stop, self._config.limits.drain_s)
        self._announce("http", bound)
        self._begin_answering(stack, self._answer_http(frontend), "http")

    async def _answer_http(self, frontend: RestFrontend) -> None:
        """Answer HTTP after READY=1, or after HTTP_WAITS_S, when it reports that the gateway is live and not ready."""
        # Loading HTTP's libraries first would delay READY=1.
        with suppress(TimeoutError):
            async with timeout(HTTP_WAITS_S):
                await self._ready.wait()
        await frontend.answer()
        settle()

    async def _start_control(self, stack: AsyncExitStack) -> None:
        settings = self._config.control
        if settings.address is None:
            return
        ports = (self._fleet, self._repository, self._engine, self._surveyed, self._vitals, self._problem)
        more = (lambda: None if self._mqtt is None else self._mqtt.online, self._trials, settings, self._pools)
        control_ports = (*ports, *more, self._camera_statuses)
        bound = await (frontend := control_frontend(*control_ports)).start([settings.address])
        stack.push_async_callback(frontend.stop, self._config.limits.drain_s)
        self._announce("control", bound)
        self._begin_answering(stack, frontend.serve(), "control")

    def _begin_answering(self, stack: AsyncExitStack, answer: Coroutine[None, None, None], name: str) -> None:
        answering = asyncio.create_task(answer, name=name)
        answering.add_done_callback(self._answers)
        stack.push_async_callback(self._end_answering, answering)

    def _answers(self, answering: asyncio.Task[None]) -> None:
        """End a gateway that cannot answer where it should; the task's owner on the stack raises the reason."""
        if not answering.cancelled() and answering.exception() is not None:
            self._stop.set()

    @staticmethod
    async def _end_answering(answering: asyncio.Task[None]) -> None:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering

    def _build_mqtt(self, stack: AsyncExitStack) -> None:
        """Lock the state of MQTT's front ends, before models load. Raises ConfigurationError."""
        if brokers := mqtt_brokers(self._config):
            from gateway.serving.frontends.mqtt.frontend import MqttFrontends

            folder = None if self._state.problem else Path(self._life.folder)
            identity, idle = gateway_id(self._config), self._trimming.soon
            cameras = _known(self._config.camera)
            self._mqtt = MqttFrontends(self._engine, brokers, identity, folder, idle, cameras=cameras)
            stack.enter_context(self._mqtt.locked())

    def _follow_cameras(self, settings: Sequence[CameraSettings]) -> None:
        """Read these cameras. Their modules are loaded with the first one."""
        if self._stop.is_set():  # they are ended already
            return
        if self._cameras is None and (settings or self._snapshots.has_any):
            from gateway.serving.frontends.cameras.cameras import Cameras

            listeners = [] if self._mqtt is None else [self._mqtt]
            self._cameras = Cameras(self._engine, listeners, snapshots=self._snapshots)
        if self._cameras is not None:
            self._cameras.follow(settings)

    async def _stop_cameras(self) -> None:
        if self._cameras is not None:
            await self._cameras.stop()

    def _camera_samples(self) -> Iterable[MetricSample]:
        return () if self._cameras is None else self._cameras.samples()

    def _camera_statuses(self) -> list[dict[str, Any]]:
        return [] if self._cameras is None else self._cameras.statuses()

    def _start_regions(self, stack: AsyncExitStack) -> None:
        if self._config.shared_memory.allowed:
            from gateway.serving.frontends.regions import Regions
            from gateway.serving.frontends.sealed_memory import SealedMemory

            settings, refusals = self._config.shared_memory, self._pools.refusals
            self._regions = regions = Regions(settings, refusals=refusals)
            sweeping = asyncio.create_task(self._sweep(regions), name="sweep")
            stack.callback(sweeping.cancel)
            if settings.socket:
                memory = self._credentials.guard(SealedMemory(regions, settings, self._credentials.security, refusals))
                self._announce("memory", [memory.start()])
                stack.callback(memory.stop)

    async def _sweep(self, regions: Regions) -> None:
        """Drop the regions of programs that have ended, also when no other program registers."""
        while True:
            await asyncio.sleep(self._config.shared_memory.sweep_s)
            regions.sweep()

    def _vitals(self) -> Vitals:
        from gateway.serving.hardware.tree import Tree
        from gateway.serving.hardware.vitals import read_vitals

        return read_vitals(Tree(assembly.HERE, self._config.hardware))

    def _problem(self) -> str:
        """Return what an operator has to repair, for the control API ("": nothing)."""
        mqtt = self._mqtt.problem if self._mqtt else ""
        own = (self._fleet.problem, self._state.problem, self._life.problem, self._streams.problem)
        found = (*own, mqtt and f"MQTT: {mqtt}")
        return "; ".join(problem for problem in found if problem)

    def _announce(self, protocol: str, bound: Sequence[Address]) -> None:
        for address in bound:
            self._log.info("listening", protocol=protocol, address=str(address))

    def _publish(self, event: Event) -> None:
        if not isinstance(event, ImagesDecoded):
            log_event(event)
        changed = isinstance(event, ServableChanged)
        is_refused = isinstance(event, (ModelRefused, CandidateFailed))  # a pipeline may refuse its requests now
        if changed or is_refused:
            self._readiness_changed()
        if changed or isinstance(event, ImagesDecoded):
            self._trimming.soon(changed=changed)
        if (changed or is_refused or isinstance(event, VariantChosen)) and self._mqtt is not None:
            self._mqtt.readiness_changed()  # a version is found by name only once its variant is chosen
        if (changed or is_refused or isinstance(event, VariantChosen)) and self._cameras is not None:
            self._cameras.readiness_changed()
        if isinstance(event, (AcceleratorChanged, CandidateFailed, CandidateRecovered)) and self._mqtt is not None:
            asyncio.get_running_loop().call_soon(self._mqtt.readiness_changed)  # once placements say so

    def _summary(self) -> str:
        """Return one line for people: what is ready, loading, refused or undecided."""
        index, others = self._repository.index(), []
        for state, words in (("LOADING", "loading"), ("UNAVAILABLE", "unavailable")):
            if named := [f"{line.name} {line.version}" for line in index if line.state == state]:
                others.append(f"; {words}: {', '.join(named)}")
        return f"{sum(line.state == 'READY' for line in index)} model versions ready{''.join(others)}"

    def _status(self) -> str:
        """Return the line that `systemctl status` shows."""
        return f"{self._summary()}{self._failures and f'; {self._failures}; see: journalctl -u edge-gateway'}"

    def _forget_failures(self) -> None:
        self._failures = ""
        forget_failures(os.environ)
        self._notify.status(self._status())

    # ---- signals ---------------------------------------------------------------------------------------------------
    def _stop_for_good(self) -> None:
        """End, also during a restart."""
        self.restart = None
        KEPT.close()
        self._stop.set()

    # ---- settings of the fleet ---------------------------------------------------------------------------------------
    async def _check(self, layer: SettingsLayer) -> None:
        """Check a configuration with other settings of the fleet as `config check` does. Raises ConfigurationError."""
        await check_startable(await asyncio.to_thread(self._read, layer))

    def _restart(self, trial: str) -> None:
        """End orderly; the caller of `run` then replaces the process. A stop that has begun stays one."""
        if not self._stop.is_set():
            self.restart = trial
            self._stop.set()

    def _read(self, layer: SettingsLayer | None) -> Config:
        """Read the configuration file again, with settings of the fleet and the command line's changes."""
        return self._overrides(load_config(Path(self._config.file) if self._config.file else None, layer))

    def _begin_reloading(self) -> None:
        self._reload_again = True
        self._begin_reading()

    def _models_changed(self) -> None:
        self._models_again = True
        self._begin_reading()

    def _begin_reading(self) -> None:
        """Read what has changed: the configuration also while models are read, which may take minutes."""
        if not self._up or self._stop.is_set():
            return
        if self._reload_again and _has_ended(self._reloading):
            self._reloading = asyncio.create_task(self._reload(), name="reload")
        if (self._wanted or self._models_again) and _has_ended(self._following):
            self._following = asyncio.create_task(self._read_models(), name="models")

    async def _reload(self) -> None:
        """Read the configuration again and renew the credentials; the models follow. Errors are logged."""
        while self._reload_again:
            self._reload_again = False
            self._is_reloading = True
            self._notify.reloading()
            try:
                self._wanted = await self._read_again()
            except Exception as error:  # noqa: BLE001  a task's boundary: systemd waits for READY=1
                self._log_refusal(error)
        self._begin_reading()
        self._report_read(self._following)

    async def _read_again(self) -> Config:
        """Renew credentials first, also if the configuration is invalid: a revoked token must not stay in force."""
        config = None
        try:
            config = self._read(self._life.layer)
        finally:
            await self._credentials.renew(config)
        return config

    async def _read_models(self) -> None:
        """Read the model directory until nothing has changed. If it cannot be read, what was in force stays."""
        while self._wanted or self._models_again:
            (config, changed), self._wanted, self._models_again = (self._wanted, self._models_again), None, False
            if self._loading is not None:
                await asyncio.wait({self._loading})  # what the start read must not come after what we read
            try:
                await self._synchronise(config or self._config, changed_only=config is None)
            except Exception as error:  # noqa: BLE001  a task's boundary: the next change is read as well
                if config is None:
                    what = "the model directory could not be read again; what was served stays"
                    self._log.error(what, problem=str(error))
                else:
                    self._log_refusal(error)
                    self._models_again |= changed  # in the directory that still serves
        self._report_read(self._reloading)

    def _log_refusal(self, error: Exception) -> None:
        if isinstance(error, ConfigurationError):
            self._log.error("reload refused; the old configuration stays in force", problem=str(error))
        else:
            self._log.error("reload ended badly", problem=f"{type(error).__name__}: {error}")

    def _report_read(self, other: asyncio.Task[None] | None) -> None:
        """Tell the service manager that everything is read, unless the `other` task still reads."""
        if _has_ended(other):
            (self._notify.ready if self._is_reloading else self._notify.status)(self._status())
            self._is_reloading = False

    # ---- background -------------------------------------------------------------------------------------------------
    def _begin_refining(self) -> None:
        if not self._stop.is_set() and (self._refining is None or self._refining.done()):
            self._refining = asyncio.create_task(self._repository.refine(), name="refine")

    async def _end_background(self) -> None:
        tasks = [task for task in (self._loading, self._refining, self._reloading, self._following) if task is not None]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, ConfigurationError):
                raise ended
            if isinstance(ended, Exception):
                self._log.error("background work ended badly", problem=f"{type(ended).__name__}: {ended}")


def _worker_samples() -> Iterable[MetricSample]:
    """Return the metrics of worker processes; none while no model has one, so that nothing of them is imported."""
    isolated = sys.modules.get("gateway.serving.runtimes.isolated")
    return isolated.samples() if isolated else ()


def _has_ended(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


def _restarting(config: Config) -> MqttSettings:
    """Return the settings of MQTT that need a restart: not the routes of cameras."""
    return dataclasses.replace(config.mqtt, route=tuple(route for route in config.mqtt.route if not route.cameras))


def _known(cameras: Sequence[CameraSettings]) -> list[KnownCamera]:
    return [KnownCamera(each.name, each.model, each.version, each.snapshot is not None) for each in cameras]
