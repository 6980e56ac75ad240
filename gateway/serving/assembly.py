"""Assembly of packages for the daemon and for the commands that examine one device: survey, site, loader."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError, VariantError, suggest
from gateway.common.domain.events import Publish
from gateway.common.domain.inventory import CPU, Inventory, RuntimeListing
from gateway.common.domain.manifest import Artifact, ModelManifest, Variant
from gateway.common.domain.profile import Profile, choose_profile
from gateway.common.domain.release import Release
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.selection import Site
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.verdict import PluginStatus, RuntimeStatus, SessionBudget, Signature, Verdict
from gateway.common.memory import group_limit_bytes, usable_cores
from gateway.common.store.private_copies import changed, private_copies
from gateway.serving.committed.store import CommittedStore
from gateway.serving.config import Config, models_folders, site_profiles_folder
from gateway.serving.domain.isolation import OPEN_S, WorkerPolicy
from gateway.serving.domain.ports import Session
from gateway.serving.engine.batch_pass import BatchPass
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.engine import Engine
from gateway.serving.engine.failover import Failover
from gateway.serving.engine.loader import Loader
from gateway.serving.engine.pauses import Pauses
from gateway.serving.engine.quotas import quotas
from gateway.serving.engine.registry import Registry
from gateway.serving.engine.repository import Find, ModelRepository, ScanModel
from gateway.serving.engine.response_cache import ResponseCache
from gateway.serving.engine.stream_store import StreamStore
from gateway.serving.engine.target import ModelTarget
from gateway.serving.hardware.probe import probe
from gateway.serving.hardware.profiles import load_profiles, profiles_folder
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.installed import installed_version
from gateway.serving.runtimes.settings import IsolationSettings, TrialSettings
from gateway.serving.store.compiled import make_compiled
from gateway.serving.store.library import scan, scan_model
from gateway.serving.store.releases import changed_file, changed_golden
from gateway.serving.store.state import StateStore

MIB = 1024 * 1024
DATA_SHARE = 0.75
"""Share of the device's memory that the gateway's data may take where the configuration does not say."""
GROUP_SHARE = 5 / 6
"""Share of its control group's limit that it may take. With the unit's MemoryMax=90% both shares are equal."""
NOT_ISOLATED = IsolationSettings()
HERE = Path("/")
"""The root of this machine, as opposed to a copied tree."""


@dataclass(frozen=True, slots=True)
class MachineSurvey:
    """A machine: its inventory, the profile it matches, the state of its runtimes (None: another machine's tree)."""

    inventory: Inventory
    profile: Profile | None
    statuses: Mapping[str, RuntimeStatus] | None
    listings: Mapping[str, RuntimeListing]

    @property
    def profile_name(self) -> str | None:
        """Return the profile's name, or None if none matches."""
        return self.profile.name if self.profile else None

    @property
    def plugins(self) -> Mapping[str, PluginStatus]:
        """Return the installed plugins of all runtimes, by provider."""
        statuses = (self.statuses or {}).values()
        return {provider: plugin for status in statuses for provider, plugin in status.plugins.items()}

    @property
    def profile_sentence(self) -> str:
        """Return the profile's name and its origin, for people."""
        return f"{self.profile.name} (from {self.profile.origin})" if self.profile else "none matches"


async def survey(
    config: Config, root: Path = HERE, *, ask_all: bool = False, store: CommittedStore | None = None
) -> MachineSurvey:
    """Probe `root` and match a profile: shipped, this site's, or (`store`, else as configured) the fleet's.

    On this machine, vendor libraries and runtimes are probed in child processes: where accelerators were found, or
    always with `ask_all`. Raises ConfigurationError for a profile that does not exist or cannot be read.
    """
    inventory = await asyncio.to_thread(probe, root, settings=config.hardware)
    signed = await (store or CommittedStore(config.fleet, config.library)).profiles() if root == HERE else ()
    profile = _profile(config, inventory, signed)
    if root != HERE:
        return MachineSurvey(inventory, profile, None, {})
    statuses = {name: installed_version(name) for name in RUNTIMES}
    listings: dict[str, RuntimeListing] = {}
    if inventory.accelerators or ask_all:
        from gateway.serving.hardware.library import ask_libraries
        from gateway.serving.hardware.library_diagnosis import climb, library_sets

        statuses, listings = await _ask_runtimes(config)
        libraries = await asyncio.to_thread(ask_libraries, library_sets(inventory), config.hardware)
        inventory = climb(inventory, libraries, listings)
    return MachineSurvey(inventory, profile, statuses, listings)


async def matching_profile(config: Config) -> Profile | None:
    """Return the device profile that a daemon would use on this machine. Raises ConfigurationError as `survey` does."""
    inventory = await asyncio.to_thread(probe, HERE, settings=config.hardware)
    return _profile(config, inventory, await CommittedStore(config.fleet, config.library).profiles())


def site(config: Config, surveyed: MachineSurvey, cache_dir: str = "") -> Site:
    """Return the device as selection uses it.

    Threads: as configured, else the profile's budget, at most one per core. One thread if CPU time is the objective:
    more threads never take less of it. Runs at a time: as many threads as this process may use. Raises
    ConfigurationError if no profile matches.
    """
    profile, inventory = surveyed.profile, surveyed.inventory
    if profile is None:
        problem = f"no device profile matches this machine (arch {inventory.arch or 'unknown'}); name one (EG-112)"
        raise config.error(problem, "gateway", "profile")
    cores, objective = inventory.cpu.cores or os.cpu_count() or 1, config.selection.objective
    most = 1 if objective == "energy" else min(profile.budget.threads or cores, cores)
    threads = config.selection.threads or most
    runs = min(most, usable_cores())
    return Site(inventory, profile, surveyed.statuses, threads, cache_dir, runs, objective, config.isolation.models)


def loader(config: Config, where: Site, state: StateStore, publish: Publish) -> Loader:
    """Make a Loader over the real runtimes and trials; bound the memory of both (`[gateway] memory_mib`)."""
    # RLIMIT_DATA (getrlimit(2)) bounds the data of this process, and of each trial that it starts; 0: no bound. A run
    # beyond it fails; without it the kernel would end the process. RLIMIT_AS would count memory that drivers and
    # engines reserve and never touch.
    limit_bytes = data_limit_bytes(config, where.inventory.memory_bytes, group_limit_bytes())
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes and (most == resource.RLIM_INFINITY or limit_bytes < most):
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, most))

    async def trial(manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Verdict:
        from gateway.serving.runtimes.trial import try_variant

        if budget.cache_dir:
            return await _compile_and_try(manifest, variant, files, _with_cache(budget), config.trial)
        verdict = await try_variant(manifest, variant, files, budget, config.trial)
        file = await asyncio.to_thread(changed_file, manifest, variant, files)
        return Verdict(False, str(changed(file)), transient=True) if file else verdict

    async def inspect(variant: Variant, files: Path) -> Signature:
        from gateway.serving.runtimes.trial import inspect_file

        async with AsyncExitStack() as stack:  # of copies: the file may be copied a second time meanwhile
            copies = await asyncio.to_thread(stack.enter_context, private_copies(variant.artifacts, files))
            return await inspect_file(variant.runtime, copies / variant.artifacts[0].path, config.trial)

    return Loader(
        where,
        config.selection.objective,
        trial,
        inspect,
        partial(
            _open_session,
            isolation=config.isolation,
            nice=where.profile.budget.worker_nice,
            open_s=max(OPEN_S, config.trial.deadline_s),
        ),
        state,
        publish,
        witness=_witness,
        require=config.selection.require,
        failover=Failover(config.failover),
    )


def data_limit_bytes(config: Config, memory_bytes: int | None, group_bytes: int | None) -> int:
    """Return the bound of the gateway's data on a device with this memory and this limit of its control group."""
    shares = (DATA_SHARE * (memory_bytes or 0), GROUP_SHARE * (group_bytes or 0))
    return config.gateway.memory_mib * MIB or int(min(filter(None, shares), default=0))


@contextmanager
def opened(
    config: Config, surveyed: MachineSurvey, state_folder: Path, remark: Callable[[str], None]
) -> Iterator[Loader]:
    """Lend a loader over the kept verdicts. `remark` gets the reason if they cannot be written. Raises as `site`."""
    state = StateStore.open(state_folder, config.state)
    if state.problem:
        remark(state.problem)
    try:
        yield loader(config, site(config, surveyed), state, publish=lambda _event: None)
    finally:
        state.close()


def serving(
    config: Config,
    loader: Loader,
    *,
    scan_model: ScanModel | None = None,
    control: Callable[[], bool] = lambda: False,
    streams: StreamStore | None = None,
    opening_wait_s: float | None = None,
) -> tuple[Engine, ModelRepository]:
    """Return the engine and the repository that fills it. By default no caller may load or unload by name.

    `opening_wait_s`: time that a change waits for Python code that starts (None: until it has).
    """
    limits, caches = config.limits, {each.model: ResponseCache(each) for each in config.residency.cache}
    registry, residency = Registry(limits.retry_after_s, caches), config.residency
    if not residency.memory_mib:
        residency = replace(residency, memory_mib=loader.site.profile.budget.resident_bytes // MIB)
    turn = BatchPass(limits.turn_us, Pauses(limits.worker_wait_ms))
    engine = Engine(registry, turn, quotas(limits), DecodePool(limits))
    engine.ready_when, registry.is_read = limits.ready, False

    async def open_pipeline(
        release: Release, find: Find, context: EngineContext, old: ModelTarget | None
    ) -> ModelTarget:
        from gateway.serving.pipelines import target  # with the first pipeline: it takes a twentieth of a start

        return await target.open_pipeline(release, find, context, old, config.pipelines)

    repository = ModelRepository(
        registry,
        engine,
        loader,
        scan_model or _holds_nothing,
        settings=limits,
        selection=config.selection,
        residency=residency,
        control=control,
        publish=loader.publish,
        open_pipeline=open_pipeline,
        streams=streams,
        opening_wait_s=opening_wait_s,
    )
    return engine, repository


def streams(state_folder: Path | None) -> StreamStore:
    """Return the store of streams. None: their states are not kept over a restart."""
    return StreamStore(state_folder and state_folder / "streams", _kinds_of_states)


def _kinds_of_states() -> Sequence[type[Any]]:
    from gateway.serving.pipelines.streams import STATES  # with the first file of states, as pipelines are

    return STATES


async def _holds_nothing(_model: str) -> tuple[Release, ...]:
    return ()


async def _compile_and_try(
    manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget, settings: TrialSettings
) -> Verdict:
    """Try private copies: what is compiled from them in the trial is loaded later in place of the signed bytes."""
    from gateway.serving.runtimes.trial import try_variant

    async with AsyncExitStack() as stack:
        lent = private_copies((*variant.artifacts, *_golden(manifest, files)), files)
        try:
            copies = await asyncio.to_thread(stack.enter_context, lent)
        except VariantError as error:
            return Verdict(False, str(error), transient=error.transient)
        verdict = await try_variant(manifest, variant, copies, budget, settings)
        return replace(verdict, reason=verdict.reason.replace(str(copies), str(files)))


def _golden(manifest: ModelManifest, files: Path) -> tuple[Artifact, ...]:
    """Return the golden set with its present size (0: it is not there): the digest decides."""
    if manifest.golden is None:
        return ()
    file = files / manifest.golden.file
    return (Artifact(manifest.golden.file, manifest.golden.sha256, file.stat().st_size if file.is_file() else 0),)


def _with_cache(budget: SessionBudget) -> SessionBudget:
    """Return the budget with its folder made; without the folder, nothing that is compiled is kept."""
    if budget.cache_dir and not make_compiled(Path(budget.cache_dir)):
        return replace(budget, cache_dir="")
    return budget


def _witness(manifest: ModelManifest, folder: Path, verdict: Verdict | None) -> Callable[[], Tensors | None]:
    """Return a function for the model's witness: read now from a golden set, else generated at the first call."""

    @cache
    def read() -> Tensors | None:
        from gateway.serving.runtimes.generate import witness

        return witness(manifest, folder, verdict)

    if manifest.golden is not None:
        read()
    return read


def _open_session(
    manifest: ModelManifest,
    variant: Variant,
    files: Path,
    budget: SessionBudget,
    *,
    isolation: IsolationSettings = NOT_ISOLATED,
    nice: int = 0,
    open_s: float = OPEN_S,
) -> Session:
    """Open a session over the bytes that were tried: exactly those that the manifest names. Raises VariantError."""
    if golden := changed_golden(manifest, files):
        raise changed(golden)
    lent = partial(private_copies, variant.artifacts, files)
    if budget.isolated:
        from gateway.serving.runtimes.isolated import IsolatedSession

        is_exclusive = budget.accelerator in RUNTIMES[variant.runtime].exclusive  # a second process could not open it
        on_cpu = budget.accelerator == CPU
        policy = WorkerPolicy(
            isolation.memory_mib * MIB,
            isolation.spare and not is_exclusive,
            not on_cpu,
            nice if on_cpu else 0,
            open_s,
            budget.ran_bytes,
        )
        return IsolatedSession(manifest, variant, lent, _with_cache(budget), policy)
    with lent() as copies:
        return get_runtime(variant.runtime).open(manifest, variant, copies, _with_cache(budget))


def releases(config: Config, known: dict[Path, tuple[int, int]] | None = None) -> tuple[Release, ...]:
    """Return everything in the folders of models. Raises ConfigurationError for a named folder that is absent.

    `known` gets the identity of each folder. Raises ConfigurationError, too, for a folder that is none of `known` any
    more and holds nothing: its disk was unmounted, while a directory whose models were removed stays the same.
    """
    found: dict[str, tuple[Release, ...]] = {}
    known = {} if known is None else known
    for folder in models_folders(config):
        scanned = scan(folder, config.library, may_be_absent=not config.models.dir)
        identity = _identity(folder)
        if not scanned and known.get(folder, identity) != identity:
            problem = "the folder of models is gone, or another one that is empty, as after an unmount"
            raise ConfigurationError(f"{problem}; mount its disk, or reload to withdraw its models", file=str(folder))
        known |= {folder: identity} if identity else {}
        found = {**{name: tuple(own) for name, own in groupby(scanned, lambda release: release.name)}, **found}
    return tuple(release for name in sorted(found) for release in found[name])


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return which directory stands at a path, or None."""
    try:
        there = folder.stat()
    except OSError:
        return None
    return there.st_dev, there.st_ino


def releases_of(config: Config, model: str) -> tuple[Release, ...]:
    """Return the versions of one model on disk; none if it is absent or the name could not be a file's."""
    if model.startswith(".") or "/" in model:
        return ()
    found = (scan_model(folder, model, config.library) for folder in models_folders(config))
    return next(filter(None, found), ())


def _profile(config: Config, inventory: Inventory, signed: Iterable[Profile]) -> Profile | None:
    """Choose a profile. Of equal names, the fleet's profile precedes this site's, and this site's the shipped one."""
    of_site = site_profiles_folder(config)
    found = (
        *load_profiles(profiles_folder()),
        *(load_profiles(of_site) if of_site else ()),
        *(replace(profile, origin="signed by the fleet") for profile in signed),
    )
    profiles = tuple({profile.name: profile for profile in found}.values())
    if config.gateway.profile:
        named = next((profile for profile in profiles if profile.name == config.gateway.profile), None)
        if named is None:
            known = [profile.name for profile in profiles]
            near = suggest(config.gateway.profile, known)
            problem = f"no device profile is called {config.gateway.profile!r}{near}; known are {', '.join(known)}"
            raise config.error(problem, "gateway", "profile")
        return named
    return choose_profile(profiles, inventory)


async def _ask_runtimes(config: Config) -> tuple[dict[str, RuntimeStatus], dict[str, RuntimeListing]]:
    """Probe the runtimes, one child after the other: on a small device parallel children only slow each other."""
    statuses: dict[str, RuntimeStatus] = {}
    listings: dict[str, RuntimeListing] = {}
    from gateway.serving.runtimes.trial import runtime_status

    for name in RUNTIMES:
        status, devices = await runtime_status(name, config.trial)
        statuses[name] = status
        if devices is not None:
            listings[name] = RuntimeListing(not status.problem, status.version or "", devices, status.problem)
    return statuses, listings
