"""Output of `edge-gateway bench`: table, histograms and remarks for people; JSON for programs. Pure but for print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.common.terminal.tables import print_table
from gateway.workshop.bench.cores import CoreSplit
from gateway.workshop.bench.figures import BenchFigures, common_edges, counts, document
from gateway.workshop.bench.measurement import BenchResult
from gateway.workshop.bench.plot import time_text

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
