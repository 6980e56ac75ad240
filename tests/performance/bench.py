"""`make bench`: what the gateway adds to the bare `session.run` loop, measured in one run.

The gateway (or the bare loop) is pinned to one core, the load generator to another; passes are interleaved and medians
are printed. Ratios within a run hold; absolute figures move with the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.performance import load, servers

PASSES = 3
SECONDS = 3
CONNECTIONS = (1, 8)
MODELS = ("tiny", "meter-reader")
GATEWAY_CORE, LOAD_CORE = 0, (os.cpu_count() or 1) - 1
RESULTS = Path(".bench") / "results.json"

Figures = dict[str, float]


def main() -> int:
    """Run all passes and print the medians."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="edge-gateway-bench-") as name,
        Progress(console=Console(stderr=True)) as bar,
    ):
        folder = Path(name)
        models = servers.model_directory(folder)
        chosen = {model: servers.chosen_variant(models, folder / "state", model) for model in MODELS}
        steps = _steps(folder, models, chosen, options.seconds)
        task = bar.add_task("measuring", total=PASSES * len(steps))
        samples: dict[str, list[Figures]] = {name: [] for name in steps}
        for _ in range(PASSES):
            for what, measure in steps.items():
                bar.update(task, description=what)
                samples[what].append(measure())
                bar.advance(task)
    medians = {what: _median(figures) for what, figures in samples.items()}
    report = {"chosen": chosen, "passes": PASSES, "seconds": options.seconds, "medians": medians}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2))
    if options.json:
        sys.stdout.write(RESULTS.read_text() + "\n")
    else:
        _print(report)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help=f"print JSON (always kept in {RESULTS})")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="length of one measurement (default %(default)s)")
    return parser.parse_args()


def _steps(folder: Path, models: Path, chosen: dict[str, str], seconds: int) -> dict[str, Callable[[], Figures]]:
    """Every measurement by its name, in the order of one pass: baseline and candidates side by side."""
    steps: dict[str, Callable[[], Figures]] = {}
    for model in MODELS:
        steps[f"{model}: bare loop"] = lambda model=model: servers.bare_loop(
            models, model, chosen[model], seconds, GATEWAY_CORE
        )
        for connections in CONNECTIONS:
            steps[f"{model}: gRPC, {connections} connections"] = lambda model=model, connections=connections: _grpc(
                folder, models, model, connections, seconds
            )
    for qos, what in ((1, "MQTT samples, QoS 1"), (0, f"MQTT samples, QoS 0 at {load.QOS_0_PER_S}/s")):
        steps[what] = lambda qos=qos: _mqtt(folder, models, qos)
    return steps


def _grpc(folder: Path, models: Path, model: str, connections: int, seconds: int) -> Figures:
    with servers.Gateway(folder, models, GATEWAY_CORE) as gateway:
        body = load.request_file(folder, model)
        load.h2load(gateway.grpc_port, body, connections=connections, seconds=1, core=LOAD_CORE)
        before = gateway.cpu_s()
        figures = load.h2load(gateway.grpc_port, body, connections=connections, seconds=seconds, core=LOAD_CORE)
        figures["cpu_us"] = (gateway.cpu_s() - before) * 1e6 / figures["requests"]
        return figures | {"memory_mib": gateway.memory_mib(), "ready_s": gateway.ready_s}


def _mqtt(folder: Path, models: Path, qos: int) -> Figures:
    with (
        servers.broker(folder) as broker,
        servers.Gateway(folder, models, GATEWAY_CORE, mqtt=broker.url, qos=qos) as gateway,
    ):
        load.wait_online(broker.port)
        before = gateway.cpu_s()
        figures = load.mqtt(broker.port, qos, LOAD_CORE)
        figures["cpu_us"] = (gateway.cpu_s() - before) * 1e6 / figures["messages"]
        return figures | {"memory_mib": gateway.memory_mib(), "ready_s": gateway.ready_s}


def _median(figures: list[Figures]) -> Figures:
    return {key: statistics.median(sample[key] for sample in figures) for key in figures[0]}


def _print(report: dict[str, Any]) -> None:
    medians: dict[str, Figures] = report["medians"]
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(title=f"medians of {PASSES} interleaved passes of {report['seconds']} s", title_justify="left")
    for column in ("what", "per second", "of bare", "p50 µs", "p99 µs", "CPU µs each", "× bare", "MiB", "ready s"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, figures in medians.items():
        bare = medians.get(f"{what.partition(':')[0]}: bare loop")
        table.add_row(what, *_cells(figures, bare))
    console.print(table)
    for model, variant in report["chosen"].items():
        console.print(f"{model}: {variant} serves")


def _cells(figures: Figures, bare: Figures | None) -> list[str]:
    def cell(key: str, form: str) -> str:
        return form.format(figures[key]) if key in figures else ""

    share = f"{figures['per_s'] / bare['per_s']:.1%}" if bare else ""
    times = f"{figures['cpu_us'] / bare['cpu_us']:.1f}" if bare else ""
    return [
        cell("per_s", "{:,.0f}"),
        share,
        cell("p50_us", "{:,.0f}"),
        cell("p99_us", "{:,.0f}"),
        cell("cpu_us", "{:,.1f}"),
        times,
        cell("memory_mib", "{:.0f}"),
        cell("ready_s", "{:.2f}"),
    ]


if __name__ == "__main__":
    sys.exit(main())
