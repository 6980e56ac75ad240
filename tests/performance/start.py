"""Start and memory of an idle daemon by configuration: `python -m tests.performance.start [--passes N] [NAME…]`.

Byte-compiled (into a cache of this measurement's own), verdicts kept, nothing asked. Medians of interleaved passes:
seconds from exec to READY=1 and to the first answer over HTTP, processor time until READY, and when everything has
settled the resident set, the part of it that no other process shares (PSS and private, of smaps_rollup), and the
threads.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.performance import networks, servers
from tests.simulators.daemon import ANYWHERE, COMMAND, QUIET, ROOT, Daemon

SETTLED_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
OFF, ON = ("off",), (ANYWHERE,)
GARBAGE = """
import gc, time
import gateway.serving.cli.run, gateway.serving.frontends.grpc_v2.transport.server
import gateway.serving.frontends.rest_v2.app
import onnxruntime, uvicorn.config
def full_ms():
    began_s = time.perf_counter()
    gc.collect()
    return (time.perf_counter() - began_s) * 1e3
full_ms()
print(f"a full search for garbage among {len(gc.get_objects())} objects of the start: {full_ms():.2f} ms", end="; ")
gc.freeze()
print(f"frozen: {full_ms():.2f} ms")
"""
BROKER = "mqtt://127.0.0.1:1"
"""No broker answers there; the client's library is loaded all the same."""

SWAPS = "swaps"
"""Number of times that a configuration's model directory gets a newer version and loses the older one."""

Figures = dict[str, float]
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "tiny, gRPC": {"models": "one", "http": OFF},
    "tiny, gRPC + HTTP": {"models": "one"},
    "tiny, HTTP": {"models": "one", "grpc": OFF},
    "tiny, gRPC + MQTT": {"models": "one", "http": OFF, "mqtt": BROKER},
    "all three, gRPC + HTTP": {"models": "models"},
    "all three, gRPC + HTTP + MQTT": {"models": "models", "mqtt": BROKER},
    "mobilenet": {"models": "large"},
    "mobilenet, three swaps later": {"models": "large", SWAPS: 3},
}


def main() -> None:
    """Measure and print."""
    options = _options()
    chosen = [name for name in CONFIGURATIONS if not options.names or name in options.names]
    with tempfile.TemporaryDirectory(prefix="edge-gateway-start-") as name:
        folder = Path(name)
        _prepare(folder)
        environ = {"PYTHONPYCACHEPREFIX": name + "/pyc", "PYTHONDONTWRITEBYTECODE": ""}
        samples: dict[str, list[Figures]] = {what: [] for what in chosen}
        for turn in range(options.passes + 1):
            for what in chosen:
                figures = _measured(folder, environ, CONFIGURATIONS[what], options.prefix.split())
                if turn:  # the first compiles, tries variants and reads files into the page cache
                    samples[what].append(figures)
    _print({what: _median(figures) for what, figures in samples.items()})
    subprocess.run([sys.executable, "-c", GARBAGE], cwd=ROOT, check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CONFIGURATIONS)} (default: all)")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--prefix", default="", help="words before the command, such as 'env MALLOC_ARENA_MAX=2'")
    return parser.parse_args()


def _prepare(folder: Path) -> None:
    """Prepare model directories: the bench's three, `tiny` alone, a larger one of 14 MiB."""
    models = servers.model_directory(folder)
    shutil.copytree(models / "tiny", folder / "one" / "tiny")
    (folder / "large" / "mobilenet" / "1").mkdir(parents=True)
    (folder / "large" / "mobilenet" / "1" / "model.onnx").write_bytes(networks.mobilenet().content)


def _swap(model: Path, daemon: Daemon, times: int) -> None:
    """Add a newer version and remove the older one, so many times; at the end the first is back."""
    for version in range(1, times + 1):
        shutil.copytree(model / str(version), model / str(version + 1))
        daemon.reload()
        shutil.rmtree(model / str(version))
        daemon.reload()
    (model / str(times + 1)).rename(model / "1")


def _measured(folder: Path, environ: dict[str, str], configuration: dict[str, object], prefix: list[str]) -> Figures:
    settings = {"state": folder / "state", "config": QUIET, "environ": environ, **configuration}
    swaps = int(str(settings.pop(SWAPS, 0)))
    settings["models"] = folder / str(settings["models"])
    daemon = Daemon(folder, command=(*prefix, *COMMAND), **settings)  # type: ignore[arg-type]
    began_s = time.monotonic()
    daemon.start()
    figures = {"ready s": time.monotonic() - began_s, "CPU s": _cpu_s(daemon.pid)}
    if "http" not in configuration:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/health/ready", timeout=10) as answer:
            assert answer.status == 200
        figures["HTTP s"] = time.monotonic() - began_s
    if swaps:
        _swap(folder / "large" / "mobilenet", daemon, swaps)
    time.sleep(SETTLED_S)
    figures |= _memory_mib(daemon.pid)
    daemon.stop()
    return figures


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _memory_mib(pid: int) -> Figures:
    kib = dict(re.findall(r"^(\w+): +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
    private = int(kib["Private_Clean"]) + int(kib["Private_Dirty"])
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    return {"RSS": int(kib["Rss"]) / 1024, "PSS": int(kib["Pss"]) / 1024, "private": private / 1024, "threads": threads}


def _median(samples: list[Figures]) -> Figures:
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def _print(rows: dict[str, Figures]) -> None:
    table = Table("what", "ready s", "HTTP s", "CPU s", "RSS MiB", "PSS MiB", "private MiB", "threads", show_edge=False)
    for what, row in rows.items():
        times = (f"{row[key]:.3f}" if key in row else "" for key in ("ready s", "HTTP s", "CPU s"))
        table.add_row(what, *times, *(f"{row[key]:.1f}" for key in ("RSS", "PSS", "private")), f"{row['threads']:.0f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
