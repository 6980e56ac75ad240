"""Verb `edge-gateway bench MODEL`: what a model costs on this device, through the front ends and without them."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Tensor
from gateway.common.files.durable import write_file
from gateway.common.terminal.tables import print_json, print_table, progress
from gateway.serving import assembly
from gateway.serving.cli.common import configured, warn
from gateway.serving.cli.explain import find_release
from gateway.serving.cli.files import images, tensors
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys, read_url
from gateway.serving.cli.remote import checked, model_path, read_object
from gateway.serving.cli.waiting import ModelWait
from gateway.serving.config import Config, parse_config, state_folder
from gateway.workshop.bench.bodies import BenchModel
from gateway.workshop.bench.figures import BenchFigures, common_edges, counts, document, plot, time_text
from gateway.workshop.bench.inputs import accepted, described
from gateway.workshop.bench.load import ask_once
from gateway.workshop.bench.measurement import (
    BARE,
    FRONT_ENDS,
    BarePlan,
    BenchResult,
    BenchRun,
    CoreSplit,
    infer_plan,
    measure,
    pinned,
    split_cores,
)
from gateway.workshop.bench.served import CONFIG, ServedModel, served
from gateway.workshop.bench.settings import BenchSettings
from gateway.workshop.cli.infer_options import WAIT_S

PLOT_MODE = 0o644
NOT_HERE = "it is measured next to a gateway that this command starts, without --address"
NO_IMAGES = "images are decoded by the gateway; give tensors with --npz to compare"


def command(arguments: argparse.Namespace) -> int:
    """Measure and print; return 1 if nothing could be measured."""
    settings, names = BenchSettings(), _front_ends(arguments.frontends)
    with ExitStack() as stack:
        run, bare, left_out = _prepared(arguments, names, settings, stack)
        result = _measured(run, bare)
    result.left_out = {**left_out, **result.left_out}
    if not result.figures:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in result.left_out.items())
        raise RequestError(Fault.UNAVAILABLE, f"nothing was measured: {reasons}")
    _show(arguments, run, result)
    return 0


def _front_ends(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in FRONT_ENDS]
    if unknown:
        raise ConfigurationError(f"--frontends takes {','.join(FRONT_ENDS)} or some of them, not {unknown[0]!r:.60}")
    return names


def _prepared(
    arguments: argparse.Namespace, names: Sequence[str], settings: BenchSettings, stack: ExitStack
) -> tuple[BenchRun, BarePlan | None, dict[str, str]]:
    """Return the run on a ready gateway, the plan of the bare runtime, and why that is left out."""
    if arguments.address:
        run, manifest = _run_elsewhere(arguments, names, settings)
        return replace(run, tensors=_inputs(arguments, manifest, run)), None, {BARE: NOT_HERE}
    config, state = configured(arguments), state_folder(arguments.state)
    release, manifest = asyncio.run(_on_disk(config, arguments, state))
    run = _run(arguments, names, settings, manifest, _started(arguments, release, state, settings, stack))
    run = replace(run, tensors=_inputs(arguments, manifest, run))
    if arguments.image:
        return run, None, {BARE: NO_IMAGES}
    arrays = {name: tensor.array for name, tensor in run.tensors.items()}
    return run, BarePlan(parse_config(CONFIG, ""), release, state, arrays, arguments.seconds, run.cores.server), {}


def _started(
    arguments: argparse.Namespace, release: Release, state: Path, settings: BenchSettings, stack: ExitStack
) -> ServedModel:
    """Return a gateway that serves the release until the stack ends."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-gateway-bench-")))
    with pinned(_cores().server):
        return stack.enter_context(served(release, folder, state, _broker(arguments.broker_url), settings))


def _broker(url: str | None) -> tuple[str, int] | None:
    """Return host and port of a broker. Raise ConfigurationError if the URL has more than that."""
    if url is None:
        return None
    place = _plain(url.removeprefix("mqtt://"), "--mqtt")
    return place.host, place.port


def _run_elsewhere(
    arguments: argparse.Namespace, names: Sequence[str], settings: BenchSettings
) -> tuple[BenchRun, ModelManifest]:
    """Return the run on a running gateway, and the model as that describes it."""
    place, keys = _plain(arguments.address, "--address"), Keys(token_file=arguments.token_file)
    with GatewayClient(place, keys) as client, checked(place):
        path, wait = (
            model_path(arguments.model, arguments.model_version),
            ModelWait(arguments.model, WAIT_S, arguments.config),
        )
        found = wait.answer(place, keys, lambda: read_object(*client.exchange("GET", path)))
        manifest = described(found["name"], arguments.model_version or found["versions"][-1], found)
    grpc = _plain(arguments.grpc_address, "--grpc-address") if arguments.grpc_address else None
    gateway = ServedModel((place.host, place.port), (grpc.host, grpc.port) if grpc else None, None)
    run = _run(arguments, names, settings, manifest, gateway)
    return replace(run, headers=tuple(keys.headers.items())), manifest


def _run(
    arguments: argparse.Namespace,
    names: Sequence[str],
    settings: BenchSettings,
    manifest: ModelManifest,
    gateway: ServedModel,
) -> BenchRun:
    """Return the run of the command line, still without inputs."""
    model = BenchModel(manifest.name, manifest.version)
    return BenchRun(model, gateway, {}, names, arguments.concurrency, arguments.seconds, _cores(), settings)


def _cores() -> CoreSplit:
    return split_cores(os.sched_getaffinity(0))


async def _on_disk(config: Config, arguments: argparse.Namespace, state: Path) -> tuple[Release, ModelManifest]:
    release = await find_release(config, arguments.model, arguments.model_version)
    if release.pipeline is not None:
        raise ConfigurationError("is a pipeline; measure it where it serves, with --address", file=release.name)
    surveyed = await assembly.survey(config)
    with assembly.opened(config, surveyed, state, warn) as loader:
        return release, await loader.manifest(release)


def _plain(text: str, option: str) -> GatewayAddress:
    place = read_url(text)
    if place.tls or place.unix or place.prefix:
        raise ConfigurationError(f"{option} takes host:port without TLS: the load speaks no other way")
    return place


def _inputs(arguments: argparse.Namespace, manifest: ModelManifest, run: BenchRun) -> Mapping[str, Tensor]:
    if arguments.npz:
        return tensors(arguments.npz, (spec.name for spec in manifest.inputs))
    if arguments.image:
        return {manifest.inputs[0].name: images([arguments.image])}
    return accepted(manifest, partial(_ask, run), run.settings.samples_limit)


def _ask(run: BenchRun, given: Mapping[str, Tensor]) -> None:
    try:
        ask_once(infer_plan(run, given), run.settings)
    except OSError as error:
        raise UnreachableError(f"the gateway cannot be reached: {error.strerror or error}") from error


def _measured(run: BenchRun, bare: BarePlan | None) -> BenchResult:
    steps = len(run.front_ends) * len(run.concurrency) + (bare is not None)
    with progress() as bar:
        task = bar.add_task("measuring", total=steps)
        done = iter(range(steps + 1))
        return measure(run, bare, lambda name: bar.update(task, completed=next(done, steps), description=name))


def _show(arguments: argparse.Namespace, run: BenchRun, result: BenchResult) -> None:
    buckets = run.settings.buckets
    notes = remarks(result, run.cores, here=run.gateway.process is not None)
    title = f"{run.model.name} {run.model.version}"
    if arguments.plot:
        write_file(Path(arguments.plot), plot(title, result.figures, buckets).encode(), PLOT_MODE)
    if arguments.json:
        shapes = {name: [tensor.datatype.label, *tensor.array.shape] for name, tensor in run.tensors.items()}
        found = {"model": run.model.name, "version": run.model.version, "inputs": shapes, "seconds": run.seconds}
        print_json({**found, **result_json(result, notes, buckets)})
        return
    variant = f", variant {result.variant}" if result.variant else ""
    print(f"{title}{variant}: {run.seconds:g} s each\n")
    print_result(result, notes, buckets)


BLOCKS = " ▁▂▃▄▅▆▇█"
COLUMNS = ("front end", "requests/s", "p50", "p95", "p99", "CPU per request")
ONE_MACHINE = "load and gateway are on one machine: these times are without a network; memory and caches are shared"
CLOSED_LOOP = "each connection sends its next request after an answer: at a fixed rate, times in queues may be longer"
GENERATED = "inputs are the same in every request: runtimes may be faster or slower with others"
INPUTS_ONLY = "shm: inputs are in shared memory, answers come over HTTP"

THROUGH_BROKER = "mqtt: JSON at QoS 0 through the broker, whose time is part of it, and which has no core of its own"


def remarks(result: BenchResult, cores: CoreSplit, *, here: bool) -> list[str]:
    """Return what the figures do not tell."""
    shared = "load and gateway share one core: rates are lower, and times longer, than with a core for each"
    apart = f"gateway on cores {_listed(cores.server)}, load on core {_listed(cores.load)}"
    elsewhere = "this command did not start the gateway: its cores, its settings and other callers are not known"
    placed = [apart if cores.is_apart else shared] if here else [elsewhere]
    shm = [INPUTS_ONLY] if any(each.front_end == "shm" for each in result.figures) else []
    mqtt = [THROUGH_BROKER] if any(each.front_end == "mqtt" for each in result.figures) else []
    busy = [f"{label}: measured while the machine was busy ({why})" for label, why in result.disturbed.items()]
    return [*busy, *placed, ONE_MACHINE, CLOSED_LOOP, GENERATED, *shm, *mqtt]


def print_result(result: BenchResult, notes: Sequence[str], buckets: int) -> None:
    """Print the table, the histograms and the remarks."""
    print_table(COLUMNS, [_row(each) for each in result.figures])
    print()
    for line in histograms(result.figures, buckets):
        print(line)
    print()
    for name, reason in result.left_out.items():
        print(f"not measured: {name}: {reason}")
    for note in notes:
        print(f"note: {note}")


def histograms(measured: Sequence[BenchFigures], buckets: int) -> list[str]:
    """Return a line of bars for each measurement, on one logarithmic scale, and the scale."""
    edges = common_edges(measured, buckets)
    width = max(len(each.label) for each in measured)
    lines = [f"{each.label:<{width}} │{bars(counts(each, edges))}│" for each in measured]
    low, high = time_text(float(edges[1])), time_text(float(edges[-2]))
    return [*lines, f"{'':<{width}}  {low:<{buckets - len(high)}}{high}"]


def bars(found: Sequence[int]) -> str:
    """Return a bar for each bucket; a bucket with any request has one."""
    most = max(found)
    return "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // most)] for count in found)


def result_json(result: BenchResult, notes: Sequence[str], buckets: int) -> dict[str, Any]:
    """Return the figures for programs."""
    edges = common_edges(result.figures, buckets)
    return {
        "variant": result.variant or None,
        "measurements": [document(each, edges) for each in result.figures],
        "left_out": result.left_out,
        "disturbed": result.disturbed,
        "notes": list(notes),
    }


def _row(each: BenchFigures) -> tuple[str, ...]:
    cpu = "" if each.cpu_us is None else time_text(each.cpu_us)
    times = (time_text(value) for value in (each.p50_us, each.p95_us, each.p99_us))
    return (each.label, f"{each.per_s:,.0f}", *times, cpu)


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))
