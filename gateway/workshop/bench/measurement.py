"""One run of measurements: each front end with each number of connections, and the bare runtime."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from gateway.common.domain.errors import UnreachableError, VariantError
from gateway.common.domain.noise import NoiseSnapshot
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Tensor, Tensors
from gateway.serving import assembly
from gateway.serving.config import Config
from gateway.serving.domain.ports import Session
from gateway.serving.machine_noise import conditions_since, snapshot
from gateway.workshop.bench.bodies import (
    REGION,
    BenchModel,
    binary_body,
    grpc_message,
    http_request,
    json_body,
    region_body,
    region_content,
)
from gateway.workshop.bench.figures import BenchFigures, figures
from gateway.workshop.bench.http_connection import HttpLoadConnection, LoadError
from gateway.workshop.bench.load import LoadPlan, LoadResult, ask_once, drive
from gateway.workshop.bench.served import GATEWAY_ID, ServedModel
from gateway.workshop.bench.settings import BenchSettings


@dataclass(frozen=True, slots=True)
class BarePlan:
    """Loop of one release: `inputs` of one run, for `seconds`, on `cores`."""

    config: Config
    release: Release
    state: Path
    inputs: Tensors
    seconds: float
    cores: tuple[int, ...]


def run_bare(plan: BarePlan, settings: BenchSettings) -> tuple[str, LoadResult]:
    """Return the name of the variant, and its times. Raise VariantError, ConfigurationError."""
    os.sched_setaffinity(0, plan.cores)
    return asyncio.run(_run(plan, settings))


async def _run(plan: BarePlan, settings: BenchSettings) -> tuple[str, LoadResult]:
    surveyed = await assembly.survey(plan.config)
    with assembly.opened(plan.config, surveyed, plan.state, lambda _remark: None) as loader:
        opened = await loader.first(plan.release, loader.open)
        try:
            _loop(opened.session, plan.inputs, settings.warm_up_s, settings)
            return opened.candidate.variant.name, _loop(opened.session, plan.inputs, plan.seconds, settings)
        finally:
            opened.session.close()


def _loop(session: Session, inputs: Tensors, seconds: float, settings: BenchSettings) -> LoadResult:
    laps: list[int] = []
    cpu_ns, start_ns = time.process_time_ns(), time.perf_counter_ns()
    end_ns = last_ns = start_ns + 0
    end_ns += round(seconds * 1e9)
    while last_ns < end_ns and len(laps) < settings.laps_limit:
        session.run(inputs)
        now_ns = time.perf_counter_ns()
        laps.append(now_ns - last_ns)
        last_ns = now_ns
    return LoadResult(laps, (last_ns - start_ns) / 1e9, (time.process_time_ns() - cpu_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class CoreSplit:
    """Cores of the server (and of the bare runtime), and those of the load."""

    server: tuple[int, ...]
    load: tuple[int, ...]

    @property
    def is_apart(self) -> bool:
        """Return True if they share no core."""
        return not set(self.server) & set(self.load)


def split_cores(cores: Collection[int]) -> CoreSplit:
    """Return the last core for the load and the others for the server; one core is shared."""
    ordered = tuple(sorted(cores))
    return CoreSplit(ordered[:-1], ordered[-1:]) if len(ordered) > 1 else CoreSplit(ordered, ordered)


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Keep this process, and children that it starts in the block, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


Result = TypeVar("Result")
GRPC, HTTP, MQTT, SHARED = "grpc", "http", "mqtt", "shm"
FRONT_ENDS = (GRPC, HTTP, MQTT, SHARED)
BARE = "bare"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  location of shm_open(3)'s segments on Linux
REGIONS = "/v2/systemsharedmemory/region"
NO_BROKER = "it needs a broker and a gateway that this command starts; name one with --mqtt mqtt://HOST:PORT"
NO_GRPC = "its gRPC address is not known; name it with --grpc-address HOST:PORT"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """Plan of a measurement. `headers`: of the caller, for HTTP and gRPC."""

    model: BenchModel
    gateway: ServedModel
    tensors: Mapping[str, Tensor]
    front_ends: Sequence[str]
    concurrency: Sequence[int]
    seconds: float
    cores: CoreSplit
    settings: BenchSettings = field(default_factory=BenchSettings)
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class BenchResult:
    """Figures, and what was left out with the reason. `variant`: of the bare runtime.

    `disturbed` says what made figures unreliable, by their label.
    """

    figures: list[BenchFigures] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    variant: str = ""
    disturbed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, connections: int, found: LoadResult, first: NoiseSnapshot) -> None:
        """Add the figures of a measurement that began at `first`, and what else the machine did meanwhile."""
        self.figures.append(figures(name, connections, found.laps_ns, found.span_s, found.cpu_s))
        _, disturbed = conditions_since(first)
        self.disturbed |= {self.figures[-1].label: disturbed} if disturbed else {}


def http_plan(run: BenchRun, path: str, body: bytes, headers: Sequence[tuple[str, str]]) -> LoadPlan:
    """Return the plan of one connection that posts `body`."""
    host = f"{run.gateway.http[0]}:{run.gateway.http[1]}"
    request = http_request("POST", path, host, body, (*headers, *run.headers))
    return LoadPlan(run.gateway.http, request, False, 1, run.seconds, run.cores.load, run.gateway.process)


def infer_plan(run: BenchRun, tensors: Mapping[str, Tensor]) -> LoadPlan:
    """Return the plan of one connection that posts `tensors` over HTTP."""
    return http_plan(run, f"{run.model.path}/infer", *binary_body(tensors))


def measure(run: BenchRun, bare: BarePlan | None, advance: Callable[[str], None]) -> BenchResult:
    """Measure; `advance` is called with a name before each measurement. Raise UnreachableError."""
    result = BenchResult()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        if bare:
            advance(BARE)
            try:
                first = snapshot()
                result.variant, found = _in_process(pool, run_bare, bare, run.settings)
                result.add(BARE, 1, found, first)
            except VariantError as error:
                result.left_out[BARE] = str(error)
        for name in run.front_ends:
            _measure_front_end(run, name, pool, result, advance)
    return result


def _measure_front_end(
    run: BenchRun, name: str, pool: ProcessPoolExecutor, result: BenchResult, advance: Callable[[str], None]
) -> None:
    try:
        with _planned(run, name) as plan:
            ask_once(plan, run.settings)
            for connections in run.concurrency:
                advance(f"{name} ×{connections}")
                first = snapshot()
                found = _in_process(pool, drive, replace(plan, connections=connections), run.settings)
                result.add(name, connections, found, first)
    except OSError as error:
        result.left_out[name] = f"it cannot be reached: {error.strerror or error}"
    except (LoadError, ValueError) as error:
        result.left_out[name] = str(error)


@contextmanager
def _planned(run: BenchRun, name: str) -> Iterator[LoadPlan]:
    """Lend the plan of a front end. Raise LoadError if it is left out."""
    if name == MQTT:
        if run.gateway.broker is None:
            raise LoadError(NO_BROKER)
        broker = run.gateway.broker
        topic = f"edge/{GATEWAY_ID}/infer/{run.model.name}/{run.model.version}"
        body, cores, process = json_body(run.tensors), run.cores.load, run.gateway.process
        plan = LoadPlan(broker, body, False, 1, run.seconds, cores, process, topic=topic)
        for left in reversed(range(run.settings.broker_attempts)):
            try:
                ask_once(plan, replace(run.settings, silence_s=run.settings.broker_s))
                break
            except LoadError:
                if not left:
                    raise
        yield plan
    elif name == SHARED:
        with _region(run):
            yield http_plan(run, f"{run.model.path}/infer", *region_body(run.tensors))
    elif name == HTTP:
        yield infer_plan(run, run.tensors)
    elif run.gateway.grpc is None:
        raise LoadError(NO_GRPC)
    else:
        yield _grpc_plan(run, run.gateway.grpc)


def _grpc_plan(run: BenchRun, address: tuple[str, int]) -> LoadPlan:
    headers = tuple((key.lower().encode(), value.encode()) for key, value in run.headers)
    message, cores, process = grpc_message(run.model, run.tensors), run.cores.load, run.gateway.process
    return LoadPlan(address, message, True, 1, run.seconds, cores, process, headers)


@contextmanager
def _region(run: BenchRun) -> Iterator[None]:
    """Lend a registered region with the inputs. Raise LoadError if the gateway allows none."""
    content = region_content(run.tensors)
    file = SHARED_MEMORY / f"{REGION}-{os.getpid()}"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as segment:
            segment.write(content)
        body = json.dumps({"key": f"/{file.name}", "offset": 0, "byte_size": len(content)}).encode()
        _post(run, f"{REGIONS}/{REGION}/register", body)
        yield
        _post(run, f"{REGIONS}/{REGION}/unregister", b"{}")
    finally:
        file.unlink()


def _post(run: BenchRun, path: str, body: bytes) -> None:
    plan = http_plan(run, path, body, [("Content-Type", "application/json")])
    connection = HttpLoadConnection(plan.address, plan.request, run.settings.silence_s, run.settings.answer_limit_bytes)
    try:
        connection.exchange()
    finally:
        connection.close()


def _in_process(pool: ProcessPoolExecutor, work: Callable[..., Result], *arguments: object) -> Result:
    try:
        return pool.submit(work, *arguments).result()
    except BrokenProcessPool as error:
        raise UnreachableError("the process of the load ended; is there memory for it? try fewer --seconds") from error
