"""Output of the demo: progress while it works, then device, choices and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from camera import Played, Tick
from processes import Cost
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

CAMERA_ACCURACY = 0.97
SENSOR_ACCURACY = 0.95
"""Right enough: two points under the models' held-out accuracy (0.994, 1.0), rounded down to whole answers."""

console = Console()
T = TypeVar("T")


class Steps:
    """A line per step: a spinner or a bar while it runs, a mark when it is done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def during(self, what: str, work: Callable[[], T]) -> T:
        """Show `what` while `work` runs."""
        task = self._progress.add_task(what, total=None)
        result = work()
        self._progress.update(task, total=1, completed=1)
        return result

    def counted(self, what: str, work: Callable[[Tick], T]) -> T:
        """Show a bar that `work` moves."""
        task = self._progress.add_task(what, total=None)
        return work(lambda done, of: self._progress.update(task, completed=done, total=of))


@contextmanager
def steps() -> Iterator[Steps]:
    """Show progress on the terminal, plain lines elsewhere."""
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield Steps(progress)


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that is judged and printed at the end."""

    camera: Played
    sensors: Played
    camera_cost: Cost
    sensors_cost: Cost
    ready_s: float
    memory_bytes: int

    @property
    def good(self) -> bool:
        """Nothing lost, and right often enough."""
        complete = self.camera.answered == self.camera.sent and self.sensors.answered == self.sensors.sent
        return complete and self.camera.accuracy >= CAMERA_ACCURACY and self.sensors.accuracy >= SENSOR_ACCURACY


def print_device(inventory: dict[str, Any]) -> None:
    """Print what was detected."""
    cpu, memory = inventory["cpu"], inventory["memory_bytes"]
    console.print(f"\n[bold]Detected[/bold]  {cpu['model']}, {cpu['cores']} cores, {memory / 2**30:.1f} GiB")
    for found in inventory["accelerators"]:
        console.print(
            f"          {found['kind']} at {found['device']}: {'usable' if found['usable'] else 'not usable'}"
        )
    if not inventory["accelerators"]:
        console.print("          no accelerator other than the CPU")
    console.print(f"[bold]Profile[/bold]   {inventory['profile']}\n")


def print_models(explained: list[dict[str, Any]]) -> None:
    """Print the variants that were chosen, and why."""
    for model in explained:
        table = Table(title_justify="left", show_edge=False)
        table.title = f"[bold]{model['model']}[/bold]: {model['chosen']} serves — {model['why']}"
        for column in ("variant", "p50 µs", "CPU µs", "eligible because"):
            table.add_column(column)
        for row in model["variants"]:
            measured = row["measured"] or {}
            figures = [f"{measured[key]:.0f}" if measured else "" for key in ("p50_us", "cpu_us")]
            style = "bold" if row["name"] == model["chosen"] else ""
            reason = row["reason"].partition(" (")[0] if row["eligible"] else f"not: {row['reason']}"
            table.add_row(row["name"], *figures, reason, style=style)
        console.print(table, "")


def print_summary(summary: Summary) -> None:
    """Print accuracy, latency and cost."""
    table = Table(title="Answers", title_justify="left", show_edge=False)
    columns = ("source", "answered", "accuracy", "wanted", "p50 ms", "p99 ms", "CPU ms each")
    for column in columns:
        table.add_column(column)
    for name, played, cost, wanted in (
        ("camera, gRPC", summary.camera, summary.camera_cost, CAMERA_ACCURACY),
        ("40 sensors, MQTT", summary.sensors, summary.sensors_cost, SENSOR_ACCURACY),
    ):
        p50, p99 = np.percentile(played.latencies_ms or [float("nan")], (50, 99))
        per_inference = cost.cpu_s * 1000 / max(played.answered, 1)
        answered = f"{played.answered} of {played.sent}"
        table.add_row(
            name, answered, f"{played.accuracy:.3f}", f"≥ {wanted}", f"{p50:.2f}", f"{p99:.2f}", f"{per_inference:.2f}"
        )
    console.print(table)
    console.print("A camera's inference includes decoding its PNG; a sensor's, its 100 messages.")
    console.print(f"\nready after {summary.ready_s:.2f} s, {summary.memory_bytes / 2**20:.0f} MiB resident\n")
